"""What holds for every geometry, factor and length."""

import cmath
import itertools
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method
from ropepatch.methods.dynamic_ntk import DynamicNtk
from ropepatch.methods.dynamic_yarn import DynamicYarn
from ropepatch.methods.llama3 import Llama3
from ropepatch.methods.longrope import LongRope
from ropepatch.methods.ntk import NtkAware
from ropepatch.methods.ntk_by_parts import NtkByParts
from ropepatch.methods.p_rope import PRope
from ropepatch.methods.pi import PositionInterpolation
from ropepatch.methods.stopping import pairs_kept, proportional_block
from ropepatch.methods.table import METHODS
from ropepatch.methods.yarn import Yarn
from tests.properties.strategies import (
    VALID,
    between,
    factors,
    geometries,
    lengths,
    methods,
    ordered,
    placed,
    seeded,
)

ROUNDING = 1e-12
STATIC = [name for name, cls in METHODS.items() if not cls.length_dependent]
SCALING = [name for name in STATIC if name != "p-rope"]


def close(values: Any, expected: Any, tolerance: float = ROUNDING) -> bool:
    """Pair by pair, relative; zeros exactly."""
    return len(values) == len(expected) and all(
        abs(v - e) <= tolerance * abs(e) for v, e in zip(values, expected, strict=True)
    )


def turning_under(method: Method, geometry: RotaryGeometry) -> int:
    """How many pairs the method says keep turning."""
    keep = getattr(method, "keep", None)
    return geometry.turning if keep is None else pairs_kept(keep, geometry)


def test_every_method_has_random_parameters() -> None:
    assert VALID.keys() == METHODS.keys()


# --- all methods ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
@given(data=st.data())
def test_frequencies_are_finite_and_only_stopped_pairs_are_zero(
    name: str, data: st.DataObject
) -> None:
    method, geometry = data.draw(placed(name))
    answer = method.frequencies(geometry, data.draw(lengths))
    turning = turning_under(method, geometry)
    assert len(answer.inv_freq) == geometry.pairs
    assert all(math.isfinite(f) and f > 0 for f in answer.inv_freq[:turning])
    assert all(f == 0 for f in answer.inv_freq[turning:])
    assert math.isfinite(answer.attention_factor)
    assert answer.attention_factor > 0


@pytest.mark.parametrize("name", [name for name in METHODS if name != "longrope"])
@given(data=st.data())
def test_frequencies_never_rise_with_the_pair(name: str, data: st.DataObject) -> None:
    method, geometry = data.draw(placed(name))
    inv_freq = method.frequencies(geometry, data.draw(lengths)).inv_freq
    assert all(slow <= fast * (1 + ROUNDING) for fast, slow in itertools.pairwise(inv_freq))


@pytest.mark.parametrize("name", METHODS)
@given(data=st.data())
def test_frequencies_are_pure_in_the_length(name: str, data: st.DataObject) -> None:
    method, geometry = data.draw(placed(name))
    length = data.draw(lengths)
    first = method.frequencies(geometry, length)
    for between_times in data.draw(st.lists(lengths, max_size=3)):
        method.frequencies(geometry, between_times)
    fresh = type(method)(**method.parameters())
    assert method.frequencies(geometry, length) == first
    assert fresh.frequencies(geometry, length) == first


@pytest.mark.parametrize("name", STATIC)
@given(data=st.data())
def test_static_methods_ignore_the_length(name: str, data: st.DataObject) -> None:
    method, geometry = data.draw(placed(name))
    some, other = data.draw(lengths), data.draw(lengths)
    assert method.frequencies(geometry, some) == method.frequencies(geometry, other)


# --- scaling by a factor ----------------------------------------------------------------------


def scaling(data: st.DataObject, name: str, factor: float) -> tuple[Method, RotaryGeometry]:
    """A static scaling method that neither stops pairs nor sets its own temperature."""
    geometry = data.draw(geometries())
    named = {"keep", "attention_factor", "mscale", "mscale_all_dim"}
    parameters = data.draw(VALID[name](geometry.pairs))
    rest = {key: value for key, value in parameters.items() if key not in named}
    return METHODS[name](factor=factor, **rest), geometry


@pytest.mark.parametrize("name", SCALING)
@given(data=st.data())
def test_factor_one_is_the_identity(name: str, data: st.DataObject) -> None:
    method, geometry = scaling(data, name, 1.0)
    answer = method.frequencies(geometry, 1)
    assert close(answer.inv_freq, geometry.inverse_frequencies())
    assert answer.attention_factor == 1


