"""The config of a live model while it is patched: a copy, so that the very object can return.

Models of one config object share it, and so may a user; none of them must see the change.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from ropepatch.config_json.paths import text_part
from ropepatch.config_json.plan import POSITION_KEYS, STAMP
from ropepatch.config_json.write import Change


class ConfigSwap:
    """The copies that stand in a model, and the originals they stand for."""

    def __init__(
        self,
        root: PreTrainedModel,
        path: tuple[str, ...],
        values: Mapping[str, Any],
        stamp: Mapping[str, Any],
    ) -> None:
        """Make the copies and write the change into them; nothing stands in the model yet.

        Args:
            root: The model.
            path: Keys that lead to the text part of its config.
            values: New values of that part.
            stamp: What undoes them after a save.
        """
        memo: dict[int, Any] = {}
        self.config = copy.deepcopy(root.config, memo)
        self.pairs = [
            (old, memo[id(old)])
            for old in _configs(root.config)
            if isinstance(memo.get(id(old)), PreTrainedConfig)
        ]
        """(original, copy), for the config and each part of it."""
        text = text_config_of(self.config, path)
        for key, value in values.items():
            setattr(text, key, copy.deepcopy(value))
        setattr(self.config, STAMP, copy.deepcopy(dict(stamp)))
        self.seen = [dict(new.__dict__) for _, new in self.pairs]
        self.holders: list[tuple[torch.nn.Module, Any, Any]] = []

    def apply(self, outer: torch.nn.Module) -> None:
        """Let every module within that holds an original hold its copy."""
        copies = {id(old): new for old, new in self.pairs}
        for module in outer.modules():
            held = module.__dict__.get("config")
            new = copies.get(id(held))
            if new is not None:
                self.holders.append((module, held, new))
                module.__dict__["config"] = new

    def revert(self) -> None:
        """Put the originals back, with whatever somebody else has set meanwhile."""
        for (old, new), seen in zip(self.pairs, self.seen, strict=True):
            for key, value in new.__dict__.items():
                changed = key not in seen or seen[key] is not value
                if changed and not isinstance(value, PreTrainedConfig):
                    old.__dict__[key] = value
        for module, held, new in self.holders:
            if module.__dict__.get("config") is new:
                module.__dict__["config"] = held
        self.holders.clear()


def new_positions(change: Change) -> dict[str, Any]:
    """What a change writes into the text part of a config."""
    path = change.layout.path
    before, after = text_part(change.before, path), text_part(change.after, path)
    return {
        key: after[key]
        for key in POSITION_KEYS
        if key in after and (key not in before or after[key] != before[key])
    }


def _configs(config: PreTrainedConfig) -> list[PreTrainedConfig]:
    """A config and its parts, however deep."""
    found = [config]
    for value in config.__dict__.values():
        if isinstance(value, PreTrainedConfig):
            found += _configs(value)
    return found


def text_config_of(config: PreTrainedConfig, path: tuple[str, ...]) -> PreTrainedConfig:
    """The config object of the text part."""
    part: Any = config
    for key in path:
        part = getattr(part, key)
    found: PreTrainedConfig = part
    return found
