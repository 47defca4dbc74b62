"""SGLang's rotary package, its model classes, its merge of overrides and rule for the length.

Real: the package sglang/srt/layers/rotary_embedding and sglang/srt/environ.py, whole; by name,
unchanged, `get_rope_config`, `get_context_length`, `_derive_context_length`, the block of
`get_config` that lays overrides over a config, `reserve_rope_cache_for_long_sequences`; and the
classes of a model file, whose every import but torch and transformers is a stub. Stubs: packages
without content, kernels that must not be called, a platform that is a CPU.
"""

import ast
import builtins
import copy
import importlib
import json
import logging
import math
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.serving.engines.source import cut, parsed, run

_REAL = ("sglang", "sglang.srt", "sglang.srt.layers")
_EMPTY = ("sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention")
_KERNELS = ("rope", "rotary_triton", "mrope")
_KEPT = (ast.ClassDef, ast.FunctionDef, ast.Assign)


class _Inert(ModuleType):
    """A module whose functions must not be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def called(*_: Any, **__: Any) -> None:
            raise RuntimeError(f"{self.__name__}.{name} is a stub")

        return called


class _Anything(nn.Module):
    """Whatever a model file builds besides its rotation."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Anything()

    def __rfloordiv__(self, other: Any) -> Any:
        return other


class _Made(Exception):
    """A layer has got its rotation; what it builds after that does not matter."""

    def __init__(self, rotary: Any) -> None:
        super().__init__()
        self.rotary = rotary


