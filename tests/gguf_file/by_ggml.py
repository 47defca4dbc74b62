"""llama.cpp's own arithmetic in float32, on what gguf's reader finds in a file.

Written from llama.cpp's sources (0c1e57098: `load_hparams`, `llama_context`, `ggml_rope_cache_init`
and `rope_yarn`), without a line of ropepatch's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

F = np.float32
Row = npt.NDArray[np.float32]

FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
TAKES_FREQS = {"llama", "mistral3", "arcee", "granite", "exaone"}
TAKES_LONG = {"llama", "mistral3", "granite"}
"""Under the type longrope alone, and then no rope_freqs."""
ALWAYS_LONG = {"phi3", "phimoe"}
READS_BETAS = {"mistral3", "grok"}


class UnloadableError(Exception):
    """llama.cpp counts the tensors that it has asked for, and refuses a file with others."""


@dataclass(frozen=True)
class Loaded:
    """What the loader and the context have made of a file."""

    n_rot: int
    freq_base: np.float32
    freq_scale: np.float32
    ext_factor: np.float32
    attn_factor: np.float32
    corr_dims: tuple[np.float32, np.float32]
    freqs: Row | None
    long: Row | None
    short: Row | None
    n_ctx_train: int
    n_ctx_orig: int

    def table(self, context: int, position: int) -> tuple[Row, Row]:
        """cos and sin of every pair, for a context of so many tokens."""
        factors = self.long if context > self.n_ctx_orig else self.short
        if self.freqs is not None:
            factors = self.freqs
        scale = F(self.freq_base) ** F(F(-2.0) / F(self.n_rot))
        theta, cos, sin = F(position), [], []
        for pair in range(self.n_rot // 2):
            divisor = F(1) if factors is None else factors[pair]
            angle, times = self._turned(F(theta / divisor), pair)
            cos.append(F(np.cos(angle)) * times)
            sin.append(F(np.sin(angle)) * times)
            theta = F(theta * scale)
        return np.array(cos, F), np.array(sin, F)

    def _turned(self, extrapolated: np.float32, pair: int) -> tuple[np.float32, np.float32]:
        interpolated = F(self.freq_scale * extrapolated)
        if self.ext_factor == 0:
            return interpolated, self.attn_factor
        low, high = self.corr_dims
        y = F((F(pair) - low) / max(F(0.001), F(high - low)))
        mix = F(F(1) - min(F(1), max(F(0), y))) * self.ext_factor
        angle = F(interpolated * F(F(1) - mix) + extrapolated * mix)
        times = self.attn_factor * F(F(1) + F(0.1) * np.log(F(F(1) / self.freq_scale)))
        return angle, F(times)


def load(path: Path) -> Loaded:
    reader = gguf.GGUFReader(path)
    words = {k: f.contents() for k, f in reader.fields.items()}
    arch = words["general.architecture"]
    keys = {k.removeprefix(f"{arch}."): v for k, v in words.items() if k.startswith(f"{arch}.")}
    kind = keys.get("rope.scaling.type", "linear")
    assert kind in ("none", "linear", "yarn", "longrope")
    freqs, long, short = _tensors(reader, arch, kind)

    trained = keys["context_length"]
    original = keys.get("rope.scaling.original_context_length", trained)
    width = keys["embedding_length"] // keys["attention.head_count"]
    n_rot = keys.get("rope.dimension_count", keys.get("attention.key_length", width))
    for row in (freqs, long, short):
        assert row is None or row.shape == (n_rot // 2,)
    base = F(keys.get("rope.freq_base", 10000.0))
    factor = F(keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 0.0)))
    scale = F(1) if factor == 0 or kind == "none" else F(F(1) / factor)
    ext = F(1 if kind == "yarn" else 0)
    fast, slow = F(32), F(1)
    if arch in READS_BETAS:
        fast = F(keys.get("rope.scaling.yarn_beta_fast", 32.0))
        slow = F(keys.get("rope.scaling.yarn_beta_slow", 1.0))

    def corr(turns: np.float32) -> np.float32:
        inside = F(original) / F(turns * 2 * F(math.pi))
        return F(F(n_rot) * np.log(inside) / (F(2) * np.log(base)))

    dims = max(F(0), F(np.floor(corr(fast)))), min(F(n_rot - 1), F(np.ceil(corr(slow))))
    return Loaded(
        n_rot, base, scale, ext, _attention(keys, scale, ext), dims, freqs, long, short,
        trained, original,
    )  # fmt: skip


def _attention(keys: Mapping[str, Any], scale: np.float32, ext: np.float32) -> np.float32:
    attention = F(1)
    if ext:
        assert not keys.get("rope.scaling.yarn_log_multiplier")
        factor = F(F(1) / scale)
        log = F(F(0.1) * np.log(factor))
        attention = F(1) if factor <= 1 else F(log + F(1))
        attention *= F(F(1) / F(F(1) + log))
    return F(attention * F(keys.get("rope.scaling.attn_factor", 1.0)))


def _tensors(
    reader: gguf.GGUFReader, arch: str, kind: str
) -> tuple[Row | None, Row | None, Row | None]:
    there = {t.name: t for t in reader.tensors if t.name in (FREQS, LONG, SHORT)}
    takes = set()
    if arch in ALWAYS_LONG or (arch in TAKES_LONG and kind == "longrope"):
        takes = {LONG, SHORT}
    elif arch in TAKES_FREQS:
        takes = {FREQS}
    if not set(there) <= takes:
        raise UnloadableError(f"{arch} of type {kind} with {sorted(there)}")
    rows = {}
    for name, tensor in there.items():
        assert tensor.tensor_type is gguf.GGMLQuantizationType.F32
        rows[name] = np.array(tensor.data, F)
    return rows.get(FREQS), rows.get(LONG), rows.get(SHORT)
