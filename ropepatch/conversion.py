"""What to convert, as data: another way to place tokens, in which layers, with which slopes."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ropepatch.errors import RecipeError

ENCODINGS = ("alibi", "nope")
_RUN = re.compile(r"(\d+)-(\d+)")
LARGEST_LAYER = 100_000
LARGEST_BIAS_MAX = 64.0
"""Slopes down to 2^-64 are none."""
LARGEST_FACTOR = 2.0**20
LARGEST_SCALE = 1024.0
"""Beyond, float16 has no numbers for the biases."""
LEAST_SCALE = 2.0**-20
"""Below, a bias is lost in any rounding."""


@dataclass(frozen=True)
class ConversionRecipe:
    """One conversion away from rotary position embeddings.

    Raises:
        RecipeError: unknown encoding or value; all faults together.
    """

    to: str
    """'alibi' (linear biases) or 'nope' (no position encoding)."""
    layers: tuple[str | int, ...] = ("auto",)
    """'auto': every layer that turns; 'all': every one that attends; layer types, or numbers."""
    keep_rope_every: int | None = None
    """Of every so many layers, the last keeps its rotation."""
    alibi_bias_max: float = 8.0
    """The slopes of a power of two of heads end at 2^-alibi_bias_max (MPT's name)."""
    slope_scale: float = 1.0
    """Multiplies every slope."""
    factor: float = 1.0
    """Position interpolation: slopes are divided by it, lengths multiplied (arXiv:2310.13017)."""

    def __post_init__(self) -> None:
        """Check everything that can be checked without a model."""
        faults = []
        if self.to not in ENCODINGS:
            faults.append(f"a model is converted to {' or '.join(ENCODINGS)}, not to {self.to!r}")
        every = self.keep_rope_every
        if every is not None and (type(every) is not int or every < 2):
            faults.append(f"keep_rope_every is a whole number of at least 2, not {every!r}")
        ranges = {
            "alibi_bias_max": (LEAST_SCALE, LARGEST_BIAS_MAX),
            "slope_scale": (LEAST_SCALE, LARGEST_SCALE),
            "factor": (1.0, LARGEST_FACTOR),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            good = numeric and math.isfinite(value) and low <= value <= high
            if not good:
                least = "above 0" if low < 1 else f"at least {low:g}"
                hint = f" (from {low:.0e} on)" if numeric and 0 < value < min(low, 1) else ""
                faults.append(
                    f"{name} is a number {least} and at most {high:g}{hint}, not {value!r}"
                )
            elif self.to == "nope" and value != _DEFAULTS[name]:
                faults.append(f"{name} is for alibi; without a position encoding there is no slope")
            else:
                object.__setattr__(self, name, float(value))
        if isinstance(self.layers, str | int) or not self.layers:
            faults.append(f"layers is a list of layer types or numbers, not {self.layers!r}")
        if faults:
            raise RecipeError(faults)

    @classmethod
    def from_words(
        cls, words: Mapping[str, Any], before: Mapping[str, Any] | None = None
    ) -> "ConversionRecipe":
        """From keywords or a stamp; layers may be one text, 'full_attention', '0-3,8'.

        Args:
            words: What is asked for.
            before: What an earlier conversion was asked for; where that led to the same encoding,
                what is not said now stays as it was said then.

        Raises:
            RecipeError: unknown word or value.
        """
        if not isinstance(words, Mapping):
            raise RecipeError(f"a conversion is a mapping with at least 'to', not {words!r}.")
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(words) - set(known))
        if unknown:
            raise RecipeError(f"a conversion takes no {unknown[0]}; it takes {', '.join(known)}.")
        given = {key: value for key, value in words.items() if value is not None}
        if "to" not in given:
            raise RecipeError(f"say what to convert to: {' or '.join(ENCODINGS)}.")
        if isinstance(before, Mapping) and before.get("to") == given["to"]:
            given = {**before, **given}
        if "layers" in given:
            given["layers"] = _layers(given["layers"])
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Flat plain words; what was not set is left out."""
        words: dict[str, Any] = {"to": self.to}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "to" and value != field.default:
                words[field.name] = list(value) if isinstance(value, tuple) else value
        return words


_DEFAULTS = {field.name: field.default for field in fields(ConversionRecipe)}


def _layers(given: Any) -> tuple[str | int, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    parts = [parts] if isinstance(parts, int) else parts
    if not isinstance(parts, list | tuple | range):
        raise RecipeError(f"layers is a list of layer types or numbers, not {given!r}.")
    found: list[str | int] = []
    for part in parts:
        word = part.strip() if isinstance(part, str) else part
        if isinstance(word, bool) or not isinstance(word, str | int) or word == "":
            raise RecipeError(f"layers is a list of layer types or numbers, not {given!r}.")
        run = _RUN.fullmatch(word) if isinstance(word, str) else None
        if run is not None and int(run[2]) < LARGEST_LAYER:
            found += range(int(run[1]), int(run[2]) + 1)
            continue
        found.append(int(word) if isinstance(word, str) and word.isdecimal() else word)
    return tuple(found)
