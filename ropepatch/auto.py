"""`import ropepatch` lets transformers' auto classes load converted checkpoints.

transformers takes seconds to import and may never be needed, so the registration waits until it
is there.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

from ropepatch.runtime.words import MODEL_TYPE

_AWAITED = "transformers.models.auto.configuration_auto"


def register_when_loaded() -> None:
    """Register now if transformers' auto classes are loaded, else as soon as they are."""
    loaded = sys.modules.get(_AWAITED)
    if loaded is not None:
        _register(loaded)
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


def _register(auto: ModuleType) -> None:
    from ropepatch.runtime.any_config import AnyConvertedConfig

    auto.CONFIG_MAPPING.register(MODEL_TYPE, AnyConvertedConfig, exist_ok=True)


class _Waiting(importlib.abc.MetaPathFinder):
    """Looks on while one module is imported, and is gone afterwards."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that anybody else finds, with our step after it."""
        if fullname != _AWAITED:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader)
        return spec


class _Then(importlib.abc.Loader):
    """A loader, and the registration once it is done."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        """Load by `loader`."""
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the loader does, then register."""
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, _Waiting)]
        _register(module)
