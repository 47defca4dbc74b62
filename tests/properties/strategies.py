"""Random geometries, and random valid parameters of every method."""

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import strategies as st

from ropepatch.geometry import RotaryGeometry
from ropepatch.methods.base import Method
from ropepatch.methods.table import METHODS

Parameters = dict[str, Any]

LONGEST = 2**20
"""Tokens; no model was trained on more."""


def between(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


factors = between(1, 1024)
bases = st.sampled_from([1e3, 1e4, 5e5, 1e6, 1e7]) | between(1e3, 1e8)
lengths = st.integers(1, 4 * LONGEST)


@st.composite
def geometries(draw: st.DrawFn, *, whole: bool = False) -> RotaryGeometry:
    """Any width, also with stopped pairs; where asked, only `whole` heads."""
    pairs = draw(st.integers(3, 48) | st.sampled_from([64, 128]))
    head = 2 * pairs if whole else draw(st.integers(2 * pairs, 512))
    turning = draw(st.none() | st.integers(2 + pairs // 6, pairs))  # fewer, and NTK's base bursts
    trained = draw(st.integers(1024, LONGEST))
    return RotaryGeometry(head, 2 * pairs, draw(bases), trained, turning)


def ordered(low: str, high: str, *, strictly: bool) -> st.SearchStrategy[Parameters]:
    """Two turn counts in their order, or neither."""
    pair = st.tuples(between(0.25, 8), between(0.25 if strictly else 0, 64))
    return st.just({}) | pair.map(lambda p: {low: p[0], high: p[0] + p[1]})


def sometimes(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[Parameters]:
    """Each parameter, or not."""
    return st.fixed_dictionaries({}, optional=values)


def merged(*parts: st.SearchStrategy[Parameters]) -> st.SearchStrategy[Parameters]:
    return st.tuples(*parts).map(lambda found: {k: v for part in found for k, v in part.items()})


def seeded(pairs: int, low: float, high: float) -> st.SearchStrategy[tuple[float, ...]]:
    """One number a pair, from a seed: drawing each by itself takes most of the time."""

    def numbers(seed: int) -> tuple[float, ...]:
        chance = Random(seed)
        return tuple(chance.uniform(low, high) for _ in range(pairs))

    return st.integers(0, 2**32).map(numbers)


def divisors(pairs: int) -> st.SearchStrategy[tuple[float, ...]]:
    return seeded(pairs, 1, 256)


keeps = st.just("auto") | between(0, 1)
attentions = between(0.5, 4)

VALID: dict[str, Callable[[int], st.SearchStrategy[Parameters]]] = {
    "yarn": lambda _: merged(
        ordered("beta_slow", "beta_fast", strictly=False),
        sometimes(attention_factor=attentions, truncate=st.booleans()),
        st.just({}) | st.fixed_dictionaries({"mscale": attentions, "mscale_all_dim": attentions}),
    ),
    "pi": lambda _: sometimes(keep=keeps),
    "ntk": lambda _: st.just({}),
    "dynamic-ntk": lambda _: sometimes(ntk_factor=between(0.125, 16)),
    "dynamic-yarn": lambda _: merged(
        ordered("beta_slow", "beta_fast", strictly=False),
        sometimes(truncate=st.booleans(), tuned_factor=between(1, 64)),
    ),
    "ntk-by-parts": lambda _: ordered("alpha", "beta", strictly=True),
    "llama3": lambda _: (
        st.fixed_dictionaries({"low_freq_factor": between(0.25, 3.75)})
        | ordered("low_freq_factor", "high_freq_factor", strictly=True)
    ),
    "longrope": lambda pairs: st.fixed_dictionaries(
        {"long_factor": divisors(pairs)},
        optional={"short_factor": divisors(pairs), "attention_factor": attentions},
    ),
    "p-rope": lambda _: sometimes(keep=keeps),
}
"""Parameters besides `factor`, for a number of pairs."""


def methods(
    name: str, geometry: RotaryGeometry, factor: st.SearchStrategy[float] = factors
) -> st.SearchStrategy[Method]:
    """A method of this name that has an answer for this geometry."""
    parameters = VALID[name](geometry.pairs)
    whole = geometry.rotary_dim == geometry.head_dim
    return st.tuples(factor, parameters).map(
        lambda drawn: METHODS[name](
            factor=drawn[0], **{k: v for k, v in drawn[1].items() if whole or k != "keep"}
        )
    )


@st.composite
def placed(draw: st.DrawFn, name: str) -> tuple[Method, RotaryGeometry]:
    """A method and a geometry it has an answer for."""
    geometry = draw(geometries(whole=name == "p-rope"))
    return draw(methods(name, geometry)), geometry
