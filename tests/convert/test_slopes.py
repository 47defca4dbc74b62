"""The slope of each head, against the code of others and numbers of 25 digits."""

import json
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers.models.bloom import modeling_bloom
from transformers.models.falcon import modeling_falcon
from transformers.models.mpt import modeling_mpt

from ropepatch.runtime.channels import alibi_slopes
from tests.convert.definition import DATA, SLOPES

BY_CODE: dict[str, Any] = json.loads((DATA / "alibi_slopes.json").read_text("utf-8"))["heads"]
BY_HAND: dict[str, list[str]] = json.loads((DATA / "alibi_handcalc.json").read_text("utf-8"))[
    "alibi"
]
COUNTS = pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 14, 16, 20, 24, 40, 71, 112])


def test_the_numbers_cover_every_count_of_heads_up_to_64() -> None:
    assert set(range(1, 65)) <= set(SLOPES)
    assert {"12", "14", "20"} <= set(BY_HAND)


@pytest.mark.parametrize("heads", sorted(SLOPES))
def test_slopes_are_those_of_the_papers_authors(heads: int) -> None:
    assert alibi_slopes(heads) == pytest.approx(SLOPES[heads], rel=1e-12, abs=0)


@pytest.mark.parametrize("heads", [h for h, rows in BY_CODE.items() if "mpt_max16_f64" in rows])
def test_slopes_that_end_at_another_power_are_those_of_mpt(heads: str) -> None:
    wanted = BY_CODE[heads]["mpt_max16_f64"]
    assert alibi_slopes(int(heads), 16.0) == pytest.approx(wanted, rel=1e-12, abs=0)


@pytest.mark.parametrize("heads", BY_HAND)
def test_slopes_are_the_numbers_by_hand(heads: str) -> None:
    found = alibi_slopes(int(heads))
    assert len(found) == int(heads)
    for one, digits in zip(found, BY_HAND[heads], strict=True):
        assert abs(Decimal(one) / Decimal(digits) - 1) < Decimal("1e-15")


@COUNTS
def test_slopes_are_blooms(heads: int) -> None:
    wanted = modeling_bloom._get_alibi_slopes(heads, torch.device("cpu"))
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), wanted, rtol=1e-6, atol=0)


@COUNTS
def test_slopes_are_falcons(heads: int) -> None:
    """That builds its biases of slopes in bfloat16."""
    mask = torch.ones(1, 2, dtype=torch.long)
    wanted = modeling_falcon.build_alibi_tensor(mask, heads, torch.float32)[:, 0, 1]
    found = torch.tensor(alibi_slopes(heads))
    torch.testing.assert_close(found.bfloat16().float(), wanted, rtol=2**-8, atol=0)


@COUNTS
@pytest.mark.parametrize("bias_max", [4, 8, 16])
def test_the_bias_is_mpts_but_for_a_constant_in_each_row(heads: int, bias_max: int) -> None:
    keys = 33
    row = modeling_mpt.build_mpt_alibi_tensor(heads, keys, bias_max)[:, 0].double()
    places = torch.arange(keys, dtype=torch.float64)
    slopes = torch.tensor(alibi_slopes(heads, float(bias_max)), dtype=torch.float64)
    for place in (0, 7, keys - 1):
        apart = row + slopes[:, None] * (place - places)
        torch.testing.assert_close(apart, apart[:, :1].expand_as(apart), rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", [4, 32])
@pytest.mark.parametrize("bias_max", [2.0, 8.0, 12.5])
def test_a_power_of_two_of_heads_ends_at_the_bias_max(heads: int, bias_max: float) -> None:
    found = alibi_slopes(heads, bias_max)
    assert found[-1] == pytest.approx(2**-bias_max, rel=1e-14)
    steps = [b / a for a, b in pairwise(found)]
    assert steps == pytest.approx([found[0]] * (heads - 1), rel=1e-12)
