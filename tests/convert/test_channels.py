"""Biases that travel in more channels, against the definition in float64."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ropepatch.runtime.attention import STATE, Alibi, attention
from ropepatch.runtime.channels import alibi_slopes, channels, full_bias, places, rows_of
from tests.convert.definition import SLOPES, attend

SHAPES = pytest.mark.parametrize(
    ("heads", "key_heads", "features"),
    [
        (4, 2, 64),
        (2, 1, 80),
        (2, 2, 128),
        (3, 1, 64),
        (12, 4, 16),
        (5, 5, 7),
        (6, 3, 33),
        (1, 1, 1),
    ],
)


def drawn(
    heads: int,
    key_heads: int,
    features: int,
    queries: int,
    keys: int,
    dtype: torch.dtype = torch.float32,
    values: int | None = None,
    batch: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    shapes = [(heads, queries, features), (key_heads, keys, features)]
    shapes.append((key_heads, keys, values or features))
    one, two, three = (torch.randn(batch, *s, generator=chance).to(dtype) for s in shapes)
    return one, two, three


def by_channels(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """(batch, queries, heads, features), in the dtype of the queries."""
    own = places(None, query, key)
    wide = channels(slopes / scaling, query, key, value, own)
    found = F.scaled_dot_product_attention(
        *wide, attn_mask=causal(query, key), scale=scaling, enable_gqa=True
    )
    return found[..., : value.shape[-1]].transpose(1, 2)


def causal(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    count, keys = query.shape[2], key.shape[2]
    return torch.ones(count, keys, dtype=torch.bool).tril(keys - count)


def slopes_of(heads: int) -> torch.Tensor:
    return torch.tensor(SLOPES[heads])


@SHAPES
@pytest.mark.parametrize(("queries", "keys"), [(96, 96), (3, 300), (1, 1), (2, 5), (1, 513)])
def test_attention_is_the_definitions(
    heads: int, key_heads: int, features: int, queries: int, keys: int
) -> None:
    given = drawn(heads, key_heads, features, queries, keys)
    slopes, scaling = slopes_of(heads), features**-0.5
    wanted = attend(*given, torch.tensor(SLOPES[heads], dtype=torch.float64), scaling)
    found = by_channels(*given, slopes, scaling).double()
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)
    assert (attend(*given, slopes * 0, scaling) - wanted).abs().max() > 1e-3 or keys == 1


@pytest.mark.parametrize("keys", [1024, 8192, 32768])
@pytest.mark.parametrize("features", [64, 80, 128])
@pytest.mark.parametrize("rows", [16, 33])
def test_attention_stays_exact_up_to_32k_keys(keys: int, features: int, rows: int) -> None:
    """Of 33 rows, a CPU kernel computes one by itself, and sums it in another order."""
    given = drawn(3, 1, features, rows, keys)
    wanted = attend(*given, torch.tensor(SLOPES[3], dtype=torch.float64), features**-0.5)
    module: Any = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, 3
    module.add_module(STATE, Alibi([3], 8.0, 1.0))
    mask = torch.arange(keys) <= torch.arange(keys - rows, keys)[:, None]
    found, _ = attention(module.eval(), *given, mask[None, None], scaling=features**-0.5)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("keys", [8192, 32768])
def test_one_token_after_many_stays_exact_where_all_heads_share_a_key(keys: int) -> None:
    """There even one row of queries goes by channels, since a row of biases is the longer."""
    given = drawn(32, 1, 64, 1, keys)
    module: Any = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, 32
    module.add_module(STATE, Alibi([32], 8.0, 1.0))
    found, _ = attention(module.eval(), *given, None, scaling=0.125)
    wanted = attend(*given, torch.tensor(SLOPES[32], dtype=torch.float64), 0.125)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("keys", [4096, 32768])
def test_flat_slopes_that_look_far_stay_exact(keys: int) -> None:
    """Where many keys weigh alike, an error would not be drowned by the nearest."""
    given = drawn(4, 2, 64, 16, keys)
    numbers = alibi_slopes(4, 16.0)
    wanted = attend(*given, torch.tensor(numbers, dtype=torch.float64), 0.125)
    found = by_channels(*given, torch.tensor(numbers), 0.125).double()
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keys", [64, 1024, 16384, 32768])
@pytest.mark.parametrize("heads", [3, 8])
def test_half_precision_errs_no_more_than_a_full_mask(
    dtype: torch.dtype, keys: int, heads: int
) -> None:
    """The mask itself is rounded there, so the channels may well be the better of the two."""
    given = drawn(heads, 1, 64, 8, keys, dtype)
    query, key, _ = given
    wanted = attend(*given, torch.tensor(SLOPES[heads], dtype=torch.float64), 0.125)
    found = by_channels(*given, slopes_of(heads), 0.125)
    bias = full_bias(slopes_of(heads), query, key, None)
    mask = torch.where(causal(query, key), bias, torch.finfo(dtype).min)
    masked = F.scaled_dot_product_attention(*given, attn_mask=mask, scale=0.125, enable_gqa=True)

    def error(of: torch.Tensor) -> float:
        return float((of.double() - wanted).square().mean().sqrt())

    assert error(found) <= 1.5 * error(masked.transpose(1, 2))
    assert error(found) < 0.02 * float(wanted.square().mean().sqrt())


@pytest.mark.parametrize("features", [16, 33, 64, 80, 128])
@pytest.mark.parametrize("values", [None, 24])
@pytest.mark.parametrize("keys", [40, 140_000])
def test_widths_are_multiples_of_eight_and_values_are_padded_with_zeros(
    features: int, values: int | None, keys: int
) -> None:
    query, key, value = drawn(2, 1, features, 2, keys, values=values)
    own = places(None, query, key)
    wide = channels(slopes_of(2), query, key, value, own)
    assert {part.shape[-1] for part in wide} == {wide[0].shape[-1]}
    assert wide[0].shape[-1] % 8 == 0
    assert wide[0].shape[-1] - features <= 16
    assert torch.equal(wide[0][..., -features:], query)
    assert torch.equal(wide[1][..., -features:], key)
    assert torch.equal(wide[2][..., : value.shape[-1]], value)
    assert not wide[2][..., value.shape[-1] :].any()


def test_values_narrower_and_wider_than_keys_come_out_whole() -> None:
    for values in (8, 24):
        given = drawn(4, 2, 24, 20, 20, values=values)
        wanted = attend(*given, slopes_of(4), 0.2)
        torch.testing.assert_close(
            by_channels(*given, slopes_of(4), 0.2).double(), wanted, rtol=0, atol=2e-5
        )


def test_each_row_of_a_batch_has_places_of_its_own() -> None:
    """The constant differs by row; a softmax does not see it."""
    given = drawn(2, 1, 16, 3, 50, batch=2)
    own = places(None, given[0], given[1]).expand(2, -1, -1, -1).clone()
    own[1] += 7
    wide = channels(slopes_of(2) / 0.25, *given, own)
    found = F.scaled_dot_product_attention(
        *wide, attn_mask=causal(given[0], given[1]), scale=0.25, enable_gqa=True
    )
    wanted = attend(*given, slopes_of(2), 0.25)
    torch.testing.assert_close(found[..., :16].transpose(1, 2).double(), wanted, rtol=0, atol=2e-5)


def test_places_of_a_mask_are_the_last_key_that_a_query_may_read() -> None:
    query, key = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 6, 8)
    allowed = torch.zeros(2, 1, 3, 6, dtype=torch.bool)
    for row in range(3):
        allowed[0, 0, row, : 4 + row] = True
        allowed[1, 0, row, 2 : 3 + row] = True  # padded on the left, and empty slots behind
    for mask in (allowed, torch.where(allowed, 0.0, torch.finfo(torch.float32).min)):
        found = places(rows_of(mask), query, key)[:, 0, :, 0]
        assert found.tolist() == [[3, 4, 5], [2, 3, 4]]
    assert places(None, query, key).flatten().tolist() == [3, 4, 5]
