"""The stamp of a conversion in a config.json: read, checked, and taken out again."""

from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.paths import Config, text_part
from ropepatch.conversion import ConversionRecipe
from ropepatch.errors import ConfigError, RecipeError
from ropepatch.families.biases import NATIVE
from ropepatch.runtime.words import STAMP, checked_stamp, in_memory, is_converted

_LENGTHS = {"max_position_embeddings", *(native.length_key for native in NATIVE.values())}


def read_conversion(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The stamp of a conversion, if a config carries one.

    Raises:
        ConfigError: it is damaged.
    """
    if not is_converted(config):
        return None
    try:
        stamp = checked_stamp(config)
    except ValueError as error:
        raise ConfigError(f"{error}.") from None
    before = stamp["before"]
    whole = all(value is None or type(value) is int for value in before.values())
    try:
        ConversionRecipe.from_words(stamp["conversion"])
    except RecipeError:
        whole = False
    if not whole or not set(before) <= _LENGTHS:
        raise ConfigError("the stamp of ropepatch in config.json is damaged.")
    return stamp


def erase_conversion(config: Mapping[str, Any]) -> Config:
    """The config as it was before it was converted.

    Raises:
        ConfigError: the stamp is damaged.
    """
    stamp = read_conversion(config)
    if stamp is None:
        raise ConfigError("config.json carries no conversion of ropepatch.")
    restored = in_memory(config)
    restored["architectures"] = stamp["base"]["architectures"]
    for key in (STAMP, "auto_map"):
        restored.pop(key, None)
    if restored.get("architectures") is None:
        restored.pop("architectures", None)
    text: Any = text_part(restored, tuple(stamp["path"]))
    for key, value in stamp["before"].items():
        if value is None:
            text.pop(key, None)
        else:
            text[key] = value
    return restored
