"""How llama.cpp will turn a GGUF file's model: its loader's reading and ggml's arithmetic.

Source: `load_hparams` (src/llama-model.cpp), `llama_context` (src/llama-context.cpp) and
`rope_yarn` (ggml/src/ggml-cpu/ops.cpp) at the revision `architectures.LLAMA_CPP` names.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ropepatch.errors import CheckpointError, GeometryError
from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.gguf_file.architectures import ARCHITECTURES, Architecture

FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
"""Tensors of per-pair factors; frequencies are divided by them."""

STILL = 1e30
"""A factor that stops a pair, as llama.cpp's converter writes it for Gemma 4."""
_STOPPED = 1e20
_LARGEST_PAIRS = 2**15
_NAME = re.compile(r"[\w.+-]{1,64}", re.ASCII)


class Metadata(Protocol):
    """A header that can be asked for a value, as it stands or as it will be written."""

    def value(self, key: str) -> Any:
        """What stands under a key; None where it is absent."""

    def factors(self, tensor: str) -> tuple[float, ...] | None:
        """The numbers of a tensor of per-pair factors; None where there is none."""


@dataclass(frozen=True)
class Rotation:
    """The rotary embedding of a GGUF file's model, in llama.cpp's words.

    For layers with a window of their own base, what is here holds for the others.
    """

    architecture: str
    head_dim: int
    rotary_dim: int
    freq_base: float
    context_length: int
    scaling: str
    """`none`, `linear`, `yarn` or `longrope`."""
    factor: float
    original_length: int
    """`rope.scaling.original_context_length`, else the context's."""
    original_known: bool
    attn_factor: float
    """`rope.scaling.attn_factor`: multiplies whatever the type makes of it."""
    beta_fast: float
    beta_slow: float
    log_multiplier: float
    """`mscale_all_dim`, where the architecture reads it; 0 for none."""
    freqs: tuple[float, ...] | None
    long: tuple[float, ...] | None
    short: tuple[float, ...] | None
    window: int | None
    """Tokens that some or all layers look back, where the file says."""

    @property
    def pairs(self) -> int:
        """Number of pairs that may turn."""
        return self.rotary_dim // 2

    def factors_at(self, context: int) -> tuple[float, ...] | None:
        """The per-pair factors that a context of so many tokens is made with."""
        if self.freqs is not None:
            return self.freqs
        return self.long if context > self.original_length else self.short

    def frequencies(self, context: int) -> Frequencies:
        """What llama.cpp turns by, for a context (not a prompt) of so many tokens."""
        base = [self.freq_base ** (-2 * i / self.rotary_dim) for i in range(self.pairs)]
        factors = self.factors_at(context)
        if factors is not None:
            base = [f / by for f, by in zip(base, factors, strict=True)]
        base = [0.0 if factors and factors[i] >= _STOPPED else f for i, f in enumerate(base)]
        scale = 1.0 if self.scaling == "none" else 1.0 / self.factor
        if self.scaling != "yarn":
            return Frequencies(tuple(f * scale for f in base), self.attn_factor)
        low, high = self._ramp()
        mixed = []
        for i, f in enumerate(base):
            kept = 1 - min(1.0, max(0.0, (i - low) / max(0.001, high - low)))
            mixed.append(f * scale * (1 - kept) + f * kept)
        # the context divides by 1 + 0.1 ln(factor), rope_yarn multiplies by it again
        temperature = yarn_temperature(self.factor)
        if self.log_multiplier:
            temperature /= yarn_temperature(self.factor, self.log_multiplier)
        return Frequencies(tuple(mixed), temperature * self.attn_factor)

    def _ramp(self) -> tuple[float, float]:
        def pair_of(turns: float) -> float:
            inside = self.original_length / (turns * 2 * math.pi)
            return self.rotary_dim * math.log(inside) / (2 * math.log(self.freq_base))

        low = max(0.0, math.floor(pair_of(self.beta_fast)))
        high = min(self.rotary_dim - 1.0, math.ceil(pair_of(self.beta_slow)))
        return low, high

    @property
    def stopped(self) -> int:
        """Pairs that a tensor of factors has stopped."""
        return sum(1 for f in self.freqs or () if f >= _STOPPED)

    @property
    def scaled(self) -> bool:
        """Whether anything but plain RoPE is in force."""
        tensors = (self.freqs, self.long, self.short)
        slowed = any(f != 1 and f < _STOPPED for t in tensors if t is not None for f in t)
        by_type = self.scaling != "none" and self.factor != 1
        return slowed or by_type or self.attn_factor != 1

    def geometry(self, trained_length: int) -> RotaryGeometry:
        """The pretrained embedding, without the scaling in force.

        Raises:
            GeometryError: its numbers contradict.
        """
        turning = self.pairs - self.stopped if self.stopped else None
        return RotaryGeometry(
            self.head_dim, self.rotary_dim, self.freq_base, trained_length, turning
        )


def yarn_temperature(factor: float, mscale: float = 1.0) -> float:
    """What ggml multiplies cos and sin by under YaRN.

    Source: YaRN, arXiv:2309.00071, eq. 22.
    """
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def architecture_name(metadata: Metadata) -> str:
    """The word under `general.architecture`.

    Raises:
        CheckpointError: there is none.
    """
    name = metadata.value("general.architecture")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        said = "" if name is None else f", it says {str(name)[:80]!r}"
        raise CheckpointError(f"the GGUF file does not say its general.architecture{said}.")
    return name


