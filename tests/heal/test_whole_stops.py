"""What was interrupted goes on where it was, and ends with the same weights to the last bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import ropepatch
from ropepatch.errors import HealingError, HealingStoppedError
from ropepatch.recovering import heal
from ropepatch.recovering.case import Way
from tests.end_to_end.program import ROOT
from tests.heal.whole import PLAN, documents, farthest, healed, left, options, saved, weights_of

STEPS = {"steps": 6, "save_every": 2}
TORN = ("no state", "no moments")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return documents(tmp_path_factory.mktemp("data") / "texts.jsonl")


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    ropepatch.extend(saved(place / "plain"), {"method": "yarn", "factor": 4}, place / "patched")
    return place / "patched"


@pytest.fixture(scope="module")
def whole(patched: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "healed"
    healed(patched, data, folder, STEPS)
    return folder


class Killed(BaseException):
    """As if the process were gone."""


def at(step: int, act: Any) -> Way:
    """A way on which something happens after a step."""

    def report(done: Any) -> None:
        if done.step == step and done.loss is not None:
            act()

    return Way(report=report)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def kill() -> None:
    raise Killed


def same(one: Path, other: Path) -> bool:
    ours, theirs = json.loads((one / "ropepatch.json").read_text()), json.loads(
        (other / "ropepatch.json").read_text()
    )  # fmt: skip
    for name in ("losses", "measured", "steps", "data", "best_step", "reached"):
        assert ours["training"][name] == theirs["training"][name], name
    return farthest(one, other) == 0


@pytest.mark.parametrize("step", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_sigterm_saves_and_the_same_call_goes_on(
    step: int, patched: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    words = {**PLAN, **STEPS}
    with pytest.raises(HealingStoppedError, match=f"stopped at step {step} of 6"):
        heal(patched, data, words, tmp_path / "healed", way=at(step - 1, interrupt))
    assert left(tmp_path) == ["healed.run"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    taken: list[int] = []
    way = Way(report=lambda done: taken.append(done.step) if done.loss is not None else None)
    heal(patched, data, words, tmp_path / "healed", way=way)
    assert taken == list(range(step + 1, 7))
    assert left(tmp_path) == ["healed"]
    assert same(whole, tmp_path / "healed")


@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(6, marks=pytest.mark.slow)]
)
def test_a_killed_training_goes_on_from_its_last_checkpoint(
    step: int, patched: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        heal(patched, data, {**PLAN, **STEPS}, tmp_path / "healed", way=at(step, kill))
    assert left(tmp_path) == (["healed.run"] if step > 1 else []), "no checkpoint, no folder"
    healed(patched, data, tmp_path / "healed", STEPS)
    assert left(tmp_path) == ["healed"]
    assert same(whole, tmp_path / "healed")


@pytest.mark.parametrize(
    "torn", ["half a state", *(pytest.param(k, marks=pytest.mark.slow) for k in TORN)]
)
def test_a_checkpoint_that_was_being_written_is_dropped(
    torn: str, patched: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        heal(patched, data, {**PLAN, **STEPS}, tmp_path / "healed", way=at(5, kill))
    trainer = tmp_path / "healed.run" / "trainer"
    last = shutil.copytree(trainer / "checkpoint-4", trainer / "checkpoint-5")
    if torn == "no state":
        (last / "trainer_state.json").unlink()
    elif torn == "half a state":
        text = (last / "trainer_state.json").read_text(encoding="utf-8")
        (last / "trainer_state.json").write_text(text[: len(text) // 2], encoding="utf-8")
    else:
        (last / "optimizer.pt").unlink()
    healed(patched, data, tmp_path / "healed", STEPS)
    assert same(whole, tmp_path / "healed")


def test_a_kill_while_the_result_is_proven_costs_no_step(
    patched: Path, data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropepatch.recovering import finishing

    def killed(*_: Any, **__: Any) -> float:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(finishing, "compared", killed)
        with pytest.raises(Killed):
            healed(patched, data, tmp_path / "healed", STEPS)
    assert left(tmp_path) == ["healed.run"]
    taken: list[int] = []
    way = Way(report=lambda done: taken.append(done.step) if done.loss is not None else None)
    heal(patched, data, {**PLAN, **STEPS}, tmp_path / "healed", way=way)
    assert taken == []
    assert same(whole, tmp_path / "healed")


def test_a_model_that_is_not_the_trained_one_is_not_written(
    patched: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropepatch.errors import VerificationError
    from ropepatch.healing.weights import put_into as own
    from ropepatch.recovering import finishing

    def worse(base: Path, trained: Path, into: Path) -> None:
        from safetensors.torch import save_file

        own(base, trained, into)
        found = {k: v + 0.05 for k, v in weights_of(into).items()}
        save_file(found, into / "model.safetensors", {"format": "pt"})

    monkeypatch.setattr(finishing, "put_into", worse)
    with pytest.raises(VerificationError, match="the saved model gives other logits"):
        healed(patched, data, tmp_path / "healed", STEPS)
    assert left(tmp_path) == ["healed.run"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"learning_rate": 1e-3}, r"plan\.learning_rate 0\.003, this one has 0\.001"),
        ({"seed": 1}, r"plan\.seed 0, this one has 1"),
        ({"lora": 2}, r"plan\.lora null, this one has 2"),
    ],
)
def test_another_plan_is_refused_by_name(
    words: dict[str, Any], said: str, patched: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        heal(patched, data, {**PLAN, **STEPS}, tmp_path / "healed", way=at(3, kill))
    before = sorted((tmp_path / "healed.run" / "trainer").iterdir())
    with pytest.raises(HealingError, match=said):
        healed(patched, data, tmp_path / "healed", {**STEPS, **words})
    assert sorted((tmp_path / "healed.run" / "trainer").iterdir()) == before


@pytest.mark.slow
def test_other_data_and_other_models_are_refused_by_name(
    patched: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        heal(patched, data, {**PLAN, **STEPS}, tmp_path / "healed", way=at(3, kill))
    other = documents(tmp_path / "other.jsonl", count=31)
    with pytest.raises(HealingError, match="holds a training with data"):
        healed(patched, other, tmp_path / "healed", STEPS)
    saved(tmp_path / "plain", num_hidden_layers=1)
    ropepatch.extend(tmp_path / "plain", {"method": "yarn", "factor": 4}, tmp_path / "second")
    with pytest.raises(HealingError, match="holds a training with model"):
        healed(tmp_path / "second", data, tmp_path / "healed", STEPS)


@pytest.mark.slow
def test_what_does_not_decide_the_result_may_change(
    patched: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        heal(patched, data, {**PLAN, **STEPS}, tmp_path / "healed", way=at(3, kill))
    healed(patched, data, tmp_path / "healed", {**STEPS, "save_every": 3, "micro_batch": 1})
    assert farthest(whole, tmp_path / "healed") < 1e-5


def test_a_folder_of_other_things_is_left_alone(patched: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "healed.run").mkdir()
    (tmp_path / "healed.run" / "mine.txt").write_text("mine")
    with pytest.raises(HealingError, match="holds other things than a training"):
        healed(patched, data, tmp_path / "healed", STEPS)
    assert left(tmp_path / "healed.run") == ["mine.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_program_stops_with_one_line_and_goes_on(
    number: signal.Signals, patched: Path, data: Path, tmp_path: Path
) -> None:
    steps = {"steps": 40, "save_every": 10}
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    words = ("heal", "-m", patched, "--data", data, *options(**steps), "-o", tmp_path / "healed")
    started = subprocess.Popen(
        [sys.executable, "-m", "ropepatch_cli", *map(str, words)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = tmp_path / "healed.run" / "trainer" / "checkpoint-10" / "trainer_state.json"
    while not first.is_file():
        assert started.poll() is None, started.communicate()
        time.sleep(0.01)
    started.send_signal(number)
    out, err = started.communicate(timeout=120)
    if number is signal.SIGTERM:
        assert started.returncode == 143, err
        assert "Traceback" not in err
        said = err.splitlines()[-1]
        assert said.startswith("ropepatch: stopped at step ")
        assert err.count("ropepatch: ") == 1
        assert said.endswith(f"goes on from there ({tmp_path / 'healed.run'}).")
        assert out == ""
    else:
        assert started.returncode == -signal.SIGKILL
    assert left(tmp_path) == ["healed.run"]
    healed(patched, data, tmp_path / "healed", steps)
    healed(patched, data, tmp_path / "whole", steps)
    assert left(tmp_path) == ["healed", "whole"]
    assert same(tmp_path / "whole", tmp_path / "healed")
