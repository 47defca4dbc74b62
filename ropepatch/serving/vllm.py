"""vLLM: reads transformers' words as they are; what it makes of each was run from its source.

Source: vllm/model_executor/layers/rotary_embedding, `_get_and_verify_max_len` of
vllm/config/model.py and vllm/transformers_utils/config.py, 0.33.0, on a CPU with the rest stubbed.
"""

import json
from collections.abc import Mapping
from typing import Any

from ropepatch.methods.longrope import LongRope
from ropepatch.methods.p_rope import PRope
from ropepatch.methods.pi import PositionInterpolation
from ropepatch.methods.yarn import Yarn
from ropepatch.serving.base import Engine, How, Support, Words, refuse
from ropepatch.serving.served import ServedModel
from ropepatch.serving.yarn_words import own_temperature

CHECKED = (
    "vLLM 0.33.0, its own rotary and config code run on a CPU without a server; reads alike since "
    "0.30.0 (attention factors) and 0.24.0 (transformers 5's words)"
)
_STATIC = "its 'dynamic' is one fixed table, and since 0.22 an unscaled one"
_NEAR = ("yarn", "ntk")

METHODS: Mapping[str, Support] = {
    "yarn": Support("native"),
    "pi": Support("native"),
    "ntk": Support("native"),
    "dynamic-ntk": Support("refused", _STATIC, _NEAR),
    "dynamic-yarn": Support("refused", "it has no type for it", _NEAR),
    "ntk-by-parts": Support("native"),
    "llama3": Support("native"),
    "longrope": Support("native"),
    "p-rope": Support("native"),
    "nope": Support("override", "a fraction of pairs too small for one, and the class's own name"),
    "alibi": Support("refused", "its attention takes no bias on this class", _NEAR),
}

_OWN_BLOCKS = ("chatglm", "mimo_v2", "minimax_m3", "muse_spark")
"""Model types whose classes build their rotation without the config's block."""


def say(served: ServedModel) -> Words:
    """`vllm serve` for the folder; nothing is laid over its config where it is read as it is."""
    _refuse_special(served)
    overrides = _overrides(served)
    return _words(served, served.name, overrides, METHODS[served.row].how, ())


def say_original(served: ServedModel, model: str) -> Words:
    """The same for the model it was made from: the whole block, and the length, laid over."""
    _refuse_special(served)
    text: dict[str, Any] = {"rope_parameters": served.rope_parameters(_more(served))}
    text["max_position_embeddings"] = served.target_length
    overrides = served.overrides(text)
    note = "the block is whole: vLLM replaces it, and takes rope_theta for 10,000 where it lacks."
    return _words(served, model, overrides, "override", (note,))


def _words(
    served: ServedModel,
    model: str,
    overrides: Mapping[str, Any],
    how: How,
    notes: tuple[str, ...],
) -> Words:
    command = ["vllm", "serve", model, "--max-model-len", str(served.target_length)]
    if overrides:
        command += ["--hf-overrides", json.dumps(overrides)]
        how = "override"
    all_notes = (*notes, *_notes(served))
    return Words((tuple(command),), overrides=overrides or None, notes=all_notes, how=how)


def _more(served: ServedModel) -> dict[str, Any]:
    """What a block must say besides transformers' words."""
    method = served.method
    if isinstance(method, LongRope) and method.attention_factor is not None:
        # vLLM passes over attention_factor, and reads these
        return dict.fromkeys(("short_mscale", "long_mscale"), method.attention_factor)
    if served.row == "nope":  # 0.0 is refused; this leaves no pair, in transformers too
        return {"partial_rotary_factor": 1.0 / served.head_dim}
    return {}


def _overrides(served: ServedModel) -> dict[str, Any]:
    text: dict[str, Any] = {}
    more = _more(served)
    if more or _whole_factor(served):
        text["rope_parameters"] = served.rope_parameters(more)
    if served.raises_length:
        text["max_position_embeddings"] = served.target_length
    found = served.overrides(text) if text else {}
    if served.architectures:
        found["architectures"] = list(served.architectures)
    return found


def _whole_factor(served: ServedModel) -> bool:
    """A linear factor written without a decimal point: vLLM stops at it."""
    text = served.text
    for key in ("rope_parameters", "rope_scaling"):
        block = text.get(key)
        if isinstance(block, Mapping):
            inner = [block, *(b for b in block.values() if isinstance(b, Mapping))]
            if any(isinstance(b.get("factor"), int) for b in inner):
                return True
    return False


def _refuse_special(served: ServedModel) -> None:
    method, kind = served.method, served.model_type
    if isinstance(method, PositionInterpolation | PRope) and served.row != "nope":
        stops = served.layout.schedules[next(iter(served.methods))].block.get("rope_type")
        if stops == "proportional" and method.factor != 1 and method.name == "pi":
            refuse("vLLM", served, "it stops the pairs and passes over their factor", ("pi",))
    if kind in _OWN_BLOCKS:
        refuse("vLLM", served, f"its class for '{kind}' builds a rotation of its own", ())
    if kind == "gpt_oss":
        plain = isinstance(method, Yarn) and method.attention_factor is None and not method.mscale
        if not plain:
            why = "its class for 'gpt_oss' always turns by yarn, with the usual attention factor"
            refuse("vLLM", served, why, ("yarn",))
    if served.layout.family.is_mla and served.row != "ntk":
        fits = isinstance(method, Yarn) and method.attention_factor is None and method.truncate
        if not fits:
            why = "its latent attention takes every type for DeepSeek's yarn"
            refuse("vLLM", served, why, ("yarn", "ntk"))
    sections = any("mrope_section" in b for b in served.blocks().values())
    if sections and served.row not in ("ntk",):
        why = "with the axes of mrope it builds yarn's ramp on four times the length, or none"
        refuse("vLLM", served, why, ("ntk",))


def _notes(served: ServedModel) -> tuple[str, ...]:
    notes = []
    method = served.method
    if isinstance(method, LongRope):
        notes.append(
            f"vLLM takes the long factors for every prompt when --max-model-len is above "
            f"{served.trained_length}, and the short ones for every prompt otherwise."
        )
    if served.layout.dialect == "v5":
        notes.append(
            "below vLLM 0.24 transformers 4 may be installed, which loses rope_theta from these "
            "words in silence: `extend --dialect both` serves those too."
        )
    if isinstance(method, Yarn) and own_temperature(method) is not None:
        notes.append("vLLM reads the attention factor since 0.30.0; below, it takes the usual one.")
    return tuple(notes)


ENGINE = Engine("vllm", "vLLM", CHECKED, METHODS, say, say_original)