def read_rotation(metadata: Metadata) -> Rotation:
    """Read the rotary metadata as llama.cpp's loader does.

    Raises:
        CheckpointError: a number that is needed is missing or makes no sense.
    """
    name = architecture_name(metadata)
    reader = _Reader(metadata, name)
    context = int(reader.number("context_length"))
    heads = reader.largest("attention.head_count")
    key_length = reader.optional("attention.key_length")
    width = reader.number("embedding_length") // heads if key_length is None else key_length
    rotary = int(reader.optional("rope.dimension_count") or width)
    if rotary < 2 or rotary % 2 or rotary // 2 > _LARGEST_PAIRS:
        raise CheckpointError(f"{name}.rope.dimension_count {rotary} makes no pairs.")
    factor = reader.optional("rope.scaling.factor")
    if factor is None:
        factor = reader.optional("rope.scale_linear")
    original = reader.optional("rope.scaling.original_context_length")
    base = reader.optional("rope.freq_base")
    window = reader.optional("attention.sliding_window")
    row = ARCHITECTURES.get(name)
    own = row is not None and row.betas
    found = Rotation(
        architecture=name,
        head_dim=max(int(width), rotary),
        rotary_dim=rotary,
        freq_base=10000.0 if base is None else base,
        context_length=context,
        scaling=reader.scaling(),
        factor=factor or 1.0,
        original_length=int(original or context),
        original_known=bool(original),
        attn_factor=reader.optional("rope.scaling.attn_factor") or 1.0,
        beta_fast=(own and reader.optional("rope.scaling.yarn_beta_fast")) or 32.0,
        beta_slow=(own and reader.optional("rope.scaling.yarn_beta_slow")) or 1.0,
        log_multiplier=(own and reader.optional("rope.scaling.yarn_log_multiplier")) or 0.0,
        freqs=metadata.factors(FREQS),
        long=metadata.factors(LONG),
        short=metadata.factors(SHORT),
        window=int(window) if window else None,
    )
    _check(found)
    if row is not None:
        _check_loaded(found, row)
    return found


def _check(found: Rotation) -> None:
    try:
        found.geometry(found.original_length)
    except GeometryError as error:
        raise CheckpointError(f"the rotary metadata contradict themselves: {error}") from None
    if not found.factor > 0 or not found.attn_factor > 0 or not found.beta_fast >= found.beta_slow:
        raise CheckpointError("the rotary scaling of the GGUF file has a number out of range.")
    for tensor in (found.freqs, found.long, found.short):
        if tensor is None:
            continue
        if len(tensor) != found.pairs:
            raise CheckpointError(
                f"the GGUF file has {len(tensor)} per-pair factors, and {found.pairs} pairs turn."
            )
        if not all(f > 0 for f in tensor):
            raise CheckpointError("a per-pair factor of the GGUF file is not above 0.")


def _check_loaded(found: Rotation, row: Architecture) -> None:
    """llama.cpp stops at a tensor that it does not ask for."""
    long = row.reads_long and (row.factors == "long" or found.scaling == "longrope")
    freqs = row.reads_freqs and not (row.factors == "both" and found.scaling == "longrope")
    for tensor, there, asked in (
        (FREQS, found.freqs, freqs),
        (LONG, found.long, long),
        (SHORT, found.short, long),
    ):
        if there is not None and not asked:
            raise CheckpointError(
                f"llama.cpp does not take {tensor} in for '{found.architecture}' under the type "
                f"{found.scaling}, and stops at such a file or passes over it."
            )


@dataclass(frozen=True)
class _Reader:
    metadata: Metadata
    architecture: str

    def optional(self, key: str) -> float | None:
        value = self.metadata.value(f"{self.architecture}.{key}")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{self.architecture}.{key} must be a number, not {value!r}.")
        if not math.isfinite(value) or value < 0:
            raise CheckpointError(f"{self.architecture}.{key} is {value:g}, which makes no sense.")
        return value

    def number(self, key: str) -> float:
        value = self.optional(key)
        if not value:
            raise CheckpointError(f"the GGUF file has no {self.architecture}.{key}.")
        return value

    def largest(self, key: str) -> int:
        """A number for all layers, or the largest of a list by layer."""
        value: Mapping[str, Any] | Any = self.metadata.value(f"{self.architecture}.{key}")
        if isinstance(value, list) and value and all(type(v) is int for v in value):
            value = max(value)
        if type(value) is not int or value < 1:
            raise CheckpointError(f"{self.architecture}.{key} must be a count, not {value!r}.")
        return value

    def scaling(self) -> str:
        word = self.metadata.value(f"{self.architecture}.rope.scaling.type")
        if word is None:
            return "linear"  # with a factor of 1 as a rule: llama.cpp's own default
        if word not in ("none", "linear", "yarn", "longrope"):
            raise CheckpointError(
                f"{self.architecture}.rope.scaling.type {word!r} is none that llama.cpp reads."
            )
        return str(word)
