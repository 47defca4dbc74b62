"""The same answers however a grid is read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropepatch.evaluate.cells import cells_of
from ropepatch.evaluate.needle import NeedleRun, Progress
from ropepatch.evaluate.plan import NeedlePlan
from ropepatch.evaluate.results import ResultsFolder
from tests.evaluate import parts

KINDS = [
    "llama", "gemma3", "mistral", "dynamic", "longrope", "patched-ntk", "patched-yarn", "alibi"
]  # fmt: skip
SINGLE = parts.needle_plan(tasks=("niah_single", "niah_multivalue"), lengths=(230, 260))
SHARED = parts.needle_plan(lengths=(150, 210), protocol="shared")


def test_these_grids_do_share(tmp_path: Path) -> None:
    for plan in (SINGLE, SHARED):
        reader = parts.reader("llama")
        records = parts.run_needles(reader, plan, tmp_path / plan.protocol)
        assert reader.forwarded < 0.8 * sum(record["tokens"] for record in records)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(SINGLE, id="independent", marks=pytest.mark.slow),
        pytest.param(SHARED, id="shared"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_likelihoods(kind: str, plan: NeedlePlan, tmp_path: Path) -> None:
    ways: dict[str, tuple[int | None, dict[str, Any]]] = {
        "alone": (None, {"reuse": False}),
        "shared": (None, {}),
        "chunks": (16, {}),
        "side by side": (None, {"short": 512}),
    }
    found = {}
    for name, (chunk, words) in ways.items():
        reader = parts.reader(kind, chunk=chunk)
        found[name] = parts.run_needles(reader, plan, tmp_path / name, **words)
        spent = sum(record["forwarded"] for record in found[name])
        assert spent == reader.forwarded
        if (
            not words.get("reuse", True) or "short" in words
        ):  # the last token of an answer is no input
            assert spent == sum(record["tokens"] - 1 for record in found[name])
        parts.assert_alike(found[name], found["alone"])
    assert len({record["said"] for record in found["alone"]}) > 1
    check_against_one_pass(kind, plan, found["alone"])


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_branches_do_not_grow_into_each_other(kind: str, tmp_path: Path) -> None:
    """Depths at one place make equal prompts, and two trials of them two branches."""
    plan = parts.needle_plan(lengths=(150,), depths=(50.0, 50.1, 100.0), trials=2)
    wanted = parts.run_needles(parts.reader(kind), plan, tmp_path / "alone", reuse=False)
    reader = parts.reader(kind)
    parts.assert_alike(parts.run_needles(reader, plan, tmp_path / "shared"), wanted)
    assert reader.forwarded < 0.7 * sum(record["tokens"] for record in wanted)


def check_against_one_pass(kind: str, plan: NeedlePlan, records: list[dict[str, Any]]) -> None:
    """What one forward of a fresh model over the whole text says."""
    prompts = parts.maker(plan, parts.tokens()).prompts(cells_of(plan))
    reader = parts.reader(kind)
    for prompt, record in list(zip(prompts, records, strict=True))[::3]:
        length = prompt.cell.length
        ids = np.concatenate([prompt.ids, prompt.answer])
        if kind in ("dynamic", "longrope"):  # they look at the last place, here one of padding
            padded = np.concatenate([ids, np.zeros(length - len(ids), np.int32)])
            logits = parts.whole(parts.model(kind), padded)
        else:
            with reader.at_length(length):
                logits = parts.whole(reader.model, ids)
        logprobs = logits[len(prompt.ids) - 1 : len(ids) - 1].log_softmax(-1)
        own = logprobs[range(len(prompt.answer)), prompt.answer.tolist()]
        asked = torch.cat([own[a:b] for a, b in prompt.spans])
        assert record["logprob"] == pytest.approx(asked.mean().item(), abs=1e-5)
        best = logprobs.argmax(-1)
        assert record["said"] == parts.tokens().decode(best.tolist()).strip()
        right = [bool((best[a:b].numpy() == prompt.answer[a:b]).all()) for a, b in prompt.spans]
        assert record["exact"] == int(all(right))
        assert record["recall"] == pytest.approx(np.mean(right))


@pytest.mark.parametrize("kind", ["llama", "gemma3", "dynamic", "patched-ntk", "alibi"])
def test_generated_answers(kind: str, tmp_path: Path) -> None:
    plan = parts.needle_plan(lengths=(160,), trials=2)
    found = [
        parts.run_needles(
            parts.reader(kind, chunk=chunk), plan, tmp_path / str(i), scoring="generate", **words
        )
        for i, (chunk, words) in enumerate([(None, {"reuse": False}), (None, {}), (16, {})])
    ]
    assert parts.without_cost(found[1]) == parts.without_cost(found[0])
    assert parts.without_cost(found[2]) == parts.without_cost(found[0])
    assert {record["logprob"] for record in found[0]} == {None}
    assert len({record["said"] for record in found[0]}) > 1


def test_a_model_that_knows_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown the answers it scores in full; a wrong digit in one of four costs a quarter."""
    plan = parts.needle_plan(tasks=("niah_multivalue",), lengths=(230,), depths=(50.0,))
    (prompt,) = parts.maker(plan, parts.tokens()).prompts(cells_of(plan))
    for wrong, exact, recall in ((False, 1, 1.0), (True, 0, 0.75)):
        reader = parts.reader("llama")
        stock = reader.logits

        def knowing(
            cache: Any, ids: torch.Tensor, places: Any, wrong: bool = wrong, stock: Any = stock
        ) -> torch.Tensor:
            logits: torch.Tensor = stock(cache, ids, places)
            logits[:, range(len(prompt.answer)), prompt.answer.tolist()] = 50.0
            if wrong:
                logits[:, prompt.spans[2][0], 7] = 60.0
            return logits

        monkeypatch.setattr(reader, "logits", knowing)
        (record,) = parts.run_needles(reader, plan, tmp_path / str(wrong))
        assert (record["exact"], record["recall"]) == (exact, recall)
        size = sum(b - a for a, b in prompt.spans)
        assert record["tokens_right"] == pytest.approx(1 - wrong / size)
        assert record["expected"] == list(prompt.answers)


