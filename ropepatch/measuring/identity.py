"""What a model is, apart from what was done to it, and what tells it from another."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.converted import erase_conversion
from ropepatch.config_json.layout import Layout, read_layout
from ropepatch.config_json.plan import STAMP, erase_recipe
from ropepatch.errors import ConfigError
from ropepatch.runtime.words import is_converted


def layout_of(model: Any) -> Layout | None:
    """How a live model turned before it was patched or converted."""
    raw = json.loads(model.config.to_json_string(use_diff=False))
    try:
        return read_layout(as_it_was(raw))
    except ConfigError:
        return None  # nothing turns, or in a way that we do not know; it can be read all the same


def as_it_was(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config before ropepatch wrote into it."""
    if is_converted(raw):
        return erase_conversion(raw)
    return erase_recipe(raw) if STAMP in raw else raw


def print_of(model: Any) -> str:
    """What tells one live model from another: its shapes and a few of its numbers."""
    found = hashlib.sha256()
    for name, values in model.named_parameters():
        some = values.detach().flatten()[:16].double().cpu().tolist()
        found.update(json.dumps([name, list(values.shape), some]).encode())
    return found.hexdigest()[:16]