@pytest.mark.parametrize("name", SCALING)
@given(data=st.data(), step=between(1e-12, 1e-3))
def test_factor_one_is_reached_without_a_jump(name: str, data: st.DataObject, step: float) -> None:
    method, geometry = scaling(data, name, 1 + step)
    answer = method.frequencies(geometry, 1)
    assert close(answer.inv_freq, geometry.inverse_frequencies(), step + ROUNDING)
    assert abs(answer.attention_factor - 1) <= step


@pytest.mark.parametrize("name", SCALING)
@given(data=st.data(), factor=factors)
def test_pairs_slow_by_at_most_the_factor(name: str, data: st.DataObject, factor: float) -> None:
    method, geometry = scaling(data, name, factor)
    inv_freq = method.frequencies(geometry, 1).inv_freq
    for base, f in zip(geometry.inverse_frequencies(), inv_freq, strict=True):
        assert base / factor * (1 - ROUNDING) <= f <= base * (1 + ROUNDING)


@given(geometry=geometries(), factor=factors)
def test_pi_slows_every_pair_by_the_factor(geometry: RotaryGeometry, factor: float) -> None:
    inv_freq = PositionInterpolation(factor=factor).frequencies(geometry, 1).inv_freq
    assert close([f * factor for f in inv_freq], geometry.inverse_frequencies())


@given(geometry=geometries(), factor=factors)
def test_ntk_holds_the_fastest_and_slows_the_slowest_by_the_factor(
    geometry: RotaryGeometry, factor: float
) -> None:
    base = geometry.inverse_frequencies()
    inv_freq = NtkAware(factor=factor).frequencies(geometry, 1).inv_freq
    last = geometry.turning - 1
    assert inv_freq[0] == 1
    assert close([inv_freq[last] * factor], [base[last]])


@given(geometry=geometries(), factor=factors)
def test_ntk_divides_the_ratio_between_the_pairs_evenly(
    geometry: RotaryGeometry, factor: float
) -> None:
    base = geometry.inverse_frequencies()
    inv_freq = NtkAware(factor=factor).frequencies(geometry, 1).inv_freq
    last = geometry.turning - 1
    expected = [base[i] * factor ** (-i / last) for i in range(last + 1)]
    assert close(inv_freq[: last + 1], expected)


@given(data=st.data(), geometry=geometries(), factor=factors, truncate=st.booleans())
def test_yarn_holds_pairs_of_many_turns_and_slows_pairs_of_few(
    data: st.DataObject, geometry: RotaryGeometry, factor: float, truncate: bool
) -> None:
    betas = {"beta_fast": 32.0, "beta_slow": 1.0} | data.draw(
        ordered("beta_slow", "beta_fast", strictly=True)
    )
    method = Yarn(factor=factor, truncate=truncate, **betas)
    inv_freq = method.frequencies(geometry, 1).inv_freq
    base, rotations = geometry.inverse_frequencies(), geometry.rotations()
    for i in range(geometry.turning):
        if rotations[i] > betas["beta_fast"] * (1 + 1e-9):
            assert close([inv_freq[i]], [base[i]])
        elif rotations[i] < betas["beta_slow"] * (1 - 1e-9) and i > 0:
            assert close([inv_freq[i] * factor], [base[i]])


@given(data=st.data(), geometry=geometries(), factor=factors)
def test_ntk_by_parts_is_llama3_by_other_names(
    data: st.DataObject, geometry: RotaryGeometry, factor: float
) -> None:
    ends = {"alpha": 1.0, "beta": 32.0} | data.draw(ordered("alpha", "beta", strictly=True))
    parts = NtkByParts(factor=factor, **ends).frequencies(geometry, 1)
    bands = Llama3(
        factor=factor, low_freq_factor=ends["alpha"], high_freq_factor=ends["beta"]
    ).frequencies(geometry, 1)
    assert parts == bands


@given(data=st.data(), geometry=geometries(), factor=factors)
def test_bands_are_whole_outside_and_linear_in_turns_between(
    data: st.DataObject, geometry: RotaryGeometry, factor: float
) -> None:
    low, high = 1.0, 4.0
    if custom := data.draw(ordered("low", "high", strictly=True)):
        low, high = custom["low"], custom["high"]
    method = Llama3(factor=factor, low_freq_factor=low, high_freq_factor=high)
    inv_freq = method.frequencies(geometry, 1).inv_freq
    base, rotations = geometry.inverse_frequencies(), geometry.rotations()
    for f, b, r in zip(inv_freq, base, rotations, strict=True):
        if b == 0:
            continue
        untouched = (f / b * factor - 1) / (factor - 1) if factor > 1.01 else None
        if r <= low:
            assert close([f * factor], [b])
        elif r >= high:
            assert close([f], [b])
        elif untouched is not None:
            assert math.isclose(untouched, (r - low) / (high - low), abs_tol=1e-9)


