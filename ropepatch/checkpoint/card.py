"""A short section in the model card, between two marks so that it can be taken out again."""

from pathlib import Path

from ropepatch.checkpoint.rewrite import Rewrite

_BEGIN = "<!-- ropepatch: begin -->"
_END = "<!-- ropepatch: end -->"
_RESTORING = (
    "`ropepatch restore` on this folder gives the original config back; `ropepatch.json` "
    "holds every value before and after."
)

_TRAINED = "<!-- ropepatch training: begin -->"
_TRAINED_END = "<!-- ropepatch training: end -->"
_UNTRUE = (
    "The weights are unchanged, and were not trained for it.",
    "The weights are unchanged.",
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


def trained_section(card: str | None, lines: list[str]) -> str:
    """The card of a model that was trained after its change: no section says otherwise."""
    text = card or ""
    for untrue in _UNTRUE:
        text = text.replace(untrue, "The weights were trained afterwards, see below.")
    text = text.replace(_RESTORING, "`ropepatch.json` holds every value before and after.")
    section = "\n".join([_TRAINED, *lines, _TRAINED_END, ""])
    start, end = text.find(_TRAINED), text.find(_TRAINED_END)
    if 0 <= start < end:
        text = text[:start].rstrip() + "\n" + text[end + len(_TRAINED_END) :].lstrip()
    return f"{text.rstrip()}\n\n{section}" if text.strip() else section


def remove_section(card: str) -> str:
    """The card without our section."""
    start = card.find(_BEGIN)
    end = card.find(_END, start)
    if start < 0 or end < 0:
        return card
    return (card[:start].rstrip() + "\n" + card[end + len(_END) :].lstrip()).rstrip() + "\n"


def _is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not Path(name).exists() and not name.startswith((".", "/", "~"))
