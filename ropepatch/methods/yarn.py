"""YaRN: NTK-by-parts with a ramp over the pairs, and a temperature on attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method, positive
from ropepatch.methods.ramps import temperature, yarn_frequencies
from ropepatch.methods.stopping import refuse_stopped


@dataclass(frozen=True, kw_only=True)
class Yarn(Method):
    """Fast pairs stay, slow pairs slow by `factor`, those between are blended.

    Source: Peng et al. 2023, arXiv:2309.00071, eq. 17-22, in the form of the authors' code.
    """

    name: ClassVar[str] = "yarn"
    title: ClassVar[str] = "YaRN"
    source: ClassVar[str] = "arXiv:2309.00071, eq. 17-22"
    use_when: ClassVar[str] = "the default: works without training, better with about 400 steps"
    short_price: ClassVar[str] = "small in perplexity, felt by some tasks: keep the factor low"
    rope_type: ClassVar[str | None] = "yarn"

    beta_fast: float = 32.0
    """Pairs with more turns than this in the trained length stay untouched."""
    beta_slow: float = 1.0
    """Pairs with fewer turns than this are interpolated wholly."""
    attention_factor: float | None = None
    """Multiplies cos and sin; unset, 0.1 ln(factor) + 1, or the mscale ratio."""
    mscale: float | None = None
    """DeepSeek's numerator; counts only together with `mscale_all_dim`."""
    mscale_all_dim: float | None = None
    """DeepSeek's denominator; MLA models also apply its square in the softmax scale."""
    truncate: bool = True
    """Floor and ceil the ramp's ends, as the authors' code does (gpt-oss: false)."""

    def faults(self) -> list[str]:
        """Adds the ranges of the ramp and of the temperature."""
        faults = super().faults() + positive(beta_fast=self.beta_fast, beta_slow=self.beta_slow)
        if self.beta_fast < self.beta_slow:
            faults.append(
                f"beta_fast ({self.beta_fast:g}) must not be below beta_slow ({self.beta_slow:g})"
            )
        if self.attention_factor is not None:
            faults += positive(attention_factor=self.attention_factor)
        for key in ("mscale", "mscale_all_dim"):
            if getattr(self, key) is not None:
                faults += positive(**{key: getattr(self, key)})
        if (self.mscale is None) != (self.mscale_all_dim is None):
            faults.append("mscale and mscale_all_dim count only together; give both or neither")
        return faults

    def temperature(self) -> float:
        """What multiplies cos and sin, by transformers' order of precedence."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            over, under = self.mscale, self.mscale_all_dim
            return temperature(self.factor, over) / temperature(self.factor, under)
        return temperature(self.factor)

    @property
    def softmax_mscale(self) -> float:
        """The square of the temperature by `mscale_all_dim`.

        Source: DeepSeek-V3's modelling code (yarn_get_mscale), arXiv:2412.19437, section 4.3.
        """
        if not self.mscale_all_dim:
            return 1.0
        return temperature(self.factor, self.mscale_all_dim) ** 2

    @property
    def float32_tolerance(self) -> float:
        """Without rounded ends, float32 strays up to 2e-6."""
        return 1e-6 if self.truncate else 5e-6

    def frequencies(self, geometry: RotaryGeometry, length: int) -> Frequencies:
        """Static: `length` does not matter."""
        return yarn_frequencies(
            geometry,
            self.factor,
            self.temperature(),
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            truncate=self.truncate,
        )

    def rope_parameters(self, geometry: RotaryGeometry) -> dict[str, Any]:
        """`yarn` with the trained length always written; defaults are left out."""
        refuse_stopped(self.name, geometry)
        block: dict[str, Any] = {
            "rope_type": "yarn",
            "rope_theta": geometry.theta,
            "factor": self.factor,
            "original_max_position_embeddings": geometry.trained_length,
        }
        defaults = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
        for key in (*defaults, "attention_factor", "mscale", "mscale_all_dim"):
            value = getattr(self, key)
            if value is not None and value != defaults.get(key):
                block[key] = value
        return block

    @classmethod
    def from_rope_parameters(cls, block: Mapping[str, Any]) -> Self:
        """`yarn`, with transformers' reading of missing and zero keys."""
        both = bool(block.get("mscale")) and bool(block.get("mscale_all_dim"))
        attention_factor = block.get("attention_factor")
        return cls(
            factor=float(block["factor"]),
            beta_fast=float(block.get("beta_fast") or 32.0),
            beta_slow=float(block.get("beta_slow") or 1.0),
            attention_factor=None if attention_factor is None else float(attention_factor),
            mscale=float(block["mscale"]) if both else None,
            mscale_all_dim=float(block["mscale_all_dim"]) if both else None,
            truncate=bool(block.get("truncate", True)),
        )

    def advice(self, geometry: RotaryGeometry) -> tuple[str, ...]:
        """Partial rotation leaves part of the head cold."""
        if geometry.rotary_dim != geometry.head_dim and self.temperature() != 1:
            return (
                f"yarn's temperature warms only the {geometry.rotary_dim} rotated of "
                f"{geometry.head_dim} features per head; --set attention_factor=1.0 turns it off.",
            )
        return ()
