"""transformers 4: other words for the same blocks, and none for p-RoPE."""

from collections.abc import Mapping

from ropepatch.serving.base import Engine, Support, Words, refuse
from ropepatch.serving.classes import refuse_unknown
from ropepatch.serving.dialect import both_dialects, speaks_v4
from ropepatch.serving.served import ServedModel

CHECKED = "transformers 4.57.6 beside 5.24.0, tiny models loaded and their logits compared"
_WORDS = Support("override", "rope_scaling and rope_theta beside rope_parameters")
_NONE = "it has no type 'proportional' and would turn every pair"

_STRICT = ("olmo", "olmo2")
"""Model types whose config class takes `type` and `factor` alone."""

METHODS: Mapping[str, Support] = {
    "yarn": _WORDS,
    "pi": _WORDS,
    "ntk": _WORDS,
    "dynamic-ntk": _WORDS,
    "dynamic-yarn": Support("refused", "it has no type for it", ("yarn", "dynamic-ntk")),
    "ntk-by-parts": _WORDS,
    "llama3": _WORDS,
    "longrope": _WORDS,
    "p-rope": Support("refused", _NONE, ("yarn", "ntk")),
    "nope": Support("refused", _NONE, ("yarn", "ntk")),
    "alibi": Support("refused", "ropepatch.load needs transformers 5", ("yarn", "ntk")),
}


def say(served: ServedModel) -> Words:
    """A config.json that both read; nothing where the folder's own says it already."""
    refuse_unknown("transformers4", served)
    if served.model_type in _STRICT and served.row != "ntk":
        refuse(f"its config class for '{served.model_type}' stops at the key rope_type")
    if served.stops_pairs:
        refuse(_NONE, "yarn", "ntk")
    if speaks_v4(served) and not served.raises_length:
        note = "the folder's own config.json is in words that transformers 4 reads; nothing to do."
        return Words((), notes=(note,))
    why = "its words are transformers 5's alone"
    if speaks_v4(served):
        why = f"the folder's own promises only {served.layout.configured_length} tokens"
    return Words(
        (),
        config=both_dialects(served),
        config_name="config.json",
        notes=(f"put it over {served.name}/config.json: {why}.",),
        how="override",
    )


ENGINE = Engine("transformers4", "transformers 4", CHECKED, METHODS, say)
