"""Where in a `config.json` the text model's numbers stand."""

from collections.abc import Mapping
from typing import Any

from ropepatch.errors import ConfigError
from ropepatch.families.table import Family, family_of, is_family, text_type

Config = dict[str, Any]

_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")


def text_path(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys that lead to the text model's part; empty where it is the file itself."""
    path: tuple[str, ...] = ()
    part = config
    while not is_family(str(part.get("model_type"))):
        for key in _TEXT_KEYS:
            if isinstance(part.get(key), Mapping):
                path, part = (*path, key), part[key]
                break
        else:
            break
    return path


def text_part(config: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """The part at `path`."""
    part: Mapping[str, Any] = config
    for key in path:
        part = part[key]
    return part


def family_at(config: Mapping[str, Any], path: tuple[str, ...]) -> Family:
    """The family of the text part, by its own model type or its parent's.

    Raises:
        ConfigError: no model type anywhere, or one without rotary embeddings.
    """
    part = text_part(config, path)
    parent = text_part(config, path[:-1]) if path else config
    model_type = part.get("model_type") or text_type(str(parent.get("model_type")))
    if not isinstance(model_type, str) or model_type == "None":
        raise ConfigError("config.json names no model_type; is this a transformers checkpoint?")
    return family_of(model_type if is_family(model_type) else text_type(model_type))
