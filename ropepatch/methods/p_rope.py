"""p-RoPE: the slowest pairs stop turning and carry content without position."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method
from ropepatch.methods.stopping import Keep, keep_faults, pairs_kept, proportional_block


@dataclass(frozen=True, kw_only=True)
class PRope(Method):
    """f_i = theta^(-2i/d) for the fastest `keep` of the pairs, 0 for the others.

    Exponents run over the whole head, unlike `partial_rotary_factor` of GPT-NeoX. `factor` only
    sets lengths; to slow the kept pairs as well, use `pi` with `keep`.

    Source: Barbero et al. 2024, arXiv:2410.06205, section 6.
    """

    name: ClassVar[str] = "p-rope"
    title: ClassVar[str] = "p-RoPE (slowest pairs stop)"
    source: ClassVar[str] = "arXiv:2410.06205, section 6"
    use_when: ClassVar[str] = "you will fine-tune; 'auto' stops what never completed a turn"
    short_price: ClassVar[str] = "large until trained"
    rope_type: ClassVar[str | None] = "proportional"

    factor: float = 1.0
    keep: Keep = "auto"
    """Fraction of the pairs that keeps turning, 0 to 1, or 'auto'."""

    def faults(self) -> list[str]:
        """Adds the range of `keep`."""
        return super().faults() + keep_faults(self.keep)

    @property
    def idle(self) -> bool:
        """Never: the lengths aside, it changes pairs at any factor."""
        return False

    def frequencies(self, geometry: RotaryGeometry, length: int) -> Frequencies:
        """Static: `length` does not matter."""
        kept = pairs_kept(self.keep, geometry)
        base = geometry.inverse_frequencies()
        return Frequencies(tuple(f if i < kept else 0.0 for i, f in enumerate(base)))

    def rope_parameters(self, geometry: RotaryGeometry) -> dict[str, Any]:
        """`proportional` with the fraction that leaves exactly these pairs turning."""
        return proportional_block(geometry, pairs_kept(self.keep, geometry), 1.0)

    def advice(self, geometry: RotaryGeometry) -> tuple[str, ...]:
        """It breaks an untrained model."""
        stopped = geometry.turning - pairs_kept(self.keep, geometry)
        return (
            f"p-rope stops {stopped} of {geometry.pairs} pairs that the model was trained to "
            "read; expect a loss until it is fine-tuned.",
        )
