"""The table of methods: its words, what each refuses, and what each advises."""

from typing import Any

import pytest

from ropepatch.errors import GeometryError, NotExpressibleError, RecipeError
from ropepatch.geometry import RotaryGeometry
from ropepatch.methods.base import Method
from ropepatch.methods.dynamic_ntk import DynamicNtk
from ropepatch.methods.dynamic_yarn import DynamicYarn
from ropepatch.methods.longrope import LongRope
from ropepatch.methods.ntk import NtkAware
from ropepatch.methods.p_rope import PRope
from ropepatch.methods.pi import PositionInterpolation
from ropepatch.methods.table import ALIASES, METHODS, method_class, method_of_block
from ropepatch.methods.yarn import Yarn
from ropepatch.recipe import Recipe
from tests.examples import EXAMPLES

WHOLE = RotaryGeometry(64, 64, 10000.0, 4096)
PARTIAL = RotaryGeometry(64, 16, 10000.0, 4096)
STOPPED = RotaryGeometry(64, 64, 10000.0, 4096, turning_pairs=8)

ALL = [(name, parameters) for name in EXAMPLES for parameters in EXAMPLES[name]]


def bound(name: str, parameters: dict[str, Any]) -> Method:
    return Recipe.named(name, **parameters).bind(WHOLE)


# --- the table --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_an_example(name: str) -> None:
    assert EXAMPLES.get(name), f"no example for method {name}"


def test_every_example_is_of_a_method() -> None:
    assert EXAMPLES.keys() == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_examples_try_every_parameter(name: str) -> None:
    tried = {key for parameters in EXAMPLES[name] for key in parameters}
    assert tried == set(METHODS[name].parameter_names())


@pytest.mark.parametrize(("name", "parameters"), ALL)
def test_examples_are_valid(name: str, parameters: dict[str, Any]) -> None:
    method = bound(name, parameters)
    assert type(method) is METHODS[name]
    assert len(method.frequencies(WHOLE, 4096).inv_freq) == WHOLE.pairs
    assert METHODS[name](**method.parameters()) == method


@pytest.mark.parametrize("name", METHODS)
def test_rows_stand_under_their_own_name(name: str) -> None:
    cls = METHODS[name]
    assert cls.name == name
    assert method_class(name) is cls
    assert all((cls.title, cls.source, cls.use_when, cls.short_price))
    assert cls.parameter_names()[0] == "factor"


def test_aliases_stand_for_methods() -> None:
    assert set(ALIASES.values()) <= METHODS.keys()
    assert ALIASES.keys().isdisjoint(METHODS)


def test_all_faults_of_a_method_are_reported_together() -> None:
    with pytest.raises(RecipeError) as caught:
        Yarn(factor=0.5, beta_slow=-1, attention_factor=0, mscale=1)
    assert caught.value.faults == (
        "yarn: factor must be at least 1, not 0.5",
        "yarn: beta_slow must be above 0, not -1",
        "yarn: attention_factor must be above 0, not 0",
        "yarn: mscale and mscale_all_dim count only together; give both or neither",
    )


@pytest.mark.parametrize(("name", "parameters"), ALL)
def test_lengths(name: str, parameters: dict[str, Any]) -> None:
    method = bound(name, parameters)
    target = round(parameters.get("factor", 1) * 4096)
    assert method.target_length(WHOLE) == target
    assert method.config_length(WHOLE) == (4096 if name == "dynamic-ntk" else target)


# --- what has no answer -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p-rope", "pi"])
@pytest.mark.parametrize("keep", ["auto", 0.5])
def test_stopping_pairs_needs_whole_heads(name: str, keep: float | str) -> None:
    method = Recipe.named(name, factor=2, keep=keep).bind(PARTIAL)
    with pytest.raises(GeometryError) as caught:
        method.frequencies(PARTIAL, 1)
    assert str(caught.value) == (
        "p-RoPE needs every feature of a head to turn; here 16 of 64 do (partial_rotary_factor, "
        "another thing). Use pi or yarn."
    )
    with pytest.raises(GeometryError, match="here 16 of 64 do"):
        method.rope_parameters(PARTIAL)