# --- following the length ---------------------------------------------------------------------


@given(data=st.data())
def test_dynamic_ntk_is_exact_up_to_the_trained_length(data: st.DataObject) -> None:
    geometry = data.draw(geometries())
    method = data.draw(methods("dynamic-ntk", geometry))
    length = data.draw(st.integers(1, geometry.trained_length))
    assert method.frequencies(geometry, length) == geometry.base_frequencies()
    assert method.frequencies(geometry, geometry.trained_length) == geometry.base_frequencies()


@given(data=st.data())
def test_dynamic_yarn_is_exact_up_to_the_trained_length(data: st.DataObject) -> None:
    geometry = data.draw(geometries())
    betas = data.draw(ordered("beta_slow", "beta_fast", strictly=False))
    method = DynamicYarn(factor=4, **betas)
    for length in (data.draw(st.integers(1, geometry.trained_length)), geometry.trained_length):
        answer = method.frequencies(geometry, length)
        assert close(answer.inv_freq, geometry.inverse_frequencies(), 4e-16)
        assert answer.attention_factor == 1


@given(data=st.data(), geometry=geometries(), tuned=between(1, 64))
def test_dynamic_yarn_stays_at_what_it_was_tuned_for(
    data: st.DataObject, geometry: RotaryGeometry, tuned: float
) -> None:
    method = DynamicYarn(factor=4, tuned_factor=tuned)
    reach = math.floor(tuned * geometry.trained_length)
    length = data.draw(st.integers(1, reach))
    static = Yarn(factor=tuned).frequencies(geometry, 1)
    assert method.frequencies(geometry, length) == static
    assert close(method.frequencies(geometry, reach).inv_freq, static.inv_freq)


@given(geometry=geometries(), ratio=between(1, 64))
def test_dynamic_yarn_is_yarn_for_the_current_length(
    geometry: RotaryGeometry, ratio: float
) -> None:
    length = math.ceil(ratio * geometry.trained_length)
    now = Yarn(factor=length / geometry.trained_length)
    assert DynamicYarn(factor=4).frequencies(geometry, length) == now.frequencies(geometry, 1)


@given(geometry=geometries(), ratio=between(1, 64))
def test_dynamic_ntk_of_the_paper_is_ntk_for_the_current_length(
    geometry: RotaryGeometry, ratio: float
) -> None:
    length = math.ceil(ratio * geometry.trained_length)
    now = NtkAware(factor=length / geometry.trained_length)
    ours = DynamicNtk(factor=4).frequencies(geometry, length)
    assert close(ours.inv_freq, now.frequencies(geometry, 1).inv_freq)


@given(geometry=geometries(), a=between(0.125, 64))
def test_dynamic_ntk_starts_without_a_jump(geometry: RotaryGeometry, a: float) -> None:
    method = DynamicNtk(factor=4, ntk_factor=a)
    base = geometry.inverse_frequencies()
    above = method.frequencies(geometry, geometry.trained_length + 1)
    alpha = 1 + a / geometry.trained_length
    for b, f in zip(base, above.inv_freq, strict=True):
        assert b / alpha * (1 - ROUNDING) <= f <= b
    assert above.attention_factor == 1


@given(geometry=geometries(), tuned=st.integers(1, 64))
def test_dynamic_yarn_starts_without_a_jump(geometry: RotaryGeometry, tuned: int) -> None:
    method = DynamicYarn(factor=4, tuned_factor=float(tuned))
    reach = tuned * geometry.trained_length
    at, above = (method.frequencies(geometry, length) for length in (reach, reach + 1))
    growth = (reach + 1) / reach
    for b, f in zip(at.inv_freq, above.inv_freq, strict=True):
        assert b / growth * (1 - ROUNDING) <= f <= b * (1 + ROUNDING)
    step = above.attention_factor - at.attention_factor
    assert 0 <= step <= 0.1 * math.log(growth) + ROUNDING


@pytest.mark.parametrize("name", ["dynamic-ntk", "dynamic-yarn"])
@given(data=st.data())
def test_longer_inputs_never_turn_faster(name: str, data: st.DataObject) -> None:
    method, geometry = data.draw(placed(name))
    short, long = sorted([data.draw(lengths), data.draw(lengths)])
    at, above = (method.frequencies(geometry, length) for length in (short, long))
    for fast, slow in zip(at.inv_freq, above.inv_freq, strict=True):
        assert slow <= fast * (1 + ROUNDING)
    assert above.attention_factor >= at.attention_factor


