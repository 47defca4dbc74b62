"""What may be asked of an evaluation."""

import math
from typing import Any

import pytest

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.cells import cells_of
from ropepatch.evaluate.plan import NeedlePlan, PerplexityPlan, parse_depths, parse_lengths


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("4k", (4096,)),
        ("4k, 8k,16384", (4096, 8192, 16384)),
        ("1,2,", (1, 2)),
        (["4k", 100], (4096, 100)),
        ("", ()),
    ],
)
def test_lengths(text: Any, wanted: tuple[int, ...]) -> None:
    assert parse_lengths(text) == wanted


@pytest.mark.parametrize("text", ["4q", "k", "-5", "0", "1.5k5", "nan", "4k;8k"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(EvaluationError, match=r"^lengths: "):
        parse_lengths(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0:100:50", (0.0, 50.0, 100.0)),
        ("0:100:30", (0.0, 30.0, 60.0, 90.0)),
        ("0:0.3:0.1", (0.0, 0.1, 0.2, 0.3)),  # what floats make of it would end at 0.2
        ("5:5:1", (5.0,)),
        ("0, 50,100", (0.0, 50.0, 100.0)),
        ("", ()),
    ],
)
def test_depths(text: str, wanted: tuple[float, ...]) -> None:
    assert parse_depths(text) == wanted


@pytest.mark.parametrize(
    "text", ["a", "0:100", "0:100:0", "0:100:-5", "0:100:nan", "0:inf:1", "0:100:1:2", "0:100:1e-9"]
)
def test_what_are_no_depths(text: str) -> None:
    with pytest.raises(EvaluationError, match=r"^depths "):
        parse_depths(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"depths": (150.0,)}, "depth 150 is not between"),
        ({"depths": (-1.0,)}, "depth -1 is not between"),
        ({"depths": (math.nan,)}, "depth nan is not between"),
        ({"depths": ()}, "each depth once, and at least one"),
        ({"depths": (5.0, 5.0)}, "each depth once"),
        ({"lengths": ()}, "each length once, and at least one"),
        ({"lengths": (8, 8)}, "each length once"),
        ({"lengths": (0,)}, "whole number from 1, not 0"),
        ({"lengths": (True,)}, "whole number from 1, not True"),
        ({"lengths": (1.5,)}, "whole number from 1, not 1.5"),
        ({"tasks": ()}, "each task once, and at least one"),
        ({"tasks": ("passkey", "passkey")}, "each task once"),
        ({"tasks": ("niah_singel",)}, "niah_single"),
        ({"trials": 0}, "trials must be a whole number from 1, not 0"),
        ({"answer_tokens": 0}, "answer_tokens must be"),
        ({"protocol": "both"}, "protocol 'both' is none of: independent, shared"),
        ({"scoring": "best"}, "scoring 'best' is none of: auto, likelihood, generate"),
        ({"chat": "maybe"}, "chat 'maybe' is none of: auto, yes, no"),
        ({"tasks": ("passkey",), "protocol": "shared"}, "'passkey' has no key to ask by"),
    ],
)
def test_refused_needles(words: dict[str, Any], said: str) -> None:
    with pytest.raises(EvaluationError, match=said):
        NeedlePlan(**{"lengths": (100,), **words})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"final_tokens": 64}, "final_tokens 64 leave nothing"),
        ({"final_tokens": 0}, "final_tokens must be"),
        ({"stride": 65}, "a stride of 65 skips tokens"),
        ({"stride": 0}, "stride must be"),
        ({"key_context": 128}, "must be shorter than the longest length"),
        ({"max_windows": 0}, "max_windows must be"),
        ({"buckets": 0}, "buckets must be"),
        ({"bos": "maybe"}, "bos 'maybe' is none of"),
        ({"lengths": ()}, "each length once"),
    ],
)
def test_refused_perplexity(words: dict[str, Any], said: str) -> None:
    with pytest.raises(EvaluationError, match=said):
        PerplexityPlan(**{"lengths": (64, 128), "final_tokens": 16, **words})


def test_what_is_just_allowed() -> None:
    plan = PerplexityPlan(lengths=(128, 64), final_tokens=63, stride=64, key_context=127)
    assert plan.lengths == (64, 128)
    assert plan.to_dict()["lengths"] == [64, 128]


def test_cells() -> None:
    plan = NeedlePlan(
        lengths=(300, 200), tasks=("passkey", "common_words"), depths=(100.0, 0.0), trials=2
    )
    assert [cell.key for cell in cells_of(plan)] == [
        ("passkey", 300, 100.0, 0),
        ("passkey", 300, 0.0, 0),
        ("passkey", 300, 100.0, 1),
        ("passkey", 300, 0.0, 1),
        ("passkey", 200, 100.0, 0),
        ("passkey", 200, 0.0, 0),
        ("passkey", 200, 100.0, 1),
        ("passkey", 200, 0.0, 1),
        ("common_words", 300, None, 0),
        ("common_words", 300, None, 1),
        ("common_words", 200, None, 0),
        ("common_words", 200, None, 1),
    ]
