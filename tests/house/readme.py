"""README's table of methods, made from the code; run as a module, it rewrites the table."""

import re
from collections.abc import Mapping
from pathlib import Path

from ropepatch.methods.base import Method
from ropepatch.methods.table import METHODS

README = Path(__file__).resolve().parents[2] / "README.md"


def methods_table(methods: Mapping[str, type[Method]]) -> str:
    """One row a method, in the order of the table."""
    rows = [
        "| method | use when | price at short length | written as | source |",
        "|---|---|---|---|---|",
    ]
    for name, cls in methods.items():
        written = f"`{cls.rope_type}`" if cls.rope_type else "refused on disk"
        rows.append(f"| `{name}` | {cls.use_when} | {cls.short_price} | {written} | {cls.source} |")
    return "\n".join(rows)


def rewrite() -> None:
    """Put the table between its marks."""
    text = README.read_text(encoding="utf-8")
    block = f"<!-- methods: begin -->\n{methods_table(METHODS)}\n<!-- methods: end -->"
    text = re.sub(
        r"<!-- methods: begin -->.*?<!-- methods: end -->", lambda _: block, text, flags=re.DOTALL
    )
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
