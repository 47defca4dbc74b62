"""A short section in the model card, between two marks so that it can be taken out again."""

from pathlib import Path

from ropepatch._version import __version__
from ropepatch.config_json.write import Change

_BEGIN = "<!-- ropepatch: begin -->"
_END = "<!-- ropepatch: end -->"


def add_section(card: str | None, change: Change, source_name: str) -> str:
    """The card with our section at its end; the section alone where there was none."""
    name = source_name if _is_hub_id(source_name) else Path(source_name).resolve().name
    section = _section(change, name)
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


def _section(change: Change, source_name: str) -> str:
    layout, recipe = change.layout, change.recipe
    method = next(iter(change.methods.values()))
    layers = sum(len(g.layers) for label in change.methods for g in layout.groups_of(label))
    parameters = ", ".join(
        f"`{key}` {value:g}" if isinstance(value, float) else f"`{key}` {value}"
        for key, value in method.parameters().items()
        if value is not None and not isinstance(value, tuple)
    )
    lines = [
        _BEGIN,
        "## Extended context",
        "",
        f"{method.title} ({method.source}) was written into the config of `{source_name}` by "
        f"ropepatch {__version__}: trained on {layout.trained_length} tokens, meant for "
        f"{change.target_length}. The weights are unchanged. It touches {layers} of "
        f"{layout.layer_count} layers.",
        "",
        f"- Method: `{recipe.method}`, {parameters}",
        f"- Short length: {method.short_price}.",
        *(f"- {note[0].upper()}{note[1:]}" for note in change.advice),
        "",
        "`ropepatch restore` on this folder gives the original config back; `ropepatch.json` "
        "holds every value before and after.",
        _END,
        "",
    ]
    return "\n".join(lines)
