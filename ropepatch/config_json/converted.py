"""The stamp of a conversion in a config.json: read, checked, and taken out again."""

import copy
from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.paths import Config, text_part
from ropepatch.errors import ConfigError
from ropepatch.families.biases import NATIVE
from ropepatch.runtime.words import STAMP, in_memory, is_converted

_LENGTHS = {"max_position_embeddings", *(native.length_key for native in NATIVE.values())}


def read_conversion(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The stamp of a conversion, if a config carries one.

    Raises:
        ConfigError: it is damaged.
    """
    if not is_converted(config):
        return None
    stamp: dict[str, Any] = config[STAMP]
    layers, slopes = stamp.get("layers"), stamp.get("slopes")
    lengths = [stamp.get("trained_length"), stamp.get("target_length")]
    base = stamp.get("base")
    good = (
        isinstance(stamp.get("conversion"), Mapping)
        and isinstance(stamp.get("before"), Mapping)
        and set(stamp["before"]) <= _LENGTHS
        and isinstance(stamp.get("path"), list)
        and isinstance(base, Mapping)
        and isinstance(base.get("model_type"), str)
        and isinstance(layers, Mapping)
        and all(layers.get(k) == "all" or _is_layers(layers.get(k)) for k in ("alibi", "nope"))
        and isinstance(slopes, Mapping)
        and set(slopes) == {"heads", "bias_max", "scale"}
        and all(type(length) is int and length > 0 for length in lengths)
    )
    if not good:
        raise ConfigError("the stamp of ropepatch in config.json is damaged.")
    return stamp


def _is_layers(value: Any) -> bool:
    return isinstance(value, list) and all(type(layer) is int for layer in value)


def erase_conversion(config: Mapping[str, Any]) -> Config:
    """The config as it was before it was converted.

    Raises:
        ConfigError: the stamp is damaged.
    """
    stamp = read_conversion(config)
    if stamp is None:
        raise ConfigError("config.json carries no conversion of ropepatch.")
    try:
        restored = in_memory(config)
        for key in (STAMP, "auto_map"):
            restored.pop(key, None)
        if restored["architectures"] is None:
            del restored["architectures"]
        text: Any = text_part(restored, tuple(stamp["path"]))
        text.update(copy.deepcopy(dict(stamp["before"])))
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            "the stamp of ropepatch names a part that config.json no longer has."
        ) from None
    return restored
