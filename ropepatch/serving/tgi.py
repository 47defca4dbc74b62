"""TGI: reads transformers 4's words alone, and passes over 'linear' in silence.

Source: server/text_generation_server/layers/rotary.py and launcher/src/main.rs of 3.3.7 (the last
release; the project is in maintenance mode). Its rotary file was run on a CPU.
"""

from collections.abc import Mapping
from typing import Any

from ropepatch.methods.yarn import Yarn
from ropepatch.serving.base import Engine, Support, Words, refuse
from ropepatch.serving.classes import refuse_unknown
from ropepatch.serving.dialect import both_dialects, speaks_v4
from ropepatch.serving.served import ServedModel
from ropepatch.serving.yarn_words import portable_temperature, usual_ramp

CHECKED = "TGI 3.3.7 (the last release), its own rotary code run on a CPU without a server"
_NEAR = ("yarn", "ntk")
_WORDS = Support("override", "rope_scaling and rope_theta in config.json")
_NONE = "it has no such type and stops"

METHODS: Mapping[str, Support] = {
    "yarn": _WORDS,
    "pi": Support("refused", "its 'linear' does nothing, by config or by flag", _NEAR),
    "ntk": _WORDS,
    "dynamic-ntk": Support(
        "refused", "after one long batch it turns every input as if it were as long", _NEAR
    ),
    "dynamic-yarn": Support("refused", "it has no type for it", _NEAR),
    "ntk-by-parts": _WORDS,
    "llama3": _WORDS,
    "longrope": Support("refused", "it turns early tokens short and late ones long", _NEAR),
    "p-rope": Support("refused", _NONE, _NEAR),
    "nope": Support("refused", _NONE, _NEAR),
    "alibi": Support("refused", "its attention takes no bias on this class", _NEAR),
}


def say(served: ServedModel) -> Words:
    """`text-generation-launcher` for the folder, with a config in the words that it reads."""
    method, more = served.method, dict[str, Any]()
    refuse_unknown("tgi", served)
    if served.several_axes:
        refuse("it drops the axes of mrope under every type but 'mrope' itself")
    if served.stops_pairs:
        refuse(_NONE, *_NEAR)
    if isinstance(method, Yarn):
        if not usual_ramp(method):
            refuse("its yarn has one ramp (32, 1, ends rounded)", "yarn")
        if not served.layout.family.is_mla:
            label = next(iter(served.methods))
            more = portable_temperature(method, served.layout.schedules[label].block)
    length = served.target_length
    limits = ("--max-input-tokens", str(length - 1), "--max-total-tokens", str(length))
    command = ("text-generation-launcher", "--model-id", served.name, *limits)
    if speaks_v4(served) and not more and not served.loose:
        return Words((command,))
    why = "TGI reads no rope_parameters, and would serve it unscaled with rope_theta 10,000"
    if speaks_v4(served):
        why = "TGI reads other keys than transformers does"
    return Words(
        (command,),
        config=both_dialects(served, more),
        config_name="config.json",
        notes=(f"needs this config.json in {served.name}: {why}.",),
        how="override",
    )


ENGINE = Engine("tgi", "TGI", CHECKED, METHODS, say)
