"""vLLM's rotary package, its merge of overrides, and its rule for the length, on a CPU.

Real: the package vllm/model_executor/layers/rotary_embedding, whole; and by name, unchanged, what
`_config_code` lists. Stubs: every other vllm module (empty, any attribute a mock; never part of a
number), `CustomOp` (a plain module), the platform (a CPU), the current config (its max_model_len).
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import nn
from transformers import AutoConfig, configuration_utils

from tests.serving.engines.source import cut

_ROPE = "vllm.model_executor.layers.rotary_embedding"


class _Stub(ModuleType):
    """A module that has every attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _CustomOp(nn.Module):
    def __init__(self, **_: Any) -> None:
        super().__init__()

    @classmethod
    def enabled(cls) -> bool:
        return False

    @classmethod
    def register(cls, name: str, **_: Any) -> Callable[[Any], Any]:
        return lambda decorated: decorated


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the rotary package in the sources, and a stub for everything else of vllm."""

    def __init__(self, engine: "VLLM") -> None:
        self.engine = engine

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] != "vllm":
            return None
        if fullname != _ROPE and not fullname.startswith(f"{_ROPE}."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        place = self.engine.source.joinpath(*fullname.split("."))
        if not place.is_dir():
            return importlib.util.spec_from_file_location(fullname, place.with_suffix(".py"))
        inside = [str(place)]
        init = place / "__init__.py"
        return importlib.util.spec_from_file_location(
            fullname, init, submodule_search_locations=inside
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        named: Any = module
        if module.__name__ == "vllm.model_executor.custom_op":
            named.CustomOp = named.PluggableLayer = _CustomOp
        if module.__name__ == "vllm.config":
            named.get_current_vllm_config = lambda: SimpleNamespace(model_config=self.engine)
        if module.__name__.startswith("vllm.platforms"):
            no = dict.fromkeys(("is_cuda", "is_rocm", "is_cuda_alike", "is_xpu", "is_tpu"))
            answers = {name: lambda: False for name in no}
            named.current_platform = SimpleNamespace(is_cpu=lambda: True, **answers)


class VLLM:
    """One version's code; `close` takes it out of the interpreter again."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.max_model_len = 0
        """What the running engine was given; its longrope asks for it."""
        self._finder = _Finder(self)
        sys.meta_path.insert(0, self._finder)
        self._rope = importlib.import_module(_ROPE)
        self._code = self._config_code()

    def close(self) -> None:
        sys.meta_path.remove(self._finder)
        for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
            del sys.modules[name]

    def config(self, folder: Path, overrides: Mapping[str, Any] | None = None) -> Any:
        """The config as `ModelConfig` has it, with what `--hf-overrides` says.

        In its order: single values; standardised blocks; then mappings, last and as they are.
        """
        config = AutoConfig.from_pretrained(folder)
        given = dict(overrides or {})
        config.update({k: v for k, v in given.items() if not isinstance(v, dict)})
        self._code["patch_rope_parameters"](config)
        text = config.get_text_config()
        if text is not config:
            self._code["patch_rope_parameters"](text)
        me = SimpleNamespace()
        me._update_nested = lambda *given: self._code["_update_nested"](me, *given)
        mappings = {k: v for k, v in given.items() if isinstance(v, dict)}
        self._code["_apply_dict_overrides"](me, config, mappings)
        return config

    def length(self, config: Any, max_model_len: int | None) -> int:
        """`max_model_len` as it is derived and checked.

        Raises:
            ValueError: `--max-model-len` is beyond what the config promises.
        """
        text = config.get_text_config()
        derived = self._code["derive_max_model_len_and_key"](SimpleNamespace(hf_text_config=text))
        length: int = self._code["_get_and_verify_max_len"](
            hf_config=text,
            model_arch_config=SimpleNamespace(derived_max_model_len_and_key=derived),
            tokenizer_config=None,
            max_model_len=max_model_len,
            disable_sliding_window=False,
            sliding_window=None,
        )
        return length

    def table(self, config: Any, length: int, label: str = "") -> tuple[torch.Tensor, torch.Tensor]:
        """All rows of cos and sin, as a model of Llama's kind makes them when served so long."""
        self.max_model_len = length
        text = config.get_text_config()
        block = text.rope_parameters[label] if label else text.rope_parameters
        self._rope._ROPE_DICT.clear()
        rotary = self._rope.get_rope(
            text.head_dim,
            max_position=text.max_position_embeddings,
            is_neox_style=True,
            rope_parameters=block,
            dtype=torch.float32,
        )
        if not hasattr(rotary, "long_short_cos_sin_cache"):
            rows = rotary.cos_sin_cache
        else:  # its forward adds the offset of the long rows where they are in use
            start = rotary.original_max_position_embeddings if rotary.use_long_rope else 0
            rows = rotary.long_short_cos_sin_cache[start:]
        cos, sin = rows.chunk(2, -1)
        return cos, sin

    def _config_code(self) -> dict[str, Any]:
        code: dict[str, Any] = {
            "PreTrainedConfig": configuration_utils.PreTrainedConfig,
            "ALLOWED_LAYER_TYPES": configuration_utils.ALLOWED_LAYER_TYPES,
            "logger": logging.getLogger("vllm"),
            "math": math,
            "torch": torch,
            "envs": SimpleNamespace(VLLM_ALLOW_LONG_MAX_MODEL_LEN=False),
            "current_platform": SimpleNamespace(
                check_max_model_len=lambda max_model_len: max_model_len
            ),
        }
        root = self.source / "vllm"
        cut(root / "config" / "utils.py", ["getattr_iter"], code)
        stub: Any = importlib.import_module("vllm.config.utils")
        stub.getattr_iter = code["getattr_iter"]
        names = ("is_rope_parameters_nested", "patch_rope_parameters", "patch_legacy_rope_type")
        more = ("set_default_rope_theta", "iter_rope_parameters")
        cut(root / "transformers_utils" / "config.py", (*names, *more), code)
        model = root / "config" / "model.py"
        methods = {"ModelConfig._update_nested", "ModelConfig._apply_dict_overrides"}
        cut(model, {"_get_and_verify_max_len", *methods}, code)
        file = root / "transformers_utils" / "model_arch_config_convertor.py"
        cut(file, ["ModelArchConfigConvertorBase.derive_max_model_len_and_key"], code)
        return code
