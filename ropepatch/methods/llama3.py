"""Llama 3.1's rule: three bands by wavelength, smooth between."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.bands import banded_frequencies
from ropepatch.methods.base import Method, positive
from ropepatch.methods.stopping import refuse_stopped


@dataclass(frozen=True, kw_only=True)
class Llama3(Method):
    """Pairs with more than `high_freq_factor` turns stay, fewer than `low_freq_factor` slow.

    Source: Llama 3.1, arXiv:2407.21783, section 3.4.2, and its published code.
    """

    name: ClassVar[str] = "llama3"
    title: ClassVar[str] = "Llama 3.1's bands"
    source: ClassVar[str] = "arXiv:2407.21783, section 3.4.2"
    use_when: ClassVar[str] = "the model is Llama 3.x, or you will fine-tune and want its rule"
    short_price: ClassVar[str] = "small"
    rope_type: ClassVar[str | None] = "llama3"

    low_freq_factor: float = 1.0
    """Turns in the trained length below which a pair slows by the whole factor."""
    high_freq_factor: float = 4.0
    """Turns above which a pair stays untouched."""

    def faults(self) -> list[str]:
        """Adds the order of the two bands."""
        faults = super().faults() + positive(
            low_freq_factor=self.low_freq_factor, high_freq_factor=self.high_freq_factor
        )
        if self.low_freq_factor >= self.high_freq_factor:
            faults.append(
                f"low_freq_factor ({self.low_freq_factor:g}) must be below high_freq_factor "
                f"({self.high_freq_factor:g})"
            )
        return faults

    @property
    def float32_tolerance(self) -> float:
        """Its blend loses a bit or two more in float32."""
        return 5e-6

    def frequencies(self, geometry: RotaryGeometry, length: int) -> Frequencies:
        """Static: `length` does not matter."""
        return banded_frequencies(
            geometry, self.factor, self.low_freq_factor, self.high_freq_factor
        )

    def rope_parameters(self, geometry: RotaryGeometry) -> dict[str, Any]:
        """`llama3` with all the keys its validation asks for."""
        refuse_stopped(self.name, geometry)
        return {
            "rope_type": "llama3",
            "rope_theta": geometry.theta,
            "factor": self.factor,
            "low_freq_factor": self.low_freq_factor,
            "high_freq_factor": self.high_freq_factor,
            "original_max_position_embeddings": geometry.trained_length,
        }

    @classmethod
    def from_rope_parameters(cls, block: Mapping[str, Any]) -> Self:
        """`llama3` with its two bands."""
        return cls(
            factor=float(block["factor"]),
            low_freq_factor=float(block["low_freq_factor"]),
            high_freq_factor=float(block["high_freq_factor"]),
        )
