"""What the channels multiply out to: slope times distance, to the digit, in every precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.runtime.channels import alibi_slopes, channels, places
from tests.convert.definition import SLOPES

HEADS = st.integers(1, 40)
QUICK = settings(max_examples=60, deadline=None)


def parts(
    slopes: torch.Tensor, keys: int, queries: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The channels of queries, (heads, queries, n), and of keys, (keys, n), as they travel."""
    heads, features = len(slopes), 8
    query = torch.zeros(1, heads, queries, features, dtype=dtype)
    key = torch.zeros(1, 1, keys, features, dtype=dtype)
    ahead, behind, _ = channels(slopes, query, key, key, places(None, query, key))
    assert ahead.dtype == behind.dtype == dtype
    return ahead[0, ..., :-features].double(), behind[0, 0, :, :-features].double()


def wanted_bias(slopes: torch.Tensor, keys: int, queries: int) -> torch.Tensor:
    """(heads, queries, keys), float64."""
    slots = torch.arange(keys, dtype=torch.float64)
    return slopes.double()[:, None, None] * (slots - slots[keys - queries :, None])


@QUICK
@given(
    heads=HEADS,
    keys=st.one_of(st.integers(1, 3000), st.integers(131_000, 140_000)),
    queries=st.integers(1, 2),
    scale=st.floats(0.01, 2.0),
)
def test_the_product_is_slope_times_distance(
    heads: int, keys: int, queries: int, scale: float
) -> None:
    queries = min(queries, keys)
    slopes = torch.tensor(alibi_slopes(heads)) / scale
    ahead, behind = parts(slopes, keys, queries, torch.float32)
    found = ahead @ behind.T * scale
    wanted = wanted_bias(slopes * scale, keys, queries)
    # relative to the largest term: what is summed are slope * key and slope * query
    size = slopes.double()[:, None, None] * scale * max(keys, 1)
    assert ((found - wanted).abs() <= 1e-6 * wanted.abs() + 2e-7 * size).all()


@QUICK
@given(heads=HEADS, keys=st.integers(2, 140_000))
def test_in_float64_the_product_is_exact_to_the_last_digits(heads: int, keys: int) -> None:
    slopes = torch.tensor(alibi_slopes(heads), dtype=torch.float64)
    ahead, behind = parts(slopes, keys, min(2, keys), torch.float64)
    wanted = wanted_bias(slopes, keys, min(2, keys))
    torch.testing.assert_close(ahead @ behind.T, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keys", [2, 255, 256, 257, 4096, 131_072, 131_073, 140_000])
def test_differences_between_keys_come_through_half_precision(
    keys: int, dtype: torch.dtype
) -> None:
    """The constant of a row may be rounded; what two keys differ by may not."""
    slopes = torch.tensor(SLOPES[12])
    ahead, behind = parts(slopes, keys, 1, dtype)
    found = (ahead @ behind.T)[:, 0]
    slots = torch.arange(keys, dtype=torch.float64) - (keys - 1)
    wanted = slopes.double()[:, None] * slots
    apart = found - found[:, -1:]
    # a slope of two numbers of 8 bits each is right to 2^-16
    # and below 6e-5 float16 has fewer, denormal bits
    atol = 2e-5 if dtype == torch.float16 else 0
    torch.testing.assert_close(apart, wanted, rtol=2**-15, atol=atol)


@pytest.mark.parametrize("keys", [512, 65_536, 131_072, 131_073, 200_001, 300_000])
def test_every_number_of_the_keys_is_exact_in_bfloat16(keys: int) -> None:
    slopes = torch.tensor(SLOPES[2])
    _, rounded = parts(slopes, keys, 1, torch.bfloat16)
    _, full = parts(slopes, keys, 1, torch.float64)
    assert torch.equal(rounded, full)
    assert torch.unique(rounded, dim=0).shape[0] == keys  # no two keys share a place


@pytest.mark.parametrize("keys", [131_072, 131_073])
@pytest.mark.parametrize("slope", [1.0, 0.7071067811865476, 2**-8, 2**-16])
def test_the_third_digit_takes_over_without_a_step(keys: int, slope: float) -> None:
    """One more position digit is needed from 131,073 keys on."""
    ahead, behind = parts(torch.tensor([slope]), keys, 1, torch.bfloat16)
    found = (ahead @ behind.T)[0, 0]
    steps = found[1:] - found[:-1]
    torch.testing.assert_close(steps, torch.full_like(steps, slope), rtol=2**-7, atol=2**-12)


@QUICK
@given(
    heads=HEADS,
    keys=st.integers(2, 5000),
    first=st.integers(0, 5000),
    second=st.integers(0, 5000),
)
def test_two_keys_differ_by_slope_times_their_distance(
    heads: int, keys: int, first: int, second: int
) -> None:
    first, second = first % keys, second % keys
    slopes = torch.tensor(alibi_slopes(heads))
    ahead, behind = parts(slopes, keys, 1, torch.bfloat16)
    found = (ahead @ (behind[first] - behind[second]))[:, 0]
    torch.testing.assert_close(found, slopes.double() * (first - second), rtol=2**-15, atol=0)
