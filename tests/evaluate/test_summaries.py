"""Records become numbers: by hand, with what is missing, failed or asked twice."""

import json
import math
from typing import Any

import pytest

from ropepatch.evaluate.measures import Tally
from ropepatch.evaluate.summaries import needle_summary, perplexity_summary, wilson


def answer(length: int, depth: float, exact: int, trial: int = 0, **more: Any) -> dict[str, Any]:
    record = {"task": "niah_single", "length": length, "depth": depth, "trial": trial}
    score = {"exact": exact, "recall": float(exact), "logprob": -1.0, "tokens": length}
    return record | score | {"forwarded": 10} | more


def failed(length: int, depth: float, trial: int = 0) -> dict[str, Any]:
    record = {"task": "niah_single", "length": length, "depth": depth, "trial": trial}
    return record | {"failed": "out of memory", "tokens": length, "forwarded": 0}


def window(number: int, lengths: dict[str, Any], **more: Any) -> dict[str, Any]:
    record = {"kind": "window", "document": "book", "window": number, "length": 200}
    return record | {"lengths": lengths, "buckets": [], "forwarded": 200} | more


def slid(length: int, nats: float, tokens: int, number: int = 0) -> dict[str, Any]:
    record = {"kind": "sliding", "document": "book", "window": number, "length": length}
    return record | {"sliding": [nats, tokens], "forwarded": 50}


def test_wilson_by_hand() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # a textbook's


def test_cells_are_means_over_trials() -> None:
    rows = [
        answer(100, 0, 1),
        answer(100, 0, 0, trial=1, recall=0.5, logprob=-3.0),
        answer(100, 50, 1),
        answer(200, 0, 0),
    ]
    (grid,) = needle_summary(rows).grids
    cell = grid.cells[100, 0.0]
    assert (cell.exact, cell.recall, cell.logprob, cell.trials) == (0.5, 0.75, -2.0, 2)
    assert grid.by_length[100].exact == pytest.approx(2 / 3)  # over trials, not over cells
    assert (grid.by_length[100].low, grid.by_length[100].high) == wilson(2, 3)
    assert grid.cells[200, 50.0].exact is None
    assert grid.cells[200, 50.0].trials == 0


def test_failures_are_counted_and_left_out() -> None:
    found = needle_summary([answer(100, 0, 1), failed(100, 50), failed(200, 0), failed(200, 50)])
    (grid,) = found.grids
    assert (grid.by_length[100].exact, grid.by_length[100].failed) == (1.0, 1)
    assert (grid.by_length[200].exact, grid.by_length[200].failed) == (None, 2)
    assert (grid.by_length[200].low, grid.by_length[200].high) == (None, None)
    assert [(f.what, f.reason, f.count) for f in found.failures] == [
        ("niah_single at 100 tokens", "out of memory", 1),
        ("niah_single at 200 tokens", "out of memory", 2),
    ]


def test_a_cell_asked_again_counts_as_it_was_asked_last() -> None:
    found = needle_summary([failed(100, 0), answer(100, 0, 0), answer(100, 0, 1)])
    score = found.by_length[100]
    assert (score.exact, score.trials, score.failed) == (1.0, 1, 0)
    assert (found.forwarded, found.nominal, found.share) == (10, 100, 0.1)
    assert found.failures == ()


def test_the_plan_names_cells_that_have_no_answer() -> None:
    plan = {"tasks": ["niah_single", "passkey"], "lengths": [200, 100], "depths": [0.0, 100.0]}
    found = needle_summary([answer(100, 0, 1)], plan)
    assert [grid.task for grid in found.grids] == ["niah_single", "passkey"]
    assert found.lengths == (100, 200)
    assert found.grids[1].cells[200, 100.0].trials == 0
    assert found.trials == 1


def test_tasks_are_kept_apart_and_taken_together() -> None:
    found = needle_summary([answer(100, 0, 1), answer(100, 0, 0, task="passkey")])
    assert [grid.by_length[100].exact for grid in found.grids] == [1.0, 0.0]
    assert found.by_length[100].exact == 0.5