class SGLang:
    """One version's code; `close` takes it out of the interpreter again."""

    def __init__(self, source: Path) -> None:
        self._root = source / "sglang" / "srt"
        for name in (*_REAL, *_EMPTY):
            module = _put(name)
            module.__path__ = [str(source.joinpath(*name.split(".")))] if name in _REAL else []
        for name in _KERNELS:
            _put(f"sglang.kernels.ops.attention.{name}")
        _put("sglang.kernels.fused_op").BaseFusedOp = nn.Module
        _put("sglang.srt.platforms").current_platform = SimpleNamespace(is_out_of_tree=_no)
        _put("sglang.srt.runtime_context").publish_role = lambda: None
        platform = _put("sglang.srt.utils")
        for name in ("is_cuda", "is_hip", "is_mps", "is_musa", "is_npu", "is_xpu"):
            setattr(platform, name, _no)
        platform.cpu_has_amx_support = platform.get_bool_env_var = _no
        platform.is_cpu = lambda: True
        platform.get_device = lambda *_: "cpu"
        platform.get_compiler_backend = lambda *_, **__: "eager"
        self._rope: Any = importlib.import_module("sglang.srt.layers.rotary_embedding")
        self._factory: Any = importlib.import_module("sglang.srt.layers.rotary_embedding.factory")
        self._envs: Any = importlib.import_module("sglang.srt.environ").envs
        self._code = self._config_code()

    def close(self) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
            del sys.modules[name]

    def config(self, folder: Path, overrides: Mapping[str, Any] | None = None) -> Any:
        """The config of a folder, with what `--json-model-override-args` says."""
        config = AutoConfig.from_pretrained(folder)
        file = self._root / "utils" / "hf_transformers" / "config.py"
        whole = next(n for n in parsed(file).body if getattr(n, "name", "") == "get_config")
        assert isinstance(whole, ast.FunctionDef)
        merge = [
            node
            for node in whole.body
            if isinstance(node, ast.If) and ast.unparse(node.test) == "model_override_args"
        ]
        assert len(merge) == 1
        names = {
            "config": config,
            "model_override_args": json.loads(json.dumps(overrides or {})),
            "PretrainedConfig": PretrainedConfig,
            "DeepseekV41Config": type("Absent", (), {}),
        }
        run(list(merge), file, names)
        return config

    def length(self, config: Any, context_length: int | None) -> int:
        """The context length as it is derived and checked.

        Raises:
            ValueError: `--context-length` is beyond what the config promises.
        """
        text = config.get_text_config()
        me = SimpleNamespace(is_draft_model=False, hf_text_config=text, hf_config=config)
        self._code["_derive_context_length"](me, context_length)
        length: int = me.context_len
        return length

    def table(
        self,
        config: Any,
        positions: torch.Tensor,
        length: int,
        layer: str = "llama.LlamaDecoderLayer",
        **more: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin at these positions, as a layer built from the config looks them up."""
        self._factory._ROPE_DICT.clear()
        rotary = self._rotary(config.get_text_config(), layer, more)
        code = {
            "get_model": lambda: SimpleNamespace(context_length=length),
            "get_spec": lambda: SimpleNamespace(
                speculative_num_steps=0, speculative_num_draft_tokens=0
            ),
        }
        cut(self._root / "utils" / "common.py", ["reserve_rope_cache_for_long_sequences"], code)
        holder = nn.Module()
        holder.rotary = rotary
        reserve: Any = code["reserve_rope_cache_for_long_sequences"]
        reserve(holder, SimpleNamespace())
        if hasattr(rotary, "long_short_cos_sin_cache"):  # the arithmetic of its forward
            switch = rotary.original_max_position_embeddings
            start = switch if bool((positions > switch).any()) else 0
            rows = rotary.long_short_cos_sin_cache[positions + start]
        else:
            rows = rotary.cos_sin_cache[positions]
        cos, sin = rows.float().chunk(2, -1)
        return cos, sin

    def _rotary(self, config: Any, layer: str, more: Mapping[str, Any]) -> Any:
        """What a layer class asks `get_rope` for."""
        file, kind = layer.split(".")

        def recorded(*given: Any, **words: Any) -> Any:
            raise _Made(self._rope.get_rope(*given, **{**words, "dtype": torch.float32}))

        names = self._model_names(self._root / "models" / f"{file}.py")
        names |= dict.fromkeys(("get_rope", "get_rope_wrapper"), recorded)
        body = [
            node
            for node in parsed(self._root / "models" / f"{file}.py").body
            if isinstance(node, _KEPT) and "EntryClass" not in ast.unparse(node).split(" = ")[0]
        ]
        run(list(body), self._root / "models" / f"{file}.py", names)
        try:
            names[kind](config=config, **more)
        except _Made as made:
            return made.rotary
        raise AssertionError(f"{layer} asks for no rotation")

    def _model_names(self, file: Path) -> dict[str, Any]:
        """Globals of a model file: a stub for every name that it uses and does not define."""
        tree = parsed(file)
        defined = {
            node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        one = SimpleNamespace(
            tp_size=1,
            tp_rank=0,
            attn_tp_size=1,
            attn_tp_rank=0,
            pp_size=1,
            pp_rank=0,
            attn_cp_size=1,
        )
        names: dict[str, Any] = {
            **{name: getattr(typing, name) for name in ("Any", "Optional", "Union")},
            **dict.fromkeys(("_is_cuda", "_is_npu", "_is_hip"), False),
            "_is_cpu": True,
            "__name__": f"sglang_{file.stem}",
            "ROPE_INIT_FUNCTIONS": ROPE_INIT_FUNCTIONS,
            "RotaryEmbedding": self._rope.RotaryEmbedding,
            "add_prefix": lambda name, *_: name,
            "copy": copy,
            "envs": self._envs,
            "get_parallel": lambda: one,
            "get_rope_config": self._code["get_rope_config"],
            "logging": logging,
            "math": math,
            "nn": nn,
            "torch": torch,
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
                name = node.id
                if name not in names and name not in defined:
                    stub = type(name, (_Anything,), {}) if name[0].isupper() else _Anything()
                    names[name] = stub
        return names

    def _config_code(self) -> dict[str, Any]:
        code: dict[str, Any] = {
            "envs": self._envs,
            "is_in_ci": _no,
            "logger": logging.getLogger("sglang"),
        }
        file = self._root / "utils" / "hf_transformers" / "common.py"
        cut(file, ["get_rope_config", "CONTEXT_LENGTH_KEYS", "get_context_length"], code)
        file = self._root / "configs" / "model_config.py"
        return cut(file, ["ModelConfig._derive_context_length"], code)


def _put(name: str) -> Any:
    module = _Inert(name)
    sys.modules[name] = module
    return module


def _no(*_: Any, **__: Any) -> bool:
    return False
