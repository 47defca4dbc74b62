"""The contract of a method: a frozen dataclass whose fields are its parameters.

A method knows the mathematics and transformers' words for it, and nothing of files, tensors or
model families. Field names are the recipe's, the command line's and the JSON's words.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from ropepatch.errors import GeometryError, RecipeError
from ropepatch.geometry import Frequencies, RotaryGeometry

LARGEST_FACTOR = 4096.0
"""Twice the largest that a released model carries (Mistral Large 4: yarn, 512 to 1M tokens)."""

LARGEST_THETA = 3e38
"""Dimensionless; transformers raises the base in float32."""

LONGEST_LENGTH = 2**24
"""Tokens; float32 position ids stop being exact integers here."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One way to place positions; subclasses add parameters as fields."""

    name: ClassVar[str]
    """The word in recipes, on the command line and in the table."""
    title: ClassVar[str]
    source: ClassVar[str]
    """Paper and equation, or the thread that proposed it."""
    use_when: ClassVar[str]
    """One sentence for the table of methods."""
    short_price: ClassVar[str]
    """What it costs at short length, in words."""
    rope_type: ClassVar[str | None]
    """transformers' word, or None where it has none."""
    length_dependent: ClassVar[bool] = False
    """Whether the frequencies depend on the length of the current input."""
    grows: ClassVar[bool] = False
    """Whether they go on changing as the input gets longer, not only once."""

    factor: float
    """How many times longer than trained; the method's s."""

    def __post_init__(self) -> None:
        """Report every faulty parameter at once."""
        faults = self.faults()
        if faults:
            raise RecipeError([f"{self.name}: {fault}" for fault in faults])

    def faults(self) -> list[str]:
        """Parameters out of range, in words; subclasses extend."""
        if not math.isfinite(self.factor) or self.factor < 1:
            return [f"factor must be at least 1, not {self.factor:g}"]
        if self.factor > LARGEST_FACTOR:
            return [
                f"factor {self.factor:g} is beyond {LARGEST_FACTOR:g}, twice the largest that any "
                "released model carries"
            ]
        return []

    @property
    def idle(self) -> bool:
        """Whether these parameters change nothing whatever the model."""
        return self.factor == 1

    @property
    def softmax_mscale(self) -> float:
        """What MLA attention multiplies its softmax scale by; 1 for all but YaRN."""
        return 1.0

    @property
    def float32_tolerance(self) -> float:
        """Relative; how far a correct float32 implementation may stray."""
        return 1e-6

    @abstractmethod
    def frequencies(self, geometry: RotaryGeometry, length: int) -> Frequencies:
        """Frequencies for an input of `length` tokens, pure in both arguments.

        Raises:
            GeometryError: the method has no answer for this geometry.
        """

    @abstractmethod
    def rope_parameters(self, geometry: RotaryGeometry) -> dict[str, Any]:
        """The block transformers reads: `rope_type`, `rope_theta` and what the type needs.

        Raises:
            NotExpressibleError: transformers has no type for it.
        """

    def config_length(self, geometry: RotaryGeometry) -> int:
        """What `max_position_embeddings` must say, tokens."""
        return self.target_length(geometry)

    def target_length(self, geometry: RotaryGeometry) -> int:
        """Tokens the extended model is meant for: factor times the trained length."""
        return round(self.factor * geometry.trained_length)

    def parameters(self) -> dict[str, Any]:
        """Every parameter by name, `factor` first."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        """Names of the parameters, `factor` first."""
        return tuple(f.name for f in dataclasses.fields(cls))

    def advice(self, geometry: RotaryGeometry) -> tuple[str, ...]:
        """What a user should know before trusting the result."""
        return ()

    def live_advice(self, geometry: RotaryGeometry) -> tuple[str, ...]:
        """The same for a live patch, whose cached keys follow the length."""
        return self.advice(geometry)


def ntk_theta(geometry: RotaryGeometry, alpha: float) -> float:
    """The base at which the slowest turning pair slows by exactly `alpha`.

    With every pair turning this is theta * alpha^(d/(d-2)); where the slowest pairs were
    pretrained at zero (p-RoPE) the same condition is put on the slowest pair that turns.

    Source: YaRN, arXiv:2309.00071, eq. 14-16.

    Raises:
        GeometryError: fewer than two pairs turn, so no base can slow the slowest.
    """
    if geometry.turning < 2:
        raise GeometryError(
            f"NTK needs at least 2 turning pairs, this model has {geometry.turning}; use pi."
        )
    exponent = geometry.rotary_dim / (2 * (geometry.turning - 1))
    try:
        theta = float(geometry.theta * alpha**exponent)
    except OverflowError:
        theta = math.inf
    if theta > LARGEST_THETA:
        raise GeometryError(
            f"NTK with only {geometry.turning} of {geometry.pairs} pairs turning needs a base "
            f"beyond what float32 holds at a factor of {alpha:g}; use pi."
        )
    return theta


def positive(**values: float) -> list[str]:
    """Faults for values that are not finite and above zero."""
    return [
        f"{name} must be above 0, not {value:g}"
        for name, value in values.items()
        if not (math.isfinite(value) and value > 0)
    ]
