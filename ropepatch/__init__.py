"""ropepatch: a longer context for pretrained language models with rotary position embeddings."""

import importlib
from typing import TYPE_CHECKING, Any

from ropepatch._version import __version__
from ropepatch.auto import register_when_loaded

if TYPE_CHECKING:
    from ropepatch.config_json.layout import read_layout
    from ropepatch.conversion import ConversionRecipe
    from ropepatch.converting import convert_checkpoint
    from ropepatch.errors import RopepatchError
    from ropepatch.exporting import export
    from ropepatch.extending import extend, inspect, restore
    from ropepatch.geometry import Frequencies, RotaryGeometry
    from ropepatch.gguf_extending import extend_gguf, inspect_gguf, restore_gguf
    from ropepatch.healing.plan import HealPlan
    from ropepatch.loading import load
    from ropepatch.merging import merge
    from ropepatch.methods.table import METHODS
    from ropepatch.model.conversions import Conversion
    from ropepatch.model.converting import convert, revert
    from ropepatch.model.handle import Patch
    from ropepatch.model.patching import patch, patch_of
    from ropepatch.recipe import Recipe
    from ropepatch.recovering.running import heal
    from ropepatch.verifying import verify

_WHERE = {
    "Conversion": "ropepatch.model.conversions",
    "ConversionRecipe": "ropepatch.conversion",
    "METHODS": "ropepatch.methods.table",
    "Patch": "ropepatch.model.handle",
    "Frequencies": "ropepatch.geometry",
    "HealPlan": "ropepatch.healing.plan",
    "Recipe": "ropepatch.recipe",
    "RopepatchError": "ropepatch.errors",
    "RotaryGeometry": "ropepatch.geometry",
    "convert": "ropepatch.model.converting",
    "convert_checkpoint": "ropepatch.converting",
    "export": "ropepatch.exporting",
    "extend": "ropepatch.extending",
    "extend_gguf": "ropepatch.gguf_extending",
    "heal": "ropepatch.recovering.running",
    "inspect": "ropepatch.extending",
    "inspect_gguf": "ropepatch.gguf_extending",
    "load": "ropepatch.loading",
    "merge": "ropepatch.merging",
    "patch": "ropepatch.model.patching",
    "patch_of": "ropepatch.model.patching",
    "read_layout": "ropepatch.config_json.layout",
    "restore": "ropepatch.extending",
    "restore_gguf": "ropepatch.gguf_extending",
    "revert": "ropepatch.model.converting",
    "verify": "ropepatch.verifying",
}

__all__ = [
    "METHODS",
    "Conversion",
    "ConversionRecipe",
    "Frequencies",
    "HealPlan",
    "Patch",
    "Recipe",
    "RopepatchError",
    "RotaryGeometry",
    "__version__",
    "convert",
    "convert_checkpoint",
    "export",
    "extend",
    "extend_gguf",
    "heal",
    "inspect",
    "inspect_gguf",
    "load",
    "merge",
    "patch",
    "patch_of",
    "read_layout",
    "restore",
    "restore_gguf",
    "revert",
    "verify",
]

register_when_loaded()


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that importing costs nothing."""
    if name not in _WHERE:
        raise AttributeError(f"module 'ropepatch' has no attribute '{name}'")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
