"""SGLang: reads transformers' words, but not every key, and not in every model's class.

Source: sglang/srt/layers/rotary_embedding, sglang/srt/configs/model_config.py and the model files
of 0.5.23, on a CPU with the rest stubbed. Of `_THETA_ALONE`, mixtral, gemma, stablelm, starcoder2
and olmo ran; the others were read.
"""

import json
from collections.abc import Mapping
from typing import Any

from ropepatch.methods.longrope import LongRope
from ropepatch.methods.yarn import Yarn
from ropepatch.serving.base import Engine, Support, Words, refuse
from ropepatch.serving.classes import has_class
from ropepatch.serving.served import ServedModel
from ropepatch.serving.yarn_words import portable_temperature

CHECKED = "SGLang 0.5.23, its own rotary and config code run on a CPU without a server"
_NEAR = ("yarn", "ntk")

METHODS: Mapping[str, Support] = {
    "yarn": Support("native"),
    "pi": Support("native"),
    "ntk": Support("native"),
    "dynamic-ntk": Support(
        "refused", "its 'dynamic' is one fixed table, for the longest input", _NEAR
    ),
    "dynamic-yarn": Support("refused", "it has no type for it", _NEAR),
    "ntk-by-parts": Support("native"),
    "llama3": Support("native"),
    "longrope": Support("native"),
    "p-rope": Support("override", "partial_rotary_factor at the top of the config"),
    "nope": Support("override", "partial_rotary_factor at the top, and the class's own name"),
    "alibi": Support("refused", "its attention takes no bias on this class", _NEAR),
}

_THETA_ALONE = (
    "mixtral gemma stablelm starcoder2 olmo gemma2 phi persimmon granitemoe dbrx grok-1 gptj "
    "baichuan zaya muse_glimmer muse_spark spark2_5"
)
"""Model types whose classes hand no scaling to their rotation, and say nothing."""
_OWN_THETA = ("chatglm", "exaone4", "exaone_moe", "internlm2", "sdar")
"""Model types whose classes take the base from a key that transformers 5 lacks, or elsewhere."""
_WHOLE_THETA = ("mixtral", "starcoder2", "dbrx", "granitemoe")
"""Model types whose classes cut the base down to a whole number."""
_NESTED = ("gemma3", "gemma4", "mellum")
"""Beginnings of model types whose classes take one block per layer type."""
_STOPS = ("llama", "mistral")
"""Model types whose class was seen to hand on a fraction of pairs."""


def say(served: ServedModel) -> Words:
    """`sglang serve` for the folder."""
    _refuse_special(served)
    more = _more(served)
    text = {key: value for key, value in more.items() if key != "block"}
    if more:
        text["rope_parameters"] = served.rope_parameters(more.get("block"))
    if served.raises_length:
        text["max_position_embeddings"] = served.target_length
    overrides = served.overrides(text) if text else {}
    if served.architectures:
        overrides["architectures"] = list(served.architectures)
    return _words(served, served.name, overrides, ())


def say_original(served: ServedModel, model: str) -> Words:
    """The same for the model it was made from, with the whole block laid over its config."""
    _refuse_special(served)
    text = _more(served)
    block = served.rope_parameters(text.get("block"))
    rest = {key: value for key, value in text.items() if key != "block"}
    length = {"max_position_embeddings": served.target_length}
    overrides = served.overrides({**length, "rope_parameters": block, **rest})
    note = "the block is whole: older releases replace it, newer ones keep stale keys of the old."
    return _words(served, model, overrides, (note,))


def _words(
    served: ServedModel, model: str, overrides: Mapping[str, Any], notes: tuple[str, ...]
) -> Words:
    command = ["sglang", "serve", "--model-path", model]
    command += ["--context-length", str(served.target_length)]
    if overrides:
        command += ["--json-model-override-args", json.dumps(overrides)]
    if isinstance(served.method, LongRope):
        notes = (
            *notes,
            "SGLang keeps the long table in the model's own 16 bits, and switches to it one token "
            "later than transformers.",
        )
    if served.model_type in _WHOLE_THETA:
        note = f"SGLang's class for '{served.model_type}' cuts rope_theta down to a whole number."
        notes = (*notes, note)
    if not has_class("sglang", served):
        note = f"SGLang has no class of its own for '{served.outer_type}', and runs transformers'."
        notes = (*notes, note)
    return Words(
        (tuple(command),),
        overrides=overrides or None,
        notes=notes,
        how="override" if overrides else "native",
    )


def _more(served: ServedModel) -> dict[str, Any]:
    """Words besides transformers' own: under `block` those of the block, the others at the top."""
    method = served.method
    words: dict[str, Any] = served.longrope_words()
    # its Gemma 3 is a copy of transformers' class, which reads attention_factor itself
    copied = served.model_type == "gemma3_text" or served.layout.family.is_mla
    if isinstance(method, Yarn) and not copied:
        label = next(iter(served.methods))
        words = portable_temperature(method, served.layout.schedules[label].block)
        if words and served.several_axes:
            refuse("with the axes of mrope its yarn stops at the keys of an attention factor")
    found: dict[str, Any] = {"block": words} if words or served.loose else {}
    if served.row in ("p-rope", "nope"):
        block = next(iter(served.blocks().values()))
        found["partial_rotary_factor"] = block["partial_rotary_factor"]
    return found


def _refuse_special(served: ServedModel) -> None:
    kind, method = served.model_type, served.method
    if method.name == "pi" and served.stops_pairs:
        refuse("it stops the pairs and passes over their factor")
    if kind in _OWN_THETA:
        refuse(f"its class for '{kind}' reads no rope_theta from these words, in silence")
    if kind in _THETA_ALONE.split() and served.row != "ntk":
        refuse(f"its class for '{kind}' hands only rope_theta on, in silence")
    if kind.startswith("gemma4") and served.row != "ntk":
        refuse("its class for Gemma 4 drops every factor")
    if len(served.layout.schedules) > 1 and not kind.startswith(_NESTED):
        refuse(f"its class for '{kind}' takes no blocks by layer type")
    if served.row in ("p-rope", "nope") and kind not in _STOPS:
        refuse(f"whether its class for '{kind}' stops pairs was not seen", known=False)
    if served.layout.family.is_mla and served.row != "ntk":
        fits = isinstance(method, Yarn) and method.attention_factor is None and method.truncate
        if not fits:
            refuse("its latent attention takes every type for DeepSeek's yarn")


ENGINE = Engine("sglang", "SGLang", CHECKED, METHODS, say, say_original)
