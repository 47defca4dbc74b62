"""The terminal: lines, notes, JSON and tables; rich is loaded when the first table is shown."""

import json
from typing import Any

import typer


def line(text: str, *, err: bool = False) -> None:
    """One line on stdout or stderr; styles are dropped where nobody sees them."""
    typer.echo(text, err=err)


def bold(text: str) -> str:
    """For what a line is about."""
    return typer.style(text, bold=True)


def dim(text: str) -> str:
    """For what may be skipped."""
    return typer.style(text, dim=True)


def coloured(text: str, colour: str) -> str:
    """In one of the terminal's own colours."""
    return typer.style(text, fg=colour)


def difference(lines: list[str], indent: str = "") -> None:
    """A difference line by line: what goes red, what comes green."""
    for text in lines:
        colour = {"-": "red", "+": "green"}.get(text[:1])
        line(indent + (coloured(text, colour) if colour else dim(text)))


def notes(lines: tuple[str, ...]) -> None:
    """Things to know, one a line."""
    for text in lines:
        line(f"{coloured('note:', 'yellow')} {text}")


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    line(json.dumps(value, indent=2, ensure_ascii=False))


def tokens(value: float | None) -> str:
    """A length or wavelength with thousands separated."""
    return "-" if value is None else f"{value:,.0f}"


class Listing:
    """A plain table; a column whose name begins with ">" is set to the right."""

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        self._rows: list[tuple[str, ...]] = []

    def add(self, *cells: str) -> None:
        """One more row, a cell per column."""
        self._rows.append(cells)

    def show(self, least: int = 0) -> None:
        """Print it, as wide as the terminal allows, or at `least` so many columns wide."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(header_style="bold", box=None, pad_edge=False)
        for column in self._columns:
            right = column.startswith(">")
            table.add_column(column.lstrip(">"), justify="right" if right else "left")
        for cells in self._rows:
            table.add_row(*(Text(cell) for cell in cells))  # names are not markup
        console = Console(highlight=False)
        console.width = max(console.width, least)
        console.print(table)