def test_stopped_pairs_of_a_partial_head_cannot_be_written() -> None:
    geometry = RotaryGeometry(64, 16, 10000.0, 4096, turning_pairs=4)
    with pytest.raises(NotExpressibleError, match="turns whole heads; here 16 of 64 features turn"):
        PositionInterpolation(factor=2.0).rope_parameters(geometry)


@pytest.mark.parametrize("count", [1, 31, 33, 64])
def test_longrope_names_both_numbers(count: int) -> None:
    long = LongRope(factor=4.0, long_factor=(2.0,) * count)
    short = LongRope(factor=4.0, long_factor=(2.0,) * 32, short_factor=(1.0,) * count)
    for method, key in ((long, "long_factor"), (short, "short_factor")):
        said = f"longrope needs 32 numbers in {key} for this model (one per pair), got {count}."
        with pytest.raises(GeometryError) as caught:
            method.frequencies(WHOLE, 1)
        assert str(caught.value) == said
        with pytest.raises(GeometryError) as caught:
            method.rope_parameters(WHOLE)
        assert str(caught.value) == said


def test_longrope_counts_the_turned_width() -> None:
    method = LongRope(factor=4.0, long_factor=(2.0,) * 8)
    assert len(method.frequencies(PARTIAL, 1).inv_freq) == 8


@pytest.mark.parametrize("turning", [0, 1])
@pytest.mark.parametrize("cls", [NtkAware, DynamicNtk])
def test_ntk_needs_two_turning_pairs(cls: type[Method], turning: int) -> None:
    geometry = RotaryGeometry(64, 64, 10000.0, 4096, turning_pairs=turning)
    with pytest.raises(GeometryError) as caught:
        cls(factor=2.0).frequencies(geometry, 8192)
    assert str(caught.value) == (
        f"NTK needs at least 2 turning pairs, this model has {turning}; use pi."
    )


@pytest.mark.parametrize(("width", "factor"), [(228, 477.0), (230, 480.0)])
def test_ntk_refuses_a_base_beyond_all_numbers(width: int, factor: float) -> None:
    """Two turning pairs of a hundred: the base would be theta * factor^57, infinite or worse."""
    geometry = RotaryGeometry(width, width, 10000.0, 4096, turning_pairs=2)
    with pytest.raises((GeometryError, RecipeError)):
        NtkAware(factor=factor).frequencies(geometry, 1)


def test_dynamic_yarn_cannot_be_written() -> None:
    with pytest.raises(NotExpressibleError) as caught:
        DynamicYarn(factor=4.0).rope_parameters(WHOLE)
    assert str(caught.value) == (
        "dynamic-yarn cannot be written into a checkpoint: transformers, vLLM and SGLang have no "
        "type for a YaRN that follows the length. Use yarn (static) or dynamic-ntk."
    )


@pytest.mark.parametrize("name", ["yarn", "dynamic-ntk", "ntk-by-parts", "llama3", "longrope"])
def test_types_that_would_set_stopped_pairs_turning(name: str) -> None:
    method = bound(name, EXAMPLES[name][0])
    with pytest.raises(NotExpressibleError) as caught:
        method.rope_parameters(STOPPED)
    assert str(caught.value) == (
        f"{name} cannot be written for a model whose 24 slowest of 32 pairs stand still (p-RoPE): "
        "its rope_type would turn them. Use pi or ntk."
    )
    assert set(method.frequencies(STOPPED, 4096).inv_freq[8:]) == {0.0}


# --- blocks -----------------------------------------------------------------------------------

