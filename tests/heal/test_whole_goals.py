"""A training stops at its goal, and the checkpoint that was measured best is the result."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ropepatch
from ropepatch.errors import HealingError
from ropepatch.recovering import heal
from ropepatch.recovering.case import Way
from ropepatch.recovering.training import Training
from tests.heal.whole import PLAN, documents, farthest, healed, left, saved

EVERY = {"check_every": 2, "steps": 8, "schedule": "constant", "warmup": 0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return documents(tmp_path_factory.mktemp("data") / "texts.jsonl")


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    ropepatch.extend(saved(place / "plain"), {"method": "yarn", "factor": 4}, place / "patched")
    return place / "patched"


class Killed(BaseException):
    """As if the process were gone."""


def killed_after(step: int) -> Way:
    def report(done: Any) -> None:
        if done.step == step and done.loss is not None:
            raise Killed

    return Way(report=report)


@pytest.fixture(scope="module")
def fourth(patched: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint after four steps of the same training without measurements."""
    place = tmp_path_factory.mktemp("fourth")
    words = {**PLAN, **EVERY, "check_every": 0, "save_every": 2}
    with pytest.raises(Killed):
        heal(patched, data, words, place / "healed", way=killed_after(5))
    return place / "healed.run" / "trainer" / "checkpoint-4"


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """What is measured after each step, decided by the test."""
    found: dict[int, float] = {}

    def measured(self: Training, model: Any, step: int) -> Mapping[str, float]:
        return {"loss": found.get(step, 9.0), "needle": 1 - found.get(step, 9.0) / 10}

    monkeypatch.setattr(Training, "measured", measured)
    return found


def test_it_stops_where_the_goal_is_met(
    patched: Path, data: Path, fourth: Path, tmp_path: Path, numbers: dict[int, float]
) -> None:
    numbers |= {2: 5.0, 4: 2.0, 6: 1.0}
    record = healed(patched, data, tmp_path / "healed", {**EVERY, "until": "loss<=2.5"})
    assert record["steps"] == 4
    assert record["best_step"] == 4
    assert record["reached"] is True
    assert record["tokens"] == 4 * 4 * 128
    assert [row["step"] for row in record["losses"]] == [1, 2, 3, 4]
    assert farthest(tmp_path / "healed", fourth) == 0


def test_a_goal_that_is_never_met_is_said(
    patched: Path, data: Path, tmp_path: Path, numbers: dict[int, float]
) -> None:
    numbers |= {2: 5.0, 4: 4.0, 6: 3.0, 8: 2.0}
    record = healed(patched, data, tmp_path / "healed", {**EVERY, "until": "needle>=0.95"})
    assert (record["steps"], record["best_step"], record["reached"]) == (8, 8, False)


def test_the_best_is_the_result_not_the_last(
    patched: Path, data: Path, fourth: Path, tmp_path: Path, numbers: dict[int, float]
) -> None:
    numbers |= {2: 5.0, 4: 2.0, 6: 7.0, 8: 8.0}
    record = healed(patched, data, tmp_path / "healed", EVERY)
    assert (record["steps"], record["best_step"], record["reached"]) == (8, 4, None)
    assert farthest(tmp_path / "healed", fourth) == 0
    best = healed(patched, data, tmp_path / "needles", {**EVERY, "best": "needle", "lora": 2})
    assert best["best_step"] == 4


@pytest.mark.parametrize("lora", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_a_goal_that_was_met_before_a_kill_is_still_met(
    lora: int | None,
    patched: Path,
    data: Path,
    tmp_path: Path,
    numbers: dict[int, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ropepatch.recovering import finishing

    numbers |= {2: 5.0, 4: 2.0, 6: 1.0}
    words = {**EVERY, "until": "loss<=2.5", "lora": lora}
    healed(patched, data, tmp_path / "whole", words)

    def killed(*_: Any, **__: Any) -> float:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(finishing, "compared", killed)
        with pytest.raises(Killed):
            healed(patched, data, tmp_path / "healed", words)
    taken: list[int] = []
    way = Way(report=lambda done: taken.append(done.step) if done.loss is not None else None)
    done = heal(patched, data, {**PLAN, **words}, tmp_path / "healed", way=way)
    assert taken == []
    assert done.training is not None
    assert (done.training["steps"], done.training["reached"]) == (4, True)
    assert done.training["best_step"] == 4
    assert farthest(tmp_path / "whole", tmp_path / "healed") == 0
    assert left(tmp_path) == ["healed", "whole"]


@pytest.mark.slow
def test_a_kill_before_the_goal_goes_on_to_it(
    patched: Path, data: Path, tmp_path: Path, numbers: dict[int, float]
) -> None:
    numbers |= {2: 1.5, 4: 5.0, 6: 1.0}
    words = {**EVERY, "until": "loss<=1.2"}
    healed(patched, data, tmp_path / "whole", words)

    with pytest.raises(Killed):
        heal(patched, data, {**PLAN, **words}, tmp_path / "healed", way=killed_after(5))
    record = healed(patched, data, tmp_path / "healed", words)
    assert (record["steps"], record["best_step"], record["reached"]) == (6, 6, True)
    assert farthest(tmp_path / "whole", tmp_path / "healed") == 0


@pytest.mark.slow
def test_what_was_really_measured_falls(patched: Path, data: Path, tmp_path: Path) -> None:
    words = {**EVERY, "check_prompts": 0, "until": "loss<=0.1"}
    record = healed(patched, data, tmp_path / "healed", words)
    assert record["reached"] is False
    assert record["best_step"] == 8
    written = json.loads((tmp_path / "healed" / "ropepatch.json").read_text(encoding="utf-8"))
    measured = written["training"]["measured"]
    assert measured["after"]["loss"] < measured["before"]["loss"]


def test_a_metric_that_cannot_be_measured_is_refused_before_training(
    patched: Path, data: Path, tmp_path: Path
) -> None:
    words = {**EVERY, "check_prompts": 2, "until": "needle>=0.9", "seq_len": 32}
    with pytest.raises(HealingError, match="needle decides which checkpoint is the best, but"):
        healed(patched, data, tmp_path / "healed", words)
    assert left(tmp_path) == []
