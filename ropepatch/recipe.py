"""What to do, as data: a method by name, its parameters, how far, and on which layers.

A recipe is written by hand (YAML), by the command line or in Python; all three give the same
value. Nothing here knows a model: `bind` turns a recipe into a method once a geometry is known.
"""

import dataclasses
import math
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ropepatch.errors import NoEffectError, RecipeError
from ropepatch.geometry import RotaryGeometry
from ropepatch.methods.base import LONGEST_LENGTH, Method
from ropepatch.methods.table import method_class
from ropepatch.methods.values import coerce
from ropepatch.recipe_files import load_words

_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*([km]?)", re.IGNORECASE)
_WORDS = (
    "method",
    "factor",
    "to",
    "layers",
    "trained_length",
    "short_exact",
    "growth",
    "model",
    "note",
)
LEAST_GROWTH = 1.001
"""Below it a long prompt would be read in slivers."""


def parse_length(text: str | int) -> int:
    """Tokens from 131072, '128k' or '1m' (k = 1024).

    Raises:
        RecipeError: not a positive whole number of tokens.
    """
    try:
        match = _LENGTH.fullmatch(str(text).strip())
    except ValueError:
        match = None
    unit = {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()] if match else 1
    tokens = float(match[1]) * unit if match and len(match[1]) < 17 else 0.0
    if isinstance(text, bool) or tokens < 1 or tokens != int(tokens):
        raise RecipeError(f"'{text}' is not a length; write tokens: 131072, 128k or 1m.")
    return int(tokens)


@dataclass(frozen=True)
class Recipe:
    """One change, by name.

    Raises:
        RecipeError: unknown method, parameter or value; all faults together.
    """

    method: str
    """The method's word, as in the table of methods."""
    factor: float | None = None
    """How many times longer than trained."""
    to: int | None = None
    """Or the length to reach, tokens."""
    layers: tuple[str, ...] = ("auto",)
    """Layer types to change; 'auto' those that attend globally, 'all' every one that turns."""
    trained_length: int | None = None
    """Tokens; overrides what the config says the model was trained on."""
    short_exact: bool = False
    """Live models only: the frequencies stay as they were up to the trained length."""
    growth: float | None = None
    """Live models only: ratio of the lengths at which a dynamic method changes its frequencies."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The method's own parameters, by name."""

    def __post_init__(self) -> None:
        """Check everything that can be checked without a model."""
        try:
            cls = method_class(self.method)
        except RecipeError as error:
            raise RecipeError([*error.faults, *_factor_faults(self.factor)]) from None
        object.__setattr__(self, "method", cls.name)
        faults = [*_length_faults(self, cls), *_live_faults(self, cls)]
        known = {f.name: f.type for f in dataclasses.fields(cls) if f.name != "factor"}
        unknown = sorted(set(self.parameters) - set(known))
        takes = f"it takes factor, {', '.join(known)}" if known else "it takes only factor"
        faults += [f"{cls.name} takes no {key}; {takes}" for key in unknown]
        values = {}
        for key, value in self.parameters.items():
            if key in known:
                try:
                    values[key] = coerce(value, known[key])
                except ValueError as error:
                    faults.append(f"{cls.name}: {key} must be {error}, not {value!r}")
        missing = [
            f.name
            for f in dataclasses.fields(cls)
            if f.name not in ("factor", *self.parameters) and _required(f)
        ]
        faults += [f"{cls.name} needs {key}" for key in missing]
        if all(
            f.name in ("factor", *values) or not _required(f) for f in dataclasses.fields(cls)
        ):  # ranges, seen with a harmless factor where none is given yet
            try:
                method = cls(**{"factor": 1.0 if self.factor is None else self.factor, **values})
                if self.factor is not None and method.idle:
                    faults.append("factor 1 changes nothing; ask for more than 1")
            except RecipeError as error:
                faults += error.faults
        if faults:
            raise RecipeError(dict.fromkeys(faults))
        object.__setattr__(self, "parameters", types.MappingProxyType(values))

    def __reduce__(self) -> tuple[Any, ...]:
        """By its words: a read-only mapping cannot be copied or pickled."""
        return Recipe.from_dict, (self.to_dict(),)

    @classmethod
    def named(cls, method: str, /, **words: Any) -> "Recipe":
        """A recipe from keywords: `Recipe.named("yarn", factor=8, beta_fast=16)`."""
        return cls.from_dict({"method": method, **words})

    @classmethod
    def from_dict(cls, words: Mapping[str, Any]) -> "Recipe":
        """A recipe from flat words, as in a YAML file; unknown words are an error."""
        if not isinstance(words, Mapping) or not isinstance(words.get("method"), str):
            raise RecipeError("a recipe is a mapping with at least 'method: NAME'.")
        faults: list[str] = []
        lengths: dict[str, int | None] = {}
        for key in ("to", "trained_length"):
            try:
                lengths[key] = None if words.get(key) is None else parse_length(words[key])
            except RecipeError as error:
                faults += [f"{key}: {fault}" for fault in error.faults]
        factor = words.get("factor")
        try:
            factor = None if factor is None else coerce(factor, float)
        except ValueError as error:
            faults.append(f"factor must be {error}, not {factor!r}")
            factor = 2.0
        layers = words.get("layers", "auto")
        layers = layers.split(",") if isinstance(layers, str) else layers
        if not isinstance(layers, list | tuple) or not all(isinstance(w, str) for w in layers):
            faults.append(f"layers must be words, not {layers!r}")
            layers = ["auto"]
        short_exact, growth = words.get("short_exact") or False, words.get("growth")
        try:
            growth = None if growth is None else coerce(growth, float)
        except ValueError as error:
            faults.append(f"growth must be {error}, not {growth!r}")
            growth = None
        parameters = {str(k): v for k, v in words.items() if k not in _WORDS}
        try:
            recipe = cls(
                method=words["method"],
                factor=factor,
                layers=tuple(word.strip() for word in layers if word.strip()) or ("auto",),
                parameters=parameters,
                short_exact=short_exact,
                growth=growth,
                **lengths,
            )
        except RecipeError as error:
            raise RecipeError([*faults, *error.faults]) from None
        if faults:
            raise RecipeError(faults)
        return recipe

    @classmethod
    def from_yaml(cls, text: str) -> "Recipe":
        """The inverse of `to_yaml`; `model` and `note` may stand there and are not kept."""
        return cls.from_dict(load_words(text))

    def to_dict(self) -> dict[str, Any]:
        """Flat plain words; what was not set is left out."""
        words: dict[str, Any] = {"method": self.method}
        for key in ("factor", "to", "trained_length", "growth"):
            if getattr(self, key) is not None:
                words[key] = getattr(self, key)
        if self.short_exact:
            words["short_exact"] = True
        if self.layers != ("auto",):
            words["layers"] = list(self.layers)
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in self.parameters.items()}
        return words | plain

    def to_yaml(self) -> str:
        """Flat words, one a line."""
        import yaml  # here, since most recipes never see a file

        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    def bind(self, geometry: RotaryGeometry) -> Method:
        """The method for a model of this geometry; `to` becomes a factor.

        Raises:
            RecipeError: the target is shorter than the trained length, or beyond what positions
                in float32 can count.
            NoEffectError: factor 1 of a method that then changes nothing.
        """
        cls = method_class(self.method)
        trained = geometry.trained_length
        factor = self.factor
        if self.to is not None:
            if self.to < trained:
                raise RecipeError(
                    f"the target of {self.to} tokens is shorter than the {trained} the model was "
                    "trained on; ask for more, or give the true length with trained_length."
                )
            factor = self.to / trained
            while int(factor * trained) < self.to:  # engines cut it down to so many rows
                factor = math.nextafter(factor, math.inf)
        method = cls(**{**({} if factor is None else {"factor": factor}), **self.parameters})
        if method.idle:
            raise NoEffectError(
                f"{cls.name} with factor 1 changes nothing: the target equals the {trained} "
                "tokens the model was trained on."
            )
        if method.target_length(geometry) > LONGEST_LENGTH:
            raise RecipeError(
                f"{method.target_length(geometry)} tokens are beyond {LONGEST_LENGTH}, where "
                "float32 positions stop being exact."
            )
        return method