@given(data=st.data())
def test_longrope_divides_by_the_set_of_the_length(data: st.DataObject) -> None:
    geometry = data.draw(geometries())
    method = data.draw(methods("longrope", geometry))
    assert isinstance(method, LongRope)
    ones = (1.0,) * geometry.pairs
    trained = geometry.trained_length
    sets = {trained: method.short_factor or ones, trained + 1: method.long_factor}
    for length, divisors in sets.items():
        inv_freq = method.frequencies(geometry, length).inv_freq
        back = [f * e for f, e in zip(inv_freq, divisors, strict=True)]
        assert close(back, geometry.inverse_frequencies())
    attention = {method.frequencies(geometry, length).attention_factor for length in sets}
    assert len(attention) == 1


# --- stopping pairs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p-rope", "pi"])
@given(geometry=geometries(whole=True))
def test_auto_stops_the_pairs_that_never_complete_a_turn(
    name: str, geometry: RotaryGeometry
) -> None:
    words: dict[str, Any] = {"factor": 1.0, "keep": "auto"}
    inv_freq = METHODS[name](**words).frequencies(geometry, 1).inv_freq
    for i in range(geometry.turning):
        wavelength = 2 * math.pi * geometry.theta ** (i / geometry.pairs)
        assume(not math.isclose(wavelength, geometry.trained_length, rel_tol=1e-9))
        assert (inv_freq[i] > 0) == (wavelength < geometry.trained_length)


@given(geometry=geometries(whole=True), keep=between(0, 1))
def test_kept_pairs_are_untouched(geometry: RotaryGeometry, keep: float) -> None:
    inv_freq = PRope(keep=keep).frequencies(geometry, 1).inv_freq
    kept = min(math.floor(keep * geometry.pairs), geometry.turning)
    assert inv_freq[:kept] == geometry.inverse_frequencies()[:kept]
    assert set(inv_freq[kept:]) <= {0.0}


@given(geometry=geometries(whole=True), keep=between(0, 1), factor=factors)
def test_pi_slows_what_it_keeps(geometry: RotaryGeometry, keep: float, factor: float) -> None:
    slowed = PositionInterpolation(factor=factor, keep=keep).frequencies(geometry, 1)
    kept = PRope(keep=keep).frequencies(geometry, 1)
    assert close([f * factor for f in slowed.inv_freq], kept.inv_freq)


@pytest.mark.parametrize("head_dim", range(2, 514, 2))
def test_the_written_fraction_keeps_exactly_the_pairs(head_dim: int) -> None:
    """By transformers' own arithmetic, for every number of pairs of every head."""
    geometry = RotaryGeometry(head_dim, head_dim, 10000.0, 4096)
    for kept in range(head_dim // 2 + 1):
        fraction = proportional_block(geometry, kept, 1.0)["partial_rotary_factor"]
        assert int(fraction * head_dim // 2) == kept
        assert 0 <= fraction <= 1


# --- rotation ---------------------------------------------------------------------------------


def vectors(pairs: int) -> st.SearchStrategy[list[complex]]:
    """Queries or keys, a pair of features as one complex number."""
    return st.tuples(seeded(pairs, -4, 4), seeded(pairs, -4, 4)).map(
        lambda parts: [complex(x, y) for x, y in zip(*parts, strict=True)]
    )


positions = st.integers(0, 2**17)


def rotated(vector: list[complex], position: int, frequencies: Frequencies) -> list[complex]:
    """Every pair turned by its angle at this position, and warmed."""
    warm = frequencies.attention_factor
    return [
        warm * v * cmath.exp(1j * position * f)
        for v, f in zip(vector, frequencies.inv_freq, strict=True)
    ]


def score(q: list[complex], k: list[complex]) -> float:
    return sum((a * b.conjugate()).real for a, b in zip(q, k, strict=True))


def norm(vector: list[complex]) -> float:
    return math.sqrt(score(vector, vector))


@pytest.mark.parametrize("name", METHODS)
@given(data=st.data(), m=positions, n=positions, shift=positions)
def test_scores_depend_on_the_distance_only(
    name: str, data: st.DataObject, m: int, n: int, shift: int
) -> None:
    method, geometry = data.draw(placed(name))
    frequencies = method.frequencies(geometry, data.draw(lengths))
    q, k = data.draw(vectors(geometry.pairs)), data.draw(vectors(geometry.pairs))
    here = score(rotated(q, m, frequencies), rotated(k, n, frequencies))
    there = score(rotated(q, m + shift, frequencies), rotated(k, n + shift, frequencies))
    size = norm(q) * norm(k) * frequencies.attention_factor**2
    assert abs(here - there) <= 1e-9 * size + 1e-9
    expected = norm(q) * frequencies.attention_factor
    assert math.isclose(norm(rotated(q, m, frequencies)), expected, rel_tol=1e-9, abs_tol=1e-9)
