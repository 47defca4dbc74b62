"""LMDeploy: two backends, of which the faster one has yarn wrong.

Source: lmdeploy/pytorch/nn/rotary_embedding.py, backends/default/rotary_embedding.py (run on a CPU)
and lmdeploy/turbomind/models/utils.py (its Python run, its C++ read at 0.16.0), release 0.18.0.
"""

import json
from collections.abc import Mapping
from typing import Any

from ropepatch.methods.longrope import LongRope
from ropepatch.methods.yarn import Yarn
from ropepatch.serving.base import Engine, Support, Words, refuse
from ropepatch.serving.classes import refuse_unknown
from ropepatch.serving.served import ServedModel
from ropepatch.serving.yarn_words import portable_temperature

CHECKED = (
    "LMDeploy 0.18.0, its Python rotary code run on a CPU without a server; TurboMind's C++ read "
    "at 0.16.0"
)
_NEAR = ("yarn", "ntk")
_PYTORCH = "--backend pytorch"

_SEEN = "llama mistral qwen2 qwen3 qwen2_moe qwen3_moe internlm2 internlm3 mixtral gemma3_text"
"""Model types whose classes hand the whole block to its rotary code."""

METHODS: Mapping[str, Support] = {
    "yarn": Support("override", f"{_PYTORCH}; TurboMind builds the ramp on the raised length"),
    "pi": Support("native"),
    "ntk": Support("native"),
    "dynamic-ntk": Support(
        "refused",
        "it counts by the batch, or by the prompt as it came, not by the input",
        _NEAR,
    ),
    "dynamic-yarn": Support("refused", "it has no type for it", _NEAR),
    "ntk-by-parts": Support("native"),
    "llama3": Support("native"),
    "longrope": Support("override", f"{_PYTORCH}; TurboMind has no such type"),
    "p-rope": Support("refused", "neither backend has transformers' type 'proportional'", _NEAR),
    "nope": Support("refused", "neither backend has transformers' type 'proportional'", _NEAR),
    "alibi": Support("refused", "no model of it hands such a bias on", _NEAR),
}


def say(served: ServedModel) -> Words:
    """`lmdeploy serve api_server` for the folder."""
    method, kind = served.method, served.model_type
    refuse_unknown("lmdeploy", served)
    if served.stops_pairs:
        refuse(METHODS["p-rope"].why, *_NEAR)
    if isinstance(method, LongRope) and served.longrope_words():
        refuse("its longrope takes the attention factor from the two lengths")
    if kind.startswith("gemma3") and served.row != "pi":
        why = "its class for Gemma 3 turns by 'linear' whatever is said"
        refuse(why, "pi")
    if len(served.layout.schedules) > 1 and not kind.startswith("gemma3"):
        why = f"it reads no rotation by layer type for '{kind}', and turns by rope_theta 10,000"
        refuse(why)
    command = ["lmdeploy", "serve", "api_server", served.name]
    flag = METHODS[served.row].how == "override" or kind.startswith("gemma3")
    if flag:
        command += ["--backend", "pytorch"]
    command += ["--session-len", str(served.target_length)]
    overrides = _overrides(served)
    if overrides:
        command += ["--hf-overrides", json.dumps(overrides)]
    notes = ["--rope-scaling-factor has no effect since 0.14.0."]
    if kind not in _SEEN.split():
        notes.append(f"what its class for '{kind}' hands on was not looked at.")
    return Words(
        (tuple(command),),
        overrides=overrides or None,
        notes=tuple(notes),
        how="override" if flag or overrides else "native",
    )


def _overrides(served: ServedModel) -> dict[str, Any]:
    """Nulls and a lone `mscale_all_dim` in words that it reads as transformers does."""
    words: dict[str, Any] = {}
    block = served.layout.schedules[next(iter(served.methods))].block
    if isinstance(served.method, Yarn) and block.get("mscale_all_dim") and not block.get("mscale"):
        words = portable_temperature(served.method, block)
    if not words and not served.loose:
        return {}
    return served.overrides({"rope_parameters": served.rope_parameters(words)})


ENGINE = Engine("lmdeploy", "LMDeploy", CHECKED, METHODS, say)