THETA = {"rope_theta": 10000.0}
TRAINED = {"original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("method", "block"),
    [
        (Yarn(factor=4.0), {"rope_type": "yarn", "factor": 4.0, **TRAINED}),
        (
            Yarn(factor=4.0, beta_fast=16.0, truncate=False, attention_factor=1.0),
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "beta_fast": 16.0,
                "truncate": False,
                "attention_factor": 1.0,
                **TRAINED,
            },
        ),
        (PositionInterpolation(factor=4.0), {"rope_type": "linear", "factor": 4.0}),
        (
            PositionInterpolation(factor=4.0, keep=0.5),
            {"rope_type": "proportional", "factor": 4.0, "partial_rotary_factor": 0.5},
        ),
        (PRope(keep=0.25), {"rope_type": "proportional", "partial_rotary_factor": 0.25}),
        (PRope(factor=8.0), {"rope_type": "proportional", "partial_rotary_factor": 23 / 32}),
        (DynamicNtk(factor=8.0, ntk_factor=2.0), {"rope_type": "dynamic", "factor": 2.0}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_blocks(method: Method, block: dict[str, Any]) -> None:
    assert method.rope_parameters(WHOLE) == block | THETA


def test_ntk_is_written_as_a_larger_base() -> None:
    block = NtkAware(factor=8.0).rope_parameters(WHOLE)
    assert block.pop("rope_theta") == pytest.approx(10000 * 8 ** (64 / 62), rel=1e-12)
    assert block == {"rope_type": "default"}


@pytest.mark.parametrize("rope_type", ["default", "mrope", "axial"])
def test_blocks_without_scaling(rope_type: str) -> None:
    assert method_of_block({"rope_type": rope_type, **THETA}) is None
    assert method_of_block(THETA) is None


@pytest.mark.parametrize(
    ("factor", "method"),
    [({}, None), ({"factor": None}, None), ({"factor": 1.0}, None), ({"factor": 4}, 4.0)],
)
def test_a_factor_of_proportional_is_pi(factor: dict[str, Any], method: float | None) -> None:
    read = method_of_block({"rope_type": "proportional", **factor, **THETA})
    assert read == (None if method is None else PositionInterpolation(factor=method))


@pytest.mark.parametrize("rope_type", ["su", "ntk", "longrope2", None, ""])
def test_an_unknown_type_is_named(rope_type: str | None) -> None:
    with pytest.raises(RecipeError, match=f"rope_type '{rope_type}' is not known"):
        method_of_block({"rope_type": rope_type, "factor": 4.0})


def test_empty_keys_of_a_yarn_block_mean_the_defaults() -> None:
    """As transformers reads them: `or 32`, `or 1`, and mscale only where both are nonzero."""
    block = {"rope_type": "yarn", "factor": 4, "beta_fast": None, "beta_slow": 0, "mscale": 0.7}
    for all_dim in (None, 0, 0.0):
        assert method_of_block({**block, "mscale_all_dim": all_dim}) == Yarn(factor=4.0)


def test_a_block_without_its_keys() -> None:
    with pytest.raises(KeyError, match="factor"):
        method_of_block({"rope_type": "yarn"})
    with pytest.raises(KeyError, match="long_factor"):
        method_of_block({"rope_type": "longrope", "factor": 4.0})


def test_a_block_with_numbers_out_of_range() -> None:
    with pytest.raises(RecipeError, match="llama3: low_freq_factor"):
        method_of_block(
            {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}
        )


# --- advice -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "geometry", "words"),
    [
        (Yarn(factor=4.0), WHOLE, ()),
        (Yarn(factor=4.0), PARTIAL, ("only the 16 rotated of 64",)),
        (Yarn(factor=4.0, attention_factor=1.0), PARTIAL, ()),
        (Yarn(factor=4.0, attention_factor=1.5), PARTIAL, ("only the 16",)),
        (NtkAware(factor=4.0), WHOLE, ("16384 tokens",)),
        (DynamicNtk(factor=4.0), WHOLE, ("KV cache",)),
        (DynamicYarn(factor=4.0), WHOLE, ()),
        (PositionInterpolation(factor=4.0), WHOLE, ()),
        (PRope(keep=0.5), WHOLE, ("stops 16 of 32 pairs",)),
        (PRope(keep=0.125), STOPPED, ("stops 4 of 32 pairs",)),
        (
            LongRope(factor=4.0, long_factor=(2.0,) * 32),
            WHOLE,
            ("pi by another name", "switches sets"),
        ),
        (
            LongRope(factor=4.0, long_factor=(1.0, 2.0), short_factor=(1.0, 2.0)),
            RotaryGeometry(4, 4, 10000.0, 4096),
            (),
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_advice(method: Method, geometry: RotaryGeometry, words: tuple[str, ...]) -> None:
    notes = method.advice(geometry)
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))
