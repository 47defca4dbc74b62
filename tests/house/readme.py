"""README's tables, made from the code; run as a module, it rewrites them."""

import re
from collections.abc import Mapping
from pathlib import Path

from ropepatch.methods.base import Method
from ropepatch.methods.table import METHODS
from ropepatch.serving.table import ENGINES, support_table

README = Path(__file__).resolve().parents[2] / "README.md"


def tables() -> dict[str, str]:
    """By the word between the marks."""
    return {
        "methods": methods_table(METHODS),
        "engines": support_table(),
        "checked": "\n".join(f"- **{e.title}**: {e.checked}." for e in ENGINES.values()),
    }


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


def between(word: str) -> re.Pattern[str]:
    """What stands between the marks of a table."""
    return re.compile(rf"<!-- {word}: begin -->\n(.*?)\n?<!-- {word}: end -->", re.DOTALL)


def rewrite() -> None:
    """Put the tables between their marks."""
    text = README.read_text(encoding="utf-8")
    for word, table in tables().items():
        block = f"<!-- {word}: begin -->\n{table}\n<!-- {word}: end -->"
        text = between(word).sub(block.replace("\\", r"\\"), text)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
