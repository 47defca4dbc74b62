"""Position interpolation: every pair slowed alike, optionally with the slowest stopped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method
from ropepatch.methods.stopping import Keep, keep_faults, pairs_kept, proportional_block


@dataclass(frozen=True, kw_only=True)
class PositionInterpolation(Method):
    """f_i = theta^(-2i/d) / factor.

    Source: Chen et al. 2023, arXiv:2306.15595, eq. 4; YaRN, arXiv:2309.00071, eq. 10-12.
    """

    name: ClassVar[str] = "pi"
    title: ClassVar[str] = "Position interpolation (linear)"
    source: ClassVar[str] = "arXiv:2306.15595, eq. 4"
    use_when: ClassVar[str] = "you will fine-tune (about 200 steps); simplest, read everywhere"
    short_price: ClassVar[str] = "highest: neighbours move closer, all pairs slow alike"
    rope_type: ClassVar[str | None] = "linear"

    keep: Keep | None = None
    """Also stop the slowest pairs (p-RoPE): the fraction that keeps turning, or 'auto'."""

    def faults(self) -> list[str]:
        """Adds the range of `keep`."""
        return super().faults() + keep_faults(self.keep)

    @property
    def idle(self) -> bool:
        """Factor 1 still stops pairs where `keep` is given."""
        return self.factor == 1 and self.keep is None

    def _kept(self, geometry: RotaryGeometry) -> int:
        return geometry.turning if self.keep is None else pairs_kept(self.keep, geometry)

    def frequencies(self, geometry: RotaryGeometry, length: int) -> Frequencies:
        """Static: `length` does not matter."""
        kept = self._kept(geometry)
        base = geometry.inverse_frequencies()
        return Frequencies(tuple(f / self.factor if i < kept else 0.0 for i, f in enumerate(base)))

    def rope_parameters(self, geometry: RotaryGeometry) -> dict[str, Any]:
        """`linear`, or `proportional` where some pairs stand still."""
        if self.keep is not None or geometry.turning != geometry.pairs:
            return proportional_block(geometry, self._kept(geometry), self.factor)
        return {"rope_type": "linear", "rope_theta": geometry.theta, "factor": self.factor}

    @classmethod
    def from_rope_parameters(cls, block: Mapping[str, Any]) -> Self:
        """`linear` with its factor."""
        return cls(factor=float(block["factor"]))