def as_recipe(given: Any) -> Recipe:
    """A recipe, or one from its words.

    Raises:
        RecipeError: it is neither.
    """
    if isinstance(given, Recipe):
        return given
    if isinstance(given, Mapping):
        return Recipe.from_dict(given)
    raise RecipeError(f"a recipe, or a mapping of its words, is needed, not {given!r}.")


def _length_faults(recipe: Recipe, cls: type[Method]) -> list[str]:
    if recipe.factor is not None and recipe.to is not None:
        return ["give factor or to, not both"]
    needed = any(f.name == "factor" and _required(f) for f in dataclasses.fields(cls))
    if recipe.factor is None and recipe.to is None and needed:
        return [f"{cls.name} needs factor (times the trained length) or to (tokens)"]
    return []


def _live_faults(recipe: Recipe, cls: type[Method]) -> list[str]:
    faults = []
    if not isinstance(recipe.short_exact, bool):
        faults.append(f"short_exact must be true or false, not {recipe.short_exact!r}")
    growth = recipe.growth
    if growth is not None and not cls.grows:
        faults.append(f"{cls.name} does not grow with the length, so it takes no growth")
    elif growth is not None and not (math.isfinite(growth) and growth >= LEAST_GROWTH):
        faults.append(f"growth must be a number of at least {LEAST_GROWTH}, not {growth!r}")
    return faults


def _factor_faults(factor: float | None) -> list[str]:
    """What is wrong with a factor whatever the method."""
    if factor is None or (math.isfinite(factor) and factor >= 1):
        return []
    return [f"factor must be at least 1, not {factor:g}"]


def _required(parameter: "dataclasses.Field[Any]") -> bool:
    return (
        parameter.default is dataclasses.MISSING
        and parameter.default_factory is dataclasses.MISSING
    )
