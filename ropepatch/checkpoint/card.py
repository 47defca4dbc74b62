"""A short section in the model card, between two marks so that it can be taken out again."""

from pathlib import Path

from ropepatch.checkpoint.rewrite import Rewrite

_BEGIN = "<!-- ropepatch: begin -->"
_END = "<!-- ropepatch: end -->"
_RESTORING = (
    "`ropepatch restore` on this folder gives the original config back; `ropepatch.json` "
    "holds every value before and after."
)


def add_section(card: str | None, rewrite: Rewrite, source_name: str) -> str:
    """The card with our section at its end; the section alone where there was none."""
    name = source_name if _is_hub_id(source_name) else Path(source_name).resolve().name
    notes = (f"- {note[0].upper()}{note[1:]}" for note in rewrite.advice)
    lines = [_BEGIN, *rewrite.section(name), *notes, "", _RESTORING, _END, ""]
    section = "\n".join(lines)
    if card is None:
        return section
    return f"{remove_section(card).rstrip()}\n\n{section}"


def remove_section(card: str) -> str:
    """The card without our section."""
    start = card.find(_BEGIN)
    end = card.find(_END, start)
    if start < 0 or end < 0:
        return card
    return (card[:start].rstrip() + "\n" + card[end + len(_END) :].lstrip()).rstrip() + "\n"


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not Path(name).exists() and not name.startswith((".", "/", "~"))
