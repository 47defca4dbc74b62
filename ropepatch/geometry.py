"""The numbers of a rotary position embedding, before and after a change.

Plain Python floats (IEEE doubles); knows nothing of tensors, configs or methods.
"""

import math
from dataclasses import dataclass, replace

from ropepatch.errors import GeometryError

LARGEST_HEAD_DIM = 2**16
"""Features; the widest heads known have 576. A damaged config must not cost minutes."""


@dataclass(frozen=True, slots=True)
class Frequencies:
    """How fast each pair of features turns: what a method answers."""

    inv_freq: tuple[float, ...]
    """(pairs,), radians per token, fastest first; 0.0 for a pair that stands still."""
    attention_factor: float = 1.0
    """Multiplies cos and sin, so attention logits by its square."""

    def wavelengths(self) -> tuple[float, ...]:
        """Tokens per full turn of each pair, (pairs,); infinite for one that stands still."""
        return tuple(2 * math.pi / f if f else math.inf for f in self.inv_freq)


@dataclass(frozen=True, slots=True)
class RotaryGeometry:
    """The rotary embedding a model was pretrained with.

    Raises:
        GeometryError: a size is not positive, a width is odd, theta is not above 1, or more
            pairs turn than there are.
    """

    head_dim: int
    """Features per head that rotary code sees (for DeepSeek's MLA, `qk_rope_head_dim`)."""
    rotary_dim: int
    """Of these, the features that are turned; even, at most `head_dim`."""
    theta: float
    """Base period (`rope_theta`), dimensionless."""
    trained_length: int
    """Tokens; the longest context of pretraining, before any extension."""
    turning_pairs: int | None = None
    """Pairs that turn when the slowest ones were pretrained at frequency zero (p-RoPE)."""

    def __post_init__(self) -> None:
        """Validate once, so that methods need not."""
        faults = []
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            faults.append(f"rotary_dim must be even and at least 2, not {self.rotary_dim}")
        if self.head_dim > LARGEST_HEAD_DIM:
            faults.append(f"head_dim {self.head_dim} is beyond any model")
        if self.head_dim < self.rotary_dim:
            faults.append(f"rotary_dim {self.rotary_dim} exceeds head_dim {self.head_dim}")
        if not (math.isfinite(self.theta) and self.theta > 1):
            faults.append(f"rope_theta must be finite and above 1, not {self.theta}")
        if self.trained_length < 1:
            faults.append(f"the trained length must be positive, not {self.trained_length}")
        if self.turning_pairs is not None and not 0 <= self.turning_pairs <= self.pairs:
            faults.append(f"{self.turning_pairs} of {self.pairs} pairs cannot turn")
        if faults:
            raise GeometryError("; ".join(faults) + ".")

    @property
    def pairs(self) -> int:
        """Number of feature pairs, half of `rotary_dim`."""
        return self.rotary_dim // 2

    @property
    def turning(self) -> int:
        """Number of pairs that turn in the pretrained model."""
        return self.pairs if self.turning_pairs is None else self.turning_pairs

    def inverse_frequencies(self, theta: float | None = None) -> tuple[float, ...]:
        """Radians per token of each pair, (pairs,), for `theta` or the pretrained base.

        Source: RoFormer, arXiv:2104.09864, section 3.2.2: theta^(-2i/d), d = `rotary_dim`.
        """
        base = self.theta if theta is None else theta
        turning = (base ** (-2 * i / self.rotary_dim) for i in range(self.turning))
        return (*turning, *(0.0 for _ in range(self.pairs - self.turning)))

    def base_frequencies(self) -> Frequencies:
        """The pretrained frequencies."""
        return Frequencies(self.inverse_frequencies())

    def rotations(self) -> tuple[float, ...]:
        """Full turns of each pair within the trained length, (pairs,).

        Source: YaRN, arXiv:2309.00071, eq. 17: r(d) = L / wavelength.
        """
        per_turn = 2 * math.pi
        return tuple(self.trained_length * f / per_turn for f in self.inverse_frequencies())

    def incomplete_pairs(self) -> int:
        """Turning pairs that never complete a turn within the trained length.

        Source: YaRN, arXiv:2309.00071, section 3.1.
        """
        return sum(1 for r in self.rotations()[: self.turning] if r < 1)

    def with_trained_length(self, length: int) -> "RotaryGeometry":
        """The same rotation, pretrained on another length in tokens."""
        return replace(self, trained_length=length)
