"""What each shape means for positions: numbers by hand, from model cards, papers and the files.

Nothing here is computed by the code under test.
"""

from dataclasses import dataclass, replace
from typing import Literal

Dialect = Literal["v4", "v5", "both"]


@dataclass(frozen=True)
class Layers:
    """So many layers of one type; in the order of their first layer."""

    count: int
    kind: str = "full_attention"
    window: int | None = None
    turn: bool = True


@dataclass(frozen=True)
class Turn:
    """One schedule: the pretrained rotation and the scaling in force."""

    head_dim: int
    theta: float
    rotary_dim: int | None = None
    """Where it is not the whole head."""
    turning: int | None = None
    """Pairs that turn, where the slowest stand still."""
    method: str | None = None
    factor: float = 1.0
    attention: float = 1.0
    """Attention factor, beyond the trained length."""


@dataclass(frozen=True)
class Expected:
    """The layout of one shape."""

    trained: int
    layers: tuple[Layers, ...]
    turns: dict[str, Turn]
    configured: int | None = None
    """Where `max_position_embeddings` is not the trained length."""
    dialect: Dialect = "v4"
    path: tuple[str, ...] = ()


def flat(trained: int, count: int, turn: Turn, configured: int | None = None) -> Expected:
    """One schedule, every layer global."""
    return Expected(trained, (Layers(count),), {"": turn}, configured)


def resaved(expected: Expected, *, nested: bool = False) -> Expected:
    """The same in version 5's words; `nested` if the text part got a place of its own."""
    return replace(expected, dialect="v5", path=("text_config",) if nested else expected.path)


_TEXT = ("text_config",)
_SLIDING, _FULL, _CHUNKED = "sliding_attention", "full_attention", "chunked_attention"

