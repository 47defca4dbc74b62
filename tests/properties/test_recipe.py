"""Recipes survive being written down, and refuse nonsense with one kind of error."""

import contextlib
import string
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.errors import NoEffectError, RecipeError
from ropepatch.geometry import RotaryGeometry
from ropepatch.methods.table import ALIASES, METHODS
from ropepatch.recipe import Recipe, parse_length
from ropepatch.recipe_files import load_words
from tests.properties.strategies import VALID, between

PAIRS = 32
TRAINED = 3001  # no power of two, so that to / trained * trained rounds
GEOMETRY = RotaryGeometry(64, 64, 10000.0, TRAINED)

layer_words = st.text(string.ascii_lowercase + "_", min_size=1, max_size=12)
layer_lists = st.just(("auto",)) | st.lists(layer_words, min_size=1, max_size=3).map(tuple)


@st.composite
def recipes(draw: st.DrawFn, name: str) -> Recipe:
    """Any recipe of this method that should be accepted."""
    far: dict[str, Any] = draw(
        st.fixed_dictionaries({"factor": between(1.01, 1024)})
        | st.fixed_dictionaries({"to": st.integers(1, 2**24)})
    )
    return Recipe(
        method=name,
        layers=draw(layer_lists),
        trained_length=draw(st.none() | st.integers(1, 2**24)),
        parameters=draw(VALID[name](PAIRS)),
        **far,
    )


@pytest.mark.parametrize("name", METHODS)
@given(data=st.data())
def test_yaml_and_back(name: str, data: st.DataObject) -> None:
    recipe = data.draw(recipes(name))
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe


@pytest.mark.parametrize("name", METHODS)
@given(data=st.data())
def test_words_and_back(name: str, data: st.DataObject) -> None:
    recipe = data.draw(recipes(name))
    words = recipe.to_dict()
    assert Recipe.from_dict(words) == recipe
    assert Recipe.named(words.pop("method"), **words) == recipe


@pytest.mark.parametrize("name", METHODS)
@given(data=st.data())
def test_binding_keeps_what_was_asked(name: str, data: st.DataObject) -> None:
    recipe = data.draw(recipes(name))
    try:
        method = recipe.bind(GEOMETRY)
    except (RecipeError, NoEffectError):
        assert recipe.to is None or not TRAINED < recipe.to <= 1024 * TRAINED
        return
    assert type(method) is METHODS[name]
    for key, value in recipe.parameters.items():
        assert getattr(method, key) == value
    if recipe.to is None:
        assert method.factor == recipe.factor
    else:
        assert method.target_length(GEOMETRY) == recipe.to


@pytest.mark.parametrize("name", METHODS)
@given(data=st.data())
def test_spelling_of_the_method_does_not_matter(name: str, data: st.DataObject) -> None:
    words = data.draw(recipes(name)).to_dict()
    other = data.draw(st.sampled_from([w for w in (name, *ALIASES) if ALIASES.get(w, w) == name]))
    other = data.draw(st.sampled_from([other, f" {other.upper()} ", other.replace("-", "_")]))
    assert Recipe.from_dict(words | {"method": other}) == Recipe.from_dict(words)


# --- nonsense ---------------------------------------------------------------------------------

known_words = sorted(
    {"method", "factor", "to", "layers", "trained_length", "model", "note"}
    | {name for cls in METHODS.values() for name in cls.parameter_names()}
)
keys = st.sampled_from(known_words) | st.text(max_size=5) | st.integers() | st.none()
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 10**400, -(10**400)])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "inf", "-inf", "nan", "1e999", "128k", "9" * 400, "9" * 400 + "m"])
    | st.binary(max_size=4)
    | st.dates()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=200)
@given(
    name=st.sampled_from([*METHODS, *ALIASES]),
    words=st.dictionaries(keys, values, max_size=6),
)
def test_nonsense_is_refused_by_name(name: str, words: dict[Any, Any]) -> None:
    """Refused with a `RecipeError`, or accepted and written down; never anything else."""
    with contextlib.suppress(RecipeError):
        recipe = Recipe.from_dict(words | {"method": name})
        assert Recipe.from_yaml(recipe.to_yaml()) == recipe
        with contextlib.suppress(NoEffectError):
            recipe.bind(GEOMETRY)


@given(words=values | st.dictionaries(keys, values, max_size=6))
def test_nonsense_without_a_method_is_refused(words: Any) -> None:
    with contextlib.suppress(RecipeError):
        Recipe.from_dict(words)


@given(words=values | st.dictionaries(keys, values, max_size=4))
def test_nonsense_in_yaml_is_refused(words: Any) -> None:
    text = yaml.safe_dump(words)
    with contextlib.suppress(RecipeError):
        Recipe.from_yaml(text)


@given(text=st.text() | st.text(" \n:-?!&*[]{}|>%@#,'\"0123456789abxe_~.", max_size=30))
def test_any_text_is_a_mapping_or_refused(text: str) -> None:
    with contextlib.suppress(RecipeError):
        assert isinstance(load_words(text), dict)


# --- lengths ----------------------------------------------------------------------------------


@given(tokens=st.integers(1, 2**53))
def test_lengths_in_tokens(tokens: int) -> None:
    assert parse_length(tokens) == tokens
    assert parse_length(str(tokens)) == tokens


@given(
    count=st.integers(1, 2**16),
    unit=st.sampled_from(["k", "K", "m", "M"]),
    space=st.sampled_from(["", " "]),
)
def test_lengths_with_a_unit(count: int, unit: str, space: str) -> None:
    size = 1024 if unit in "kK" else 1024**2
    assert parse_length(f"{count}{space}{unit}") == count * size
    assert parse_length(f"{count}.5{unit}") == count * size + size // 2


@given(text=st.text() | st.integers().map(str) | st.floats().map(str))
def test_other_lengths_are_refused(text: str) -> None:
    with contextlib.suppress(RecipeError):
        assert parse_length(text) >= 1
