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
_MOST_LAYERS = 100_000


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
        text |= stopping_blocks(stamp["blocks"])
    for key in stamp.get("native", {}).get("heads", ()):  # no rotary type to stop at
        if key in text:
            stamp["blocks"][key] = text[key]
            text[key] = ROPE_TYPE
    if stamp["path"] and text.get("architectures"):  # llama.cpp's converter goes by these
        stamp["blocks"]["architectures"] = text["architectures"]
        text["architectures"] = [PREFIX + name for name in text["architectures"]]
    return found


def stopping_blocks(blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary words that every reader stops at, in the place of these."""
    stop = {"rope_type": ROPE_TYPE, "type": ROPE_TYPE}
    before = blocks.get("rope_parameters") or {}
    nested = [label for label, block in before.items() if isinstance(block, Mapping)]
    return {
        "rope_parameters": {label: dict(stop) for label in nested} or dict(stop),
        "rope_scaling": dict(stop),  # transformers 4 looks here
    }


def in_memory(words: Mapping[str, Any]) -> dict[str, Any]:
    """What the model's own class is to read; `on_disk` undone, but for the way to the code.

    Raises:
        ValueError: the stamp is damaged.
    """
    found = copy.deepcopy(dict(words))
    if found.get("model_type") != MODEL_TYPE:
        return found
    stamp = checked_stamp(found)
    found["model_type"] = stamp["base"]["model_type"]
    text = part_of(found, stamp["path"])
    for key in _BLOCKS:
        text.pop(key, None)
    text.update(stamp.pop("blocks"))
    return found


def checked_stamp(words: Mapping[str, Any]) -> dict[str, Any]:
    """The stamp of a converted model's config, as it is on disk or in memory.

    Raises:
        ValueError: it is damaged.
    """
    stamp: Any = words.get(STAMP)
    try:
        good = is_converted(words) and _is_whole(words, stamp)
    except (KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise ValueError("the stamp of ropepatch in config.json is damaged")
    whole: dict[str, Any] = stamp
    return whole


def _is_whole(words: Mapping[str, Any], stamp: dict[str, Any]) -> bool:
    """Whether everything in it is of its kind."""
    base, slopes, native = stamp["base"], stamp["slopes"], stamp.get("native")
    lists = [stamp["path"], *base["classes"], *base["classes"].values()]
    lists += [base["model_type"], base["class"], *(base["architectures"] or ())]
    heads = [*slopes["heads"], stamp["trained_length"], stamp["target_length"]]
    numbers = [slopes["bias_max"], slopes["scale"], stamp["factor"]]
    allowed = {*_BLOCKS, *(("architectures",) if stamp["path"] else ())}
    if native is not None:
        allowed |= set(_names(native["heads"]))
        lists += [*_names(native["classes"]), *_names(native["arguments"])]
    blocks = stamp.get("blocks")
    on_disk_now = words.get("model_type") == MODEL_TYPE
    return (
        all(isinstance(word, str) for word in [*lists[1:], *_names(stamp["path"])])
        and all(name.isidentifier() for name in [base["class"], *base["classes"].values()])
        and base["model_type"] != MODEL_TYPE
        and all(type(number) is int and number > 0 for number in heads)
        and all(isinstance(n, float) or type(n) is int for n in numbers)
        and all(0 < n < 2.0**64 for n in numbers)
        and isinstance(stamp["conversion"], dict)
        and set(slopes) == {"heads", "bias_max", "scale"}
        and stamp["kernel"] in ("auto", "channels", "mask", "flex", "flash")
        and set(stamp["layers"]) == {"alibi", "nope"}
        and all(_are_layers(layers) for layers in stamp["layers"].values())
        and isinstance(stamp["before"], dict)
        and not {STAMP, "auto_map", *_BLOCKS} & set(stamp["path"])
        and isinstance(part_of(words, stamp["path"]), dict)
        and (isinstance(blocks, dict) if on_disk_now else blocks is None)
        and set(blocks or ()) <= allowed
        and all(isinstance((blocks or {}).get(key), dict | None) for key in _BLOCKS)
    )


def _names(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _are_layers(value: Any) -> bool:
    return value == "all" or all(type(n) is int and 0 <= n < _MOST_LAYERS for n in _names(value))


def is_converted(words: Mapping[str, Any]) -> bool:
    """Whether a config carries the stamp of a conversion."""
    stamp = words.get(STAMP)
    return isinstance(stamp, Mapping) and "conversion" in stamp


def part_of(config: Any, path: list[str]) -> Any:
    """The text part of a config."""
    for key in path:
        config = config[key]
    return config
