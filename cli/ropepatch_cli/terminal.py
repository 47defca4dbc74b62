"""The terminal: two consoles and the few shapes every rendering is made of."""

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

out = Console(highlight=False, soft_wrap=True, emoji=False)  # a path may hold :dog:
err = Console(stderr=True, highlight=False, emoji=False)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    out.print(json.dumps(value, indent=2, ensure_ascii=False), markup=False)


def table(*columns: str, title: str | None = None) -> Table:
    """A plain table; a column whose name begins with ">" is set to the right."""
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left")
    return table


def tokens(value: float | None) -> str:
    """A length or wavelength with thousands separated."""
    return "-" if value is None else f"{value:,.0f}"


def notes(lines: tuple[str, ...]) -> None:
    """Things to know, one a line."""
    for line in lines:
        out.print(f"[yellow]note:[/yellow] {escape(line)}")
