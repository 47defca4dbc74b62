"""LongRoPE: one divisor per pair, a short and a long set, found by search elsewhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ropepatch.errors import GeometryError
from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method, positive
from ropepatch.methods.stopping import refuse_stopped


@dataclass(frozen=True, kw_only=True)
class LongRope(Method):
    """f_i = theta^(-2i/d) / e_i, e the long set strictly above the trained length.

    Source: Ding et al. 2024, arXiv:2402.13753, eq. 3 and section 3.2; Phi-3's attention factor
    sqrt(1 + ln s / ln L).
    """

    name: ClassVar[str] = "longrope"
    title: ClassVar[str] = "LongRoPE (factors per pair)"
    source: ClassVar[str] = "arXiv:2402.13753, eq. 3"
    use_when: ClassVar[str] = "you have searched factors for this very model"
    short_price: ClassVar[str] = "its attention factor acts at short length too"
    rope_type: ClassVar[str | None] = "longrope"
    length_dependent: ClassVar[bool] = True

    long_factor: tuple[float, ...]
    """Divisor per pair above the trained length, (pairs,)."""
    short_factor: tuple[float, ...] | None = None
    """Divisor per pair up to the trained length, (pairs,); unset, all ones."""
    attention_factor: float | None = None
    """Multiplies cos and sin at every length; unset, sqrt(1 + ln factor / ln L)."""

    def faults(self) -> list[str]:
        """Adds that every divisor is a positive number."""
        faults = super().faults()
        for key in ("long_factor", "short_factor"):
            values = getattr(self, key)
            if values is not None and not (
                values
                and all(isinstance(v, int | float) and math.isfinite(v) and v > 0 for v in values)
            ):
                faults.append(f"{key} must be a list of numbers above 0")
        if self.attention_factor is not None:
            faults += positive(attention_factor=self.attention_factor)
        return faults

    def _sets(self, geometry: RotaryGeometry) -> tuple[tuple[float, ...], tuple[float, ...]]:
        short = self.short_factor or (1.0,) * geometry.pairs
        for key, values in (("short_factor", short), ("long_factor", self.long_factor)):
            if len(values) != geometry.pairs:
                raise GeometryError(
                    f"longrope needs {geometry.pairs} numbers in {key} for this model (one per "
                    f"pair), got {len(values)}."
                )
        return short, self.long_factor

    def _attention(self, geometry: RotaryGeometry) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(geometry.trained_length))

    @property
    def idle(self) -> bool:
        """Never: the lengths aside, it changes pairs at any factor."""
        return False

    def frequencies(self, geometry: RotaryGeometry, length: int) -> Frequencies:
        """The short set up to the trained length, the long set strictly above."""
        short, long = self._sets(geometry)
        divisors = long if length > geometry.trained_length else short
        base = geometry.inverse_frequencies()
        return Frequencies(
            tuple(f / e for f, e in zip(base, divisors, strict=True)), self._attention(geometry)
        )

    def rope_parameters(self, geometry: RotaryGeometry) -> dict[str, Any]:
        """`longrope` with both sets and the factor, so no ratio of lengths is needed."""
        refuse_stopped(self.name, geometry)
        short, long = self._sets(geometry)
        block: dict[str, Any] = {
            "rope_type": "longrope",
            "rope_theta": geometry.theta,
            "factor": self.factor,
            "short_factor": list(short),
            "long_factor": list(long),
            "original_max_position_embeddings": geometry.trained_length,
        }
        if self.attention_factor is not None:
            block["attention_factor"] = self.attention_factor
        return block

    @classmethod
    def from_rope_parameters(cls, block: Mapping[str, Any]) -> Self:
        """`longrope`; the reader has filled in `factor` from the ratio of lengths."""
        attention_factor = block.get("attention_factor")
        return cls(
            factor=float(block["factor"]),
            long_factor=tuple(block["long_factor"]),
            short_factor=tuple(block["short_factor"]),
            attention_factor=None if attention_factor is None else float(attention_factor),
        )

    def advice(self, geometry: RotaryGeometry) -> tuple[str, ...]:
        """A uniform list is PI; only Phi-3 classes survive the switch with a cache."""
        notes = self.live_advice(geometry)
        if self.short_factor == self.long_factor:
            return notes
        return (
            *notes,
            "stock transformers switches sets in mid-generation; only Phi-3 classes drop the cache "
            "then, others continue with keys turned by the short set.",
        )

    def live_advice(self, geometry: RotaryGeometry) -> tuple[str, ...]:
        """A uniform list is PI."""
        if len(set(self.long_factor)) == 1:
            return ("every long factor is the same: this is pi by another name.",)
        return ()
