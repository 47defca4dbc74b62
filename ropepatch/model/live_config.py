"""Putting a change into the config object of a live model, and taking it out again."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from ropepatch.config_json.paths import text_part
from ropepatch.config_json.plan import POSITION_KEYS, STAMP
from ropepatch.config_json.write import Change

_ABSENT = object()


class ConfigEdit:
    """The attributes that were set, with what stood there before."""

    def __init__(self) -> None:
        """Nothing is set yet."""
        self.undo: list[tuple[PreTrainedConfig, str, Any]] = []

    def put(self, config: PreTrainedConfig, key: str, value: Any) -> None:
        """Set one attribute, by the name that its class keeps it under."""
        key = type(config).attribute_map.get(key, key)
        self.undo.append((config, key, config.__dict__.get(key, _ABSENT)))
        setattr(config, key, value)

    def revert(self) -> None:
        """Put the very objects back."""
        for config, key, old in reversed(self.undo):
            if old is _ABSENT:
                config.__dict__.pop(key, None)
            else:
                config.__dict__[key] = old
        self.undo.clear()

    def __reduce__(self) -> Any:
        """Copy by value; "absent" must stay the one object it is compared with."""
        words = [
            (c, k, old is not _ABSENT, None if old is _ABSENT else old) for c, k, old in self.undo
        ]
        return _rebuilt, (words,)


def _rebuilt(words: list[tuple[PreTrainedConfig, str, bool, Any]]) -> ConfigEdit:
    edit = ConfigEdit()
    edit.undo = [(c, k, old if there else _ABSENT) for c, k, there, old in words]
    return edit


def text_config_of(config: PreTrainedConfig, path: tuple[str, ...]) -> PreTrainedConfig:
    """The config object of the text part."""
    part: Any = config
    for key in path:
        part = getattr(part, key)
    found: PreTrainedConfig = part
    return found


def put_change(
    config: PreTrainedConfig, others: Mapping[int, PreTrainedConfig], change: Change
) -> ConfigEdit:
    """Set what a change says, so that a save writes it.

    Args:
        config: Of the whole model.
        others: Further config objects of the text part that its modules hold.
        change: As `write_live` made it.
    """
    edit = ConfigEdit()
    path = change.layout.path
    before, after = text_part(change.before, path), text_part(change.after, path)
    text = text_config_of(config, path)
    for part in (text, *(c for c in others.values() if c is not text)):
        for key in POSITION_KEYS:
            if key in after and (key not in before or after[key] != before[key]):
                edit.put(part, key, after[key])
    edit.put(config, STAMP, change.after[STAMP])
    return edit
