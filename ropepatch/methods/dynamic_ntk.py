"""Dynamic NTK: the base follows the current length; exact at and below the trained length."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method, ntk_theta, positive
from ropepatch.methods.stopping import refuse_stopped


@dataclass(frozen=True, kw_only=True)
class DynamicNtk(Method):
    """theta' = theta * (a * l/L - (a - 1))^(d/(d-2)) for a current length l above L.

    `ntk_factor` is a, the number transformers calls `factor`; 1 is the paper's l/L. `factor`
    keeps its meaning (the length to reach) and only sets lengths, never frequencies.

    Source: u/emozilla 2023; YaRN, arXiv:2309.00071, section 3.3 and eq. 14-16.
    """

    name: ClassVar[str] = "dynamic-ntk"
    title: ClassVar[str] = "Dynamic NTK (base follows the length)"
    source: ClassVar[str] = "arXiv:2309.00071, section 3.3"
    use_when: ClassVar[str] = "short prompts must stay untouched and every pass sees all tokens"
    short_price: ClassVar[str] = "none up to the trained length"
    rope_type: ClassVar[str | None] = "dynamic"
    length_dependent: ClassVar[bool] = True
    grows: ClassVar[bool] = True

    ntk_factor: float = 1.0
    """a; 1 measured best on SmolLM2 at twice its trained length (README, 'Measured')."""

    def faults(self) -> list[str]:
        """Adds the range of `ntk_factor`."""
        return super().faults() + positive(ntk_factor=self.ntk_factor)

    def frequencies(self, geometry: RotaryGeometry, length: int) -> Frequencies:
        """Pure in `length`: never of earlier calls."""
        if length <= geometry.trained_length:
            return geometry.base_frequencies()
        ratio = length / geometry.trained_length
        alpha = self.ntk_factor * ratio - (self.ntk_factor - 1)
        return Frequencies(geometry.inverse_frequencies(ntk_theta(geometry, alpha)))

    def rope_parameters(self, geometry: RotaryGeometry) -> dict[str, Any]:
        """`dynamic`, whose `factor` is `ntk_factor`."""
        refuse_stopped(self.name, geometry)
        return {
            "rope_type": "dynamic",
            "rope_theta": geometry.theta,
            "factor": self.ntk_factor,
        }

    @classmethod
    def from_rope_parameters(cls, block: Mapping[str, Any]) -> Self:
        """`dynamic`; how far it was meant to reach is not written down, so factor is 1."""
        return cls(factor=1.0, ntk_factor=float(block["factor"]))

    def config_length(self, geometry: RotaryGeometry) -> int:
        """The trained length: transformers measures growth from `max_position_embeddings`."""
        return geometry.trained_length

    def advice(self, geometry: RotaryGeometry) -> tuple[str, ...]:
        """Stock transformers is wrong with a cache; engines differ."""
        return (
            "dynamic-ntk in stock transformers is inexact with a KV cache beyond the trained "
            "length (cached keys keep old angles) and remembers earlier inputs; vLLM's 'dynamic' "
            "is another, static method that ends at max_position_embeddings times ntk_factor. "
            "Prefer yarn for generation and for vLLM.",
        )

    def live_advice(self, geometry: RotaryGeometry) -> tuple[str, ...]:
        """Only what is saved loses its exactness."""
        return (
            "saved, it is stock transformers' dynamic type, which reads a whole pass by its final "
            "length and is inexact with a KV cache; ropepatch.load reads it as the patch does.",
        )
