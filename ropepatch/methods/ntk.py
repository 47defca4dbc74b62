"""NTK-aware scaling: a larger base, so that slow pairs slow and fast ones hardly move."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method, ntk_theta
from ropepatch.methods.stopping import proportional_block


@dataclass(frozen=True, kw_only=True)
class NtkAware(Method):
    """f_i = theta'^(-2i/d) with theta' = theta * factor^(d/(d-2)).

    transformers has no static NTK type; it is a larger `rope_theta` under `default`, which every
    engine reads.

    Source: u/bloc97 2023; YaRN, arXiv:2309.00071, eq. 14-16.
    """

    name: ClassVar[str] = "ntk"
    title: ClassVar[str] = "NTK-aware (larger base)"
    source: ClassVar[str] = "arXiv:2309.00071, eq. 14-16"
    use_when: ClassVar[str] = "a target engine knows no scaling type; no training, modest factors"
    short_price: ClassVar[str] = "small"
    rope_type: ClassVar[str | None] = "default"

    def frequencies(self, geometry: RotaryGeometry, length: int) -> Frequencies:
        """Static: `length` does not matter."""
        return Frequencies(geometry.inverse_frequencies(ntk_theta(geometry, self.factor)))

    def rope_parameters(self, geometry: RotaryGeometry) -> dict[str, Any]:
        """`default` with the larger base, or `proportional` where some pairs stand still."""
        theta = ntk_theta(geometry, self.factor)
        if geometry.turning != geometry.pairs:
            return proportional_block(geometry, geometry.turning, 1.0) | {"rope_theta": theta}
        return {"rope_type": "default", "rope_theta": theta}

    def advice(self, geometry: RotaryGeometry) -> tuple[str, ...]:
        """Its reach falls short of the factor."""
        return (
            f"ntk reaches less than factor x trained length ({self.target_length(geometry)} "
            "tokens): only the slowest pair slows by the whole factor. Choose the factor larger "
            "than the length you need.",
        )
