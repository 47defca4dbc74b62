"""A converted model's config.json, and what it means to the model's own class.

On disk it has a model type, a class and a rotary type that nobody else knows: whatever reads it
without the code for it stops, in place of running on as if nothing had been converted.
"""

import copy
from collections.abc import Mapping
from typing import Any

STAMP = "ropepatch"
MODEL_TYPE = "ropepatch_converted"
ROPE_TYPE = "ropepatch.converted"
MODULE = "modeling_ropepatch"
"""The Python file beside the weights."""
PREFIX = "Converted"
"""Before the names of the model's own classes."""

_BLOCKS = ("rope_parameters", "rope_scaling")


def on_disk(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words of config.json for a converted model; others are left as they are."""
    found = copy.deepcopy(dict(words))
    stamp: Any = found.get(STAMP)
    if not is_converted(found) or found.get("model_type") == MODEL_TYPE:
        return found
    base = stamp["base"]
    stamp["kernel"] = "auto"  # a matter of the machine, not of the checkpoint
    found["model_type"] = MODEL_TYPE
    found["architectures"] = [PREFIX + base["classes"].get("AutoModelForCausalLM", base["class"])]
    found["auto_map"] = {
        auto: f"{MODULE}.{PREFIX}{name}" for auto, name in sorted(base["classes"].items())
    }
    text = part_of(found, stamp["path"])
    stamp["blocks"] = {key: text[key] for key in _BLOCKS if key in text}
    if stamp["blocks"] or "max_position_embeddings" in text:
        for key in _BLOCKS:  # readers of transformers 4 look at the second
            text[key] = {"rope_type": ROPE_TYPE, "type": ROPE_TYPE}
    for key in stamp.get("native", {}).get("heads", ()):  # no rotary type to stop at
        if key in text:
            stamp["blocks"][key] = text[key]
            text[key] = ROPE_TYPE
    if stamp["path"] and text.get("architectures"):  # llama.cpp's converter goes by these
        stamp["blocks"]["architectures"] = text["architectures"]
        text["architectures"] = [PREFIX + name for name in text["architectures"]]
    return found


def in_memory(words: Mapping[str, Any]) -> dict[str, Any]:
    """What the model's own class is to read; `on_disk` undone, but for the way to the code."""
    found = copy.deepcopy(dict(words))
    if found.get("model_type") != MODEL_TYPE or not is_converted(found):
        return found
    stamp = found[STAMP]
    found["model_type"] = stamp["base"]["model_type"]
    found["architectures"] = stamp["base"]["architectures"]
    text = part_of(found, stamp["path"])
    for key in _BLOCKS:
        text.pop(key, None)
    text.update(stamp.pop("blocks", {}))
    return found


def is_converted(words: Mapping[str, Any]) -> bool:
    """Whether a config carries the stamp of a conversion."""
    stamp = words.get(STAMP)
    return isinstance(stamp, Mapping) and "conversion" in stamp


def part_of(config: Any, path: list[str]) -> Any:
    """The text part of a config."""
    for key in path:
        config = config[key]
    return config
