"""TGI's rotary file, and the rotary code of LMDeploy's PyTorch backend, on a CPU.

`recipes/fetch_engines.py` does not bring them. Below ROPEPATCH_ENGINES: `tgi`, a checkout of
text-generation-inference v3.3.7; `lmdeploy`, the wheel of LMDeploy 0.18.0, unpacked.
"""

import ast
import importlib
import math
import sys
import typing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig

from tests.serving.engines.source import parsed, run
from tests.tiny import read_json

Table = tuple[torch.Tensor, torch.Tensor]


class TGI:
    """Its rotary file whole, for a processor that it calls 'cpu'."""

    def __init__(self, file: Path) -> None:
        packages = ("text_generation_server", "text_generation_server.utils")
        names = (*packages, "text_generation_server.utils.import_utils")
        for name in names:
            module: Any = ModuleType(name)
            module.__path__, module.SYSTEM = [], "cpu"
            sys.modules[name] = module
        self._code: dict[str, Any] = {"__name__": "tgi_rotary"}
        try:
            run(parsed(file).body, file, self._code)
        finally:
            for name in names:
                del sys.modules[name]

    def table(self, config_file: Path, positions: torch.Tensor) -> Table:
        """cos and sin for one batch, of a config as transformers 4.51 hands it over."""
        words = read_json(config_file)
        config = SimpleNamespace(
            max_position_embeddings=words["max_position_embeddings"],
            rope_scaling=words.get("rope_scaling"),
            rope_theta=words.get("rope_theta", 10000.0),
        )
        made = self._code["PositionRotaryEmbedding"].static(
            config, words["head_dim"], config.rope_theta, "cpu"
        )
        cos, sin = made.get_cos_sin(positions, int(positions.max()) + 1, torch.float32)
        return cos[:, 0], sin[:, 0]


class LMDeploy:
    """The PyTorch backend's default operators, as its factory builds them from a config."""

    def __init__(self, source: Path) -> None:
        root = source / "lmdeploy" / "pytorch"
        inner = {"lmdeploy.pytorch.backends": root / "backends"}
        inner["lmdeploy.pytorch.backends.default"] = root / "backends" / "default"
        names = ("lmdeploy", "lmdeploy.pytorch", *inner, "lmdeploy.pytorch.backends.base")
        for name in names:
            module: Any = ModuleType(name)
            module.__path__ = [str(inner[name])] if name in inner else []
            sys.modules[name] = module

        class BuildSpec(typing.Generic[typing.TypeVar("T")]):  # type: ignore[misc]
            pass

        base: Any = sys.modules["lmdeploy.pytorch.backends.base"]
        base.BuildSpec = BuildSpec
        kinds = importlib.import_module("lmdeploy.pytorch.backends.rotary_embedding")
        default: Any = importlib.import_module("lmdeploy.pytorch.backends.default.rotary_embedding")
        build = SimpleNamespace(build_op=lambda spec, **_: default._build_rotary_embedding(spec))
        self._code: dict[str, Any] = {
            **vars(kinds),
            "math": math,
            "torch": torch,
            "nn": torch.nn,
            "get_backend": lambda: build,
            "get_build_model_context": lambda: SimpleNamespace(enable_deterministic=False),
        }
        file = root / "nn" / "rotary_embedding.py"
        body = [node for node in parsed(file).body if isinstance(node, ast.FunctionDef)]
        run(list(body), file, self._code)

    def close(self) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "lmdeploy"]:
            del sys.modules[name]

    def table(self, folder: Path, positions: torch.Tensor) -> Table:
        """cos and sin for one input."""
        config = AutoConfig.from_pretrained(folder)
        made = self._code["build_rotary_embedding_from_config"](config)
        cos, sin = made(torch.zeros(1, 1, 1), positions[None])
        half = cos.shape[-1] // 2
        return cos[0, :, :half], sin[0, :, :half]