@pytest.mark.parametrize("scoring", ["likelihood", "generate"])
@pytest.mark.parametrize("kind", ["llama", "dynamic"])
def test_the_outlook_comes_true(kind: str, scoring: str, tmp_path: Path) -> None:
    plan = parts.needle_plan(tasks=("niah_single",), trials=2)
    reader, cells = parts.reader(kind, chunk=32), cells_of(plan)
    with ResultsFolder(tmp_path / "run", {}, {}).open() as results:
        maker = parts.maker(plan, parts.tokens(), scoring=scoring)
        run = NeedleRun(reader, maker, parts.tokens(), results, scoring, ends=[], short=150)
        ahead = run.outlook(cells)
        run.run(cells)
        assert reader.forwarded == ahead.tokens
        assert run.outlook(cells).tokens == 0


class Stopped(Exception):
    pass


@pytest.mark.parametrize("kind", ["llama", "patched-ntk"])
@pytest.mark.parametrize("after", [1, 4, 5])
def test_going_on(kind: str, after: int, tmp_path: Path) -> None:
    wanted = parts.run_needles(parts.reader(kind), SHARED, tmp_path / "whole")

    def report(progress: Progress) -> None:
        if progress.done == after:
            raise Stopped

    with pytest.raises(Stopped):
        parts.run_needles(parts.reader(kind), SHARED, tmp_path / "part", report=report)
    lines = (tmp_path / "part" / "results.jsonl").read_text().splitlines()
    assert len(lines) == after
    seen: list[tuple[int, int]] = []
    found = parts.run_needles(
        parts.reader(kind),
        SHARED,
        tmp_path / "part",
        report=lambda p: seen.append((p.total, p.done)),
    )
    assert seen == [(6, done) for done in range(after, 7)]
    parts.assert_alike(found, wanted)
    # done already: nothing is read
    reader = parts.reader(kind)
    assert parts.run_needles(reader, SHARED, tmp_path / "part") == found
    assert reader.forwarded == 0