def test_generated_answers_have_no_logprob() -> None:
    found = needle_summary([answer(100, 0, 1, logprob=None), answer(100, 10, 1)])
    assert found.by_length[100].logprob is None
    assert found.by_length[100].recall == 1.0


def test_perplexity_is_weighted_by_tokens() -> None:
    found = perplexity_summary(
        [window(0, {"100": [30.0, 10]}), window(1, {"100": [10.0, 90]}, document="notes")]
    )
    (row,) = found.by_length
    assert row.whole == Tally(40.0, 100, 2)
    assert row.whole.perplexity == pytest.approx(math.exp(0.4))
    mean_of_means = (math.exp(3.0) + math.exp(1 / 9)) / 2
    assert row.whole.perplexity != pytest.approx(mean_of_means, rel=0.5)
    assert (found.windows, found.tokens, found.forwarded) == (2, 100, 400)


def test_a_window_read_again_counts_once() -> None:
    found = perplexity_summary([window(0, {"100": [99.0, 10]}), window(0, {"100": [20.0, 10]})])
    assert found.by_length[0].whole == Tally(20.0, 10, 1)


def test_every_kind_of_loss() -> None:
    first = window(
        0,
        {"100": [100.0, 99], "200": [180.0, 199]},
        buckets=[[0, 100, 100.0, 99], [100, 200, 80.0, 100]],
        final={"100": [20.0, 16], "200": [16.0, 16]},
        key={"tokens": 4, "judged": 100, "nats": 2.0},
    )
    second = first | {"window": 1, "key": {"tokens": 0, "judged": 100, "nats": 0.0}}
    found = perplexity_summary([first, second, slid(100, 90.0, 100), slid(100, 30.0, 20, 1)])
    short, long = found.by_length
    assert (short.length, long.length) == (100, 200)
    assert short.final is not None
    assert short.final.loss == 1.25
    assert long.final is not None
    assert long.final.loss == 1.0
    assert short.sliding == Tally(120.0, 120, 2)
    assert long.sliding is None
    places = [(p.start, p.stop, p.tally.loss) for p in found.places]
    assert places == [(0, 100, 200 / 198), (100, 200, 0.8)]
    assert found.key is not None
    assert found.key.tally.perplexity == pytest.approx(math.exp(0.5))
    assert found.key.share == 4 / 200
    assert found.tokens == 2 * 199


def test_what_is_no_number_is_none_in_json() -> None:
    rows = [
        window(0, {"100": [math.nan, 99], "200": [200_000.0, 199]}),
        window(1, {"100": [99.0, 99], "200": [200_000.0, 199]}),
    ]
    found = perplexity_summary(rows)
    short, long = found.by_length
    assert short.whole is not None
    assert short.whole.loss is None
    assert long.whole is not None
    assert long.whole.perplexity is None  # exp(1005) is beyond a double
    assert found.failures[0].reason == "the loss is no finite number"
    assert found.failures[0].count == 1
    json.dumps(found.to_dict(), allow_nan=False)
    json.dumps(needle_summary([answer(100, 0, 1, logprob=math.nan)]).to_dict(), allow_nan=False)


def test_failed_windows_are_named() -> None:
    lost = {
        "kind": "window",
        "document": "a",
        "window": 0,
        "length": 200,
        "failed": "out of memory",
    }
    found = perplexity_summary([lost, lost | {"kind": "sliding", "length": 100}])
    assert found.by_length == ()
    assert (found.windows, found.tokens) == (0, 0)
    assert [(f.what, f.count) for f in found.failures] == [
        ("whole windows of 200 tokens", 1),
        ("sliding windows of 100 tokens", 1),
    ]


def test_nothing_at_all() -> None:
    assert needle_summary([]).share is None
    assert perplexity_summary([]).key is None
