"""NTK-by-parts as the paper prints it: a ramp linear in rotations, no temperature."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.bands import banded_frequencies
from ropepatch.methods.base import Method, positive
from ropepatch.methods.stopping import refuse_stopped


@dataclass(frozen=True, kw_only=True)
class NtkByParts(Method):
    """f_i = (1 - g(r)) f / s + g(r) f, g linear in rotations r from alpha to beta.

    Equal to llama3's rule with low alpha and high beta, and written as such.

    Source: YaRN, arXiv:2309.00071, eq. 17-20.
    """

    name: ClassVar[str] = "ntk-by-parts"
    title: ClassVar[str] = "NTK-by-parts (paper form)"
    source: ClassVar[str] = "arXiv:2309.00071, eq. 17-20"
    use_when: ClassVar[str] = "you want YaRN's ramp without its temperature"
    short_price: ClassVar[str] = "small"
    rope_type: ClassVar[str | None] = "llama3"

    alpha: float = 1.0
    """Turns in the trained length below which a pair is interpolated wholly."""
    beta: float = 32.0
    """Turns above which a pair stays untouched."""

    def faults(self) -> list[str]:
        """Adds the order of the two ends."""
        faults = super().faults() + positive(alpha=self.alpha, beta=self.beta)
        if self.alpha >= self.beta:
            faults.append(f"alpha ({self.alpha:g}) must be below beta ({self.beta:g})")
        return faults

    @property
    def float32_tolerance(self) -> float:
        """Its blend loses a bit or two more in float32."""
        return 5e-6

    def frequencies(self, geometry: RotaryGeometry, length: int) -> Frequencies:
        """Static: `length` does not matter."""
        return banded_frequencies(geometry, self.factor, self.alpha, self.beta)

    def rope_parameters(self, geometry: RotaryGeometry) -> dict[str, Any]:
        """`llama3` with the paper's two ends."""
        refuse_stopped(self.name, geometry)
        return {
            "rope_type": "llama3",
            "rope_theta": geometry.theta,
            "factor": self.factor,
            "low_freq_factor": self.alpha,
            "high_freq_factor": self.beta,
            "original_max_position_embeddings": geometry.trained_length,
        }
