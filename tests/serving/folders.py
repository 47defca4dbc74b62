"""Extended folders to export, with weights of zeros, and how an export is refused."""

import copy
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ropepatch import Recipe, convert_checkpoint, extend
from ropepatch.errors import RopepatchError
from ropepatch.exporting import export
from ropepatch.geometry import RotaryGeometry
from ropepatch.methods.table import METHODS
from tests import tiny
from tests.tiny import TRAINED, V5

Config = Mapping[str, Any]

FACTOR = 4.0
TARGET = 4 * TRAINED
PAIRS = 16
LLAMA = RotaryGeometry(head_dim=32, rotary_dim=32, theta=1e4, trained_length=TRAINED)
"""What `tiny.V5` turns by."""
SHORT = tuple(1 + i / 64 for i in range(PAIRS))
LONG = tuple(1 + i / 8 for i in range(PAIRS))
NEEDED: dict[str, dict[str, Any]] = {
    "longrope": {"short_factor": SHORT, "long_factor": LONG},
    "p-rope": {"keep": 0.5},
}
"""Parameters that have no default."""
FOREIGN_YARN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "attn_factor": ({"attn_factor": 1.3}, {}),
    "extrapolation_factor": ({"extrapolation_factor": 0.5}, {}),
    "both beside attention": (
        {"attn_factor": 1.3, "extrapolation_factor": 0.5, "attention_factor": 1.1},
        {"attention_factor": 1.1},
    ),
    "a lone mscale": ({"mscale": 0.5}, {}),
    "another lone mscale": ({"mscale_all_dim": 0.5}, {}),
    "a pair": ({"mscale": 0.5, "mscale_all_dim": 1.0}, {"mscale": 0.5, "mscale_all_dim": 1.0}),
    "attention": ({"attention_factor": 1.1}, {"attention_factor": 1.1}),
    "attention beside a pair": (
        {"attention_factor": 1.1, "mscale": 0.5, "mscale_all_dim": 1.0},
        {"attention_factor": 1.1},
    ),
    "usual attention beside a pair": (
        {"attention_factor": 0.1 * math.log(4) + 1, "mscale": 0.5, "mscale_all_dim": 1.0},
        {},
    ),
    "nulls": ({"beta_fast": None, "beta_slow": None}, {}),
    "null attention": ({"attention_factor": None}, {}),
    "a whole number": ({"factor": 4}, {}),
}
"""Words of yarn that ropepatch does not write, and what transformers makes of them."""
CHATGLM: dict[str, Any] = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": TRAINED,
    "rope_theta": 10000.0,
}
CLASSES = {
    "chatglm": "ChatGLMModel",
    "exaone4": "Exaone4ForCausalLM",
    "exaone_moe": "ExaoneMoEForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mellum": "MellumForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
}
"""Architectures as they are published, by model type."""


def like(kind: str, architecture: str = "", config: Config = V5) -> dict[str, Any]:
    """A config of another class."""
    named = architecture or CLASSES[kind]
    return {**config, "model_type": kind, "architectures": [named]}


def scaled(block: Config, length: int = TARGET) -> dict[str, Any]:
    """A scaling that ropepatch did not write, in transformers 5's words."""
    rope = {"rope_theta": 10000.0, **block}
    return {**V5, "max_position_embeddings": length, "rope_parameters": rope}


def recipe(method: str, **words: Any) -> Recipe:
    return Recipe.named(method, **{"factor": FACTOR, **NEEDED.get(method, {}), **words})


def extended(
    place: Path,
    method: str = "yarn",
    config: Config = V5,
    *,
    replace: bool = False,
    dialect: str | None = None,
    **words: Any,
) -> Path:
    """`place/model` extended into `place/out`."""
    source = found(place, config)
    more: dict[str, Any] = {} if dialect is None else {"dialect": dialect}
    extend(source, recipe(method, **words), place / "out", verify=False, replace=replace, **more)
    return place / "out"


def found(place: Path, config: Config) -> Path:
    """A folder with a config that ropepatch did not write."""
    return tiny.bare_checkpoint(place / "model", copy.deepcopy(dict(config)))


def converted(place: Path, to: str, config: Config = V5) -> Path:
    convert_checkpoint(found(place, config), {"to": to}, place / "out", verify=False)
    return place / "out"


def refusal(
    model: Path, target: str, *, original: bool = False, trained_length: int | None = None
) -> str:
    """The one line by which an export is refused."""
    with pytest.raises(RopepatchError) as caught:
        export(model, target, original=original, trained_length=trained_length)
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    return said


_NEAREST = re.compile(
    r"\. Nearest: (ropepatch extend --model .*? --method \S+ --factor \S+?)"
    r"((?: --trained-length \d+)?(?: --replace)?)(?: \(or (.*?)\))?"
    r"; its price at short length: (.*)\.$"
)


def nearest(said: str) -> tuple[str, ...]:
    """Methods that a refusal names, best first; the command and the price are the first's."""
    found = _NEAREST.search(said)
    assert found is not None, said
    model, method, factor = shlex.split(found[1])[3::2]
    assert float(factor) > 1
    assert found[4] == METHODS[method].short_price
    names = (method, *(found[3].split(", ") if found[3] else ()))
    assert len(names) <= 3
    assert len(set(names)) == len(names)
    assert model == "ORIGINAL" or Path(model).is_dir()
    return names


def held(said: str, target: str, config: Config, place: Path, factor: float = FACTOR) -> str:
    """The first of the methods that a refusal names; every one is exported for that engine."""
    names = nearest(said)
    assert f" --factor {factor:g}" in said
    for name in names:
        folder = extended(place / name, name, config, replace=True, factor=factor)
        assert export(folder, target).row == name
    return names[0]


def option(words: tuple[str, ...], name: str) -> str:
    """What stands behind an option, which stands once."""
    assert words.count(name) == 1
    return words[words.index(name) + 1]


def expected(
    method: str, positions: torch.Tensor, geometry: RotaryGeometry = LLAMA, **words: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin as ropepatch computes them, in float64: (positions, pairs)."""
    bound = recipe(method, **words).bind(geometry)
    found = bound.frequencies(geometry, int(positions.max()) + 1)
    angles = positions.double()[:, None] * torch.tensor(found.inv_freq, dtype=torch.float64)
    return angles.cos() * found.attention_factor, angles.sin() * found.attention_factor


def unscaled(positions: torch.Tensor, theta: float = 1e4) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin as pretrained, in float64."""
    speeds = theta ** -(torch.arange(PAIRS, dtype=torch.float64) / PAIRS)
    angles = positions.double()[:, None] * speeds
    return angles.cos(), angles.sin()


def distance(
    ours: tuple[torch.Tensor, torch.Tensor], theirs: tuple[torch.Tensor, torch.Tensor]
) -> float:
    """The largest difference of any number of two tables; infinite for another shape."""
    pairs = list(zip(ours, theirs, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return math.inf
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
