"""Dynamic YaRN: the scale follows the current length, never below the tuned factor."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ropepatch.errors import NotExpressibleError
from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method, positive
from ropepatch.methods.ramps import temperature, yarn_frequencies


@dataclass(frozen=True, kw_only=True)
class DynamicYarn(Method):
    """YaRN with s = max(l / L, tuned_factor); the temperature follows s.

    Source: YaRN, arXiv:2309.00071, section 3.3 applied to eq. 17-22.
    """

    name: ClassVar[str] = "dynamic-yarn"
    title: ClassVar[str] = "Dynamic YaRN (scale follows the length)"
    source: ClassVar[str] = "arXiv:2309.00071, section 3.3"
    use_when: ClassVar[str] = "live inference only: no checkpoint format can say it"
    short_price: ClassVar[str] = "none up to the trained length"
    rope_type: ClassVar[str | None] = None
    length_dependent: ClassVar[bool] = True
    grows: ClassVar[bool] = True

    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    tuned_factor: float = 1.0
    """The factor a fine-tuned model was trained at; s never falls below it."""

    def faults(self) -> list[str]:
        """Adds the ranges of the ramp and of the tuned factor."""
        faults = super().faults() + positive(beta_fast=self.beta_fast, beta_slow=self.beta_slow)
        if self.beta_fast < self.beta_slow:
            faults.append(
                f"beta_fast ({self.beta_fast:g}) must not be below beta_slow ({self.beta_slow:g})"
            )
        if not (math.isfinite(self.tuned_factor) and self.tuned_factor >= 1):
            faults.append(f"tuned_factor must be at least 1, not {self.tuned_factor:g}")
        return faults

    def frequencies(self, geometry: RotaryGeometry, length: int) -> Frequencies:
        """Pure in `length`: never of earlier calls."""
        scale = max(length / geometry.trained_length, self.tuned_factor)
        return yarn_frequencies(
            geometry,
            scale,
            temperature(scale),
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            truncate=self.truncate,
        )

    def rope_parameters(self, geometry: RotaryGeometry) -> dict[str, Any]:
        """Refused: there is no such type."""
        raise NotExpressibleError(
            "dynamic-yarn cannot be written into a checkpoint: transformers, vLLM and SGLang have "
            "no type for a YaRN that follows the length. Use yarn (static) or dynamic-ntk."
        )
