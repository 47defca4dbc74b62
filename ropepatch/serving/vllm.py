"""vLLM: reads transformers' words as they are; what it makes of each was run from its source.

Source: vllm/model_executor/layers/rotary_embedding, `_get_and_verify_max_len` of
vllm/config/model.py and vllm/transformers_utils/config.py, 0.33.0, on a CPU with the rest stubbed.
"""

import json
from collections.abc import Mapping
from typing import Any

from ropepatch.methods.longrope import LongRope
from ropepatch.methods.yarn import Yarn
from ropepatch.serving.base import Engine, How, Support, Words, refuse
from ropepatch.serving.classes import has_class
from ropepatch.serving.served import ServedModel
from ropepatch.serving.yarn_words import own_temperature

CHECKED = (
    "vLLM 0.33.0, its own rotary and config code run on a CPU without a server; reads alike since "
    "0.30.0 (attention factors) and 0.24.0 (transformers 5's words)"
)
_STATIC = "its 'dynamic' is one fixed table, and since 0.22 one that is not scaled at all"
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
    if served.row == "nope":  # 0.0 is refused; this leaves no pair, in transformers too
        return {"partial_rotary_factor": 1.0 / served.head_dim}
    return dict(served.longrope_words())


def _overrides(served: ServedModel) -> dict[str, Any]:
    text: dict[str, Any] = {}
    more = _more(served)
    if more or served.loose:
        text["rope_parameters"] = served.rope_parameters(more)
    if served.raises_length:
        text["max_position_embeddings"] = served.target_length
    found = served.overrides(text) if text else {}
    if served.architectures:
        found["architectures"] = list(served.architectures)
    return found


def _refuse_special(served: ServedModel) -> None:
    method, kind = served.method, served.model_type
    if served.stops_pairs and method.name == "pi":
        refuse("it stops the pairs and passes over their factor")
    if kind in _OWN_BLOCKS:
        refuse(f"its class for '{kind}' builds a rotation of its own")
    if kind == "gpt_oss":
        plain = isinstance(method, Yarn) and method.attention_factor is None and not method.mscale
        if not plain:
            refuse("its class for 'gpt_oss' always turns by yarn, with the usual attention factor")
    if served.layout.family.is_mla and served.row != "ntk":
        fits = isinstance(method, Yarn) and method.attention_factor is None and method.truncate
        if not fits:
            refuse("its latent attention takes every type for DeepSeek's yarn")
    if served.several_axes and served.row != "ntk":
        refuse("with the axes of mrope it builds yarn's ramp on four times the length, or none")
    nested = "truncate" in served.rope_parameters() and len(served.layout.schedules) > 1
    if nested and not kind.startswith("gemma3"):
        refuse("its length code stops at the 'truncate' that stands beside blocks by layer type")


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
    warm = isinstance(method, Yarn) and own_temperature(method) is not None
    if warm and not served.layout.family.is_mla:
        notes.append("vLLM reads the attention factor since 0.30.0; below, it takes the usual one.")
    if not has_class("vllm", served):
        notes.append(
            f"vLLM has no class of its own for '{served.outer_type}': its Transformers backend "
            "turns as transformers does (read, not run)."
        )
    return tuple(notes)


ENGINE = Engine("vllm", "vLLM", CHECKED, METHODS, say, say_original)