LAYOUTS: dict[str, Expected] = {
    "llama-2-7b": flat(4096, 32, Turn(128, 1e4)),
    "llama-3-8b": flat(8192, 32, Turn(128, 5e5)),
    "llama-3.1-8b": flat(8192, 32, Turn(128, 5e5, method="llama3", factor=8), 131072),
    "llama-3.2-1b": flat(8192, 16, Turn(64, 5e5, method="llama3", factor=32), 131072),
    "smollm2-135m": flat(8192, 30, Turn(64, 1e5)),
    "mistral-7b-v0.1": Expected(32768, (Layers(32, _SLIDING, window=4096),), {"": Turn(128, 1e4)}),
    "mistral-7b-v0.3": flat(32768, 32, Turn(128, 1e6)),
    "mixtral-8x7b": flat(32768, 32, Turn(128, 1e6)),
    "qwen2-7b": flat(131072, 28, Turn(128, 1e6)),
    "qwen2.5-7b-instruct": flat(32768, 28, Turn(128, 1e6)),
    # 0.1 ln 4 + 1
    "qwen2.5-7b-yarn": flat(
        32768, 28, Turn(128, 1e6, method="yarn", factor=4, attention=1.138629436111989)
    ),
    "qwen2.5-vl-7b": flat(128000, 28, Turn(128, 1e6)),
    "qwen3-8b": flat(40960, 36, Turn(128, 1e6)),
    "qwen3-30b-a3b": flat(40960, 48, Turn(128, 1e6)),
    "phi-3-mini-4k": Expected(4096, (Layers(32, _SLIDING, window=2047),), {"": Turn(96, 1e4)}),
    # sqrt(1 + ln 32 / ln 4096) = sqrt(17 / 12); its window is wider than its reach
    "phi-3-mini-128k": Expected(
        4096,
        (Layers(32, _SLIDING, window=262144),),
        {"": Turn(96, 1e4, method="longrope", factor=32, attention=1.1902380714238083)},
        configured=131072,
    ),
    "stablelm-2-1.6b": flat(4096, 24, Turn(64, 1e4, rotary_dim=16)),
    "pythia-1.4b": flat(2048, 24, Turn(128, 1e4, rotary_dim=32)),
    "glm-4-9b-0414": flat(32768, 40, Turn(128, 1e4, rotary_dim=64)),
    "falcon-7b": flat(2048, 32, Turn(64, 1e4)),
    "olmo-2-7b": flat(4096, 32, Turn(128, 5e5)),
    "granite-3.0-8b": flat(4096, 40, Turn(128, 1e4)),
    # its "dynamic" is a larger base at every length: 10000 * 1000^(128 / 126)
    "hunyuan-7b-instruct": flat(262144, 32, Turn(128, 11158839.92507748)),
    # mscale over mscale_all_dim: 1 on the rotary part; the softmax scale carries the rest
    "deepseek-v3": flat(4096, 61, Turn(64, 1e4, method="yarn", factor=40), 163840),
    "gemma-2-9b": Expected(
        8192, (Layers(21, _SLIDING, window=4096), Layers(21)), {"": Turn(256, 1e4)}
    ),
    "gemma-3-1b": Expected(
        32768,
        (Layers(22, _SLIDING, window=512), Layers(4)),
        {_SLIDING: Turn(256, 1e4), _FULL: Turn(256, 1e6)},
    ),
    "gemma-3-4b": Expected(
        32768,
        (Layers(29, _SLIDING, window=1024), Layers(5)),
        {_SLIDING: Turn(256, 1e4), _FULL: Turn(256, 1e6, method="pi", factor=8)},
        configured=131072,
        path=_TEXT,
    ),
    "gemma-4-e2b": Expected(
        131072,
        (Layers(28, _SLIDING, window=512), Layers(7)),
        {_SLIDING: Turn(256, 1e4), _FULL: Turn(512, 1e6, turning=64)},
        dialect="v5",
        path=_TEXT,
    ),
    # 0.1 ln 8 + 1; the windowed layers kept the rotation of pretraining
    "olmo-3-7b": Expected(
        8192,
        (Layers(24, _SLIDING, window=4096), Layers(8)),
        {
            _SLIDING: Turn(128, 5e5),
            _FULL: Turn(128, 5e5, method="yarn", factor=8, attention=1.2079441541679836),
        },
        configured=65536,
    ),
    "smollm3-3b": Expected(65536, (Layers(27), Layers(9, turn=False)), {"": Turn(128, 5e6)}),
    "command-r7b": Expected(
        132096,
        (Layers(24, _SLIDING, window=4096), Layers(8, turn=False)),
        {"": Turn(128, 5e4)},
    ),
    "llama-4-scout": Expected(
        8192,
        (Layers(36, _CHUNKED, window=8192), Layers(12, turn=False)),
        {"": Turn(128, 5e5, method="llama3", factor=8)},
        configured=262144,
        path=_TEXT,
    ),
    "llama-4-scout-instruct": Expected(
        8192,
        (Layers(36, _CHUNKED, window=8192), Layers(12, turn=False)),
        {"": Turn(128, 5e5, method="llama3", factor=16)},
        configured=10485760,
        path=_TEXT,
    ),
    # 0.1 ln 32 + 1
    "gpt-oss-20b": Expected(
        4096,
        (Layers(12, _SLIDING, window=128), Layers(12)),
        {"": Turn(64, 150000, method="yarn", factor=32, attention=1.3465735902799727)},
        configured=131072,
    ),
    "ministral-3-8b": Expected(
        16384,
        (Layers(34),),
        {"": Turn(128, 1e6, method="yarn", factor=16)},
        configured=262144,
        dialect="v5",
        path=_TEXT,
    ),
}

LAYOUTS |= {
    "llama-3.1-8b-v5": resaved(LAYOUTS["llama-3.1-8b"]),
    "mistral-7b-v0.1-v5": resaved(LAYOUTS["mistral-7b-v0.1"]),
    "mixtral-8x7b-v5": resaved(LAYOUTS["mixtral-8x7b"]),
    "qwen2.5-7b-yarn-v5": resaved(LAYOUTS["qwen2.5-7b-yarn"]),
    "qwen2.5-vl-7b-v5": resaved(LAYOUTS["qwen2.5-vl-7b"], nested=True),
    "phi-3-mini-128k-v5": resaved(LAYOUTS["phi-3-mini-128k"]),
    "pythia-1.4b-v5": resaved(LAYOUTS["pythia-1.4b"]),
    "deepseek-v3-v5": resaved(LAYOUTS["deepseek-v3"]),
    "gemma-3-1b-v5": resaved(LAYOUTS["gemma-3-1b"]),
    "gemma-3-4b-v5": resaved(LAYOUTS["gemma-3-4b"]),
    "gemma-4-e2b-v5": resaved(LAYOUTS["gemma-4-e2b"]),
    "olmo-3-7b-v5": resaved(LAYOUTS["olmo-3-7b"]),
    "smollm3-3b-v5": resaved(LAYOUTS["smollm3-3b"]),
}
