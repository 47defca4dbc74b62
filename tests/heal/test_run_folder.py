"""The folder of a training under way: who may go on in it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ropepatch.errors import HealingError
from ropepatch.healing.plan import HealPlan, Stage
from ropepatch.healing.run_folder import RunFolder
from tests.heal import parts


def asked(model: str = "abc", **words: Any) -> dict[str, Any]:
    plan = HealPlan(**{"seq_len": 64, "steps": 10, **words})
    return {"model": {"sha256": model, "size": 3}, "plan": plan.to_dict(), "data": ["a.txt"]}


def opened(path: Path, **words: Any) -> RunFolder:
    return RunFolder(path).open(asked(**words))


def save(folder: RunFolder, step: int, *left_out: str) -> Path:
    """A checkpoint as the trainer writes it."""
    path = folder.trainer / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        if name not in left_out:
            (path / name).write_text("{}")
    return path


def test_the_same_training_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    folder = opened(path)
    (path / "tokens").mkdir()
    assert folder.is_ours
    folder.close()
    assert not folder.is_ours
    again = opened(path)
    assert again.store.exists()
    again.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"steps": 11}, "plan.steps 10, this one has 11"),
        ({"seed": 1}, "plan.seed 0, this one has 1"),
        ({"learning_rate": 1e-3}, "plan.learning_rate null, this one has 0.001"),
        ({"until": "loss<=1", "check_every": 1}, 'plan.until null, this one has "loss<=1"'),
        ({"stages": (Stage(5), Stage(5))}, 'plan.stages [{"steps": 10, "seq_len": null,'),
        ({"model": "xyz"}, 'model.sha256 "abc", this one has "xyz"'),
    ],
)
def test_another_training_is_refused_by_what_differs(
    tmp_path: Path, words: dict[str, Any], said: str
) -> None:
    opened(tmp_path / "run").close()
    before = (tmp_path / "run" / "run.json").read_text()
    with pytest.raises(HealingError) as caught:
        opened(tmp_path / "run", **words)
    # either is named, where both are there
    told = str(caught.value)
    assert said in told or "check_every" in told
    assert f"{tmp_path / 'run'} holds a training with " in told
    assert len(told) < 400
    assert (tmp_path / "run" / "run.json").read_text() == before
    opened(tmp_path / "run").close()


def test_words_that_are_only_in_one_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run"
    RunFolder(path).open({**asked(), "teacher": "x"}).close()
    with pytest.raises(HealingError, match='with teacher "x", this one has null'):
        opened(path)
    with pytest.raises(HealingError, match="with colour null, this one has 1"):
        RunFolder(path).open({**asked(), "teacher": "x", "colour": 1})


@pytest.mark.parametrize(
    "words",
    [{"micro_batch": 2}, {"gradient_checkpointing": True}, {"save_every": 3}],
)
def test_what_does_not_decide_the_result_may_change(tmp_path: Path, words: dict[str, Any]) -> None:
    opened(tmp_path / "run").close()
    opened(tmp_path / "run", **words).close()
    opened(tmp_path / "run").close()


def test_paths_and_tuples_are_as_in_json(tmp_path: Path) -> None:
    words = {**asked(), "data": ("a.txt", "b.txt")}
    RunFolder(tmp_path / "run").open(words).close()
    RunFolder(tmp_path / "run").open({**words, "data": ["a.txt", "b.txt"]}).close()


def test_two_cannot_work_in_it(tmp_path: Path) -> None:
    first = opened(tmp_path / "run")
    second = RunFolder(tmp_path / "run")
    with pytest.raises(HealingError, match="another run works in"):
        second.open(asked())
    assert not second.is_ours
    first.close()
    second.open(asked()).close()


def test_another_process_keeps_it_until_it_is_killed(tmp_path: Path) -> None:
    code = f"""
import json, sys, time
from pathlib import Path
from ropepatch.healing.run_folder import RunFolder
folder = RunFolder(Path({str(tmp_path / "run")!r})).open(json.loads({json.dumps(asked())!r}))
print("open", flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=parts.REPOSITORY, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"open\n"
            with pytest.raises(HealingError, match="another run works in"):
                opened(tmp_path / "run")
        finally:
            other.kill()
        other.wait()
        opened(tmp_path / "run").close()


def test_processes_that_share_it_do_not_lock_it(tmp_path: Path) -> None:
    first = opened(tmp_path / "run")
    second = RunFolder(tmp_path / "run").open(asked(), first=False)
    assert not second.is_ours
    second.close()
    assert first.is_ours
    first.close()


def test_a_refused_folder_is_not_kept(tmp_path: Path) -> None:
    opened(tmp_path / "run").close()
    refused = RunFolder(tmp_path / "run")
    with pytest.raises(HealingError):
        refused.open(asked(seed=1))
    assert not refused.is_ours
    opened(tmp_path / "run").close()


# --- checkpoints ---------------------------------------------------------------------------------


def test_the_last_whole_checkpoint_counts(tmp_path: Path) -> None:
    folder = opened(tmp_path / "run")
    assert folder.checkpoint() is None
    save(folder, 5)
    nine = save(folder, 9)
    ten = save(folder, 10)  # by number, not by name
    assert folder.checkpoint() == ten
    (ten / "trainer_state.json").write_text('{"torn": ')
    assert folder.checkpoint() == nine
    folder.close()


@pytest.mark.parametrize("missing", ["trainer_state.json", "optimizer.pt"])
def test_torn_checkpoints_are_dropped(tmp_path: Path, missing: str) -> None:
    folder = opened(tmp_path / "run")
    whole, torn = save(folder, 5), save(folder, 10, missing)
    (folder.trainer / "other").mkdir()
    assert folder.checkpoint() == whole
    folder.close()
    again = opened(tmp_path / "run")
    assert whole.exists()
    assert not torn.exists()
    assert (folder.trainer / "other").exists()
    again.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\x00\x00"])
def test_a_state_that_cannot_be_read_is_torn(tmp_path: Path, text: str) -> None:
    folder = opened(tmp_path / "run")
    path = save(folder, 5)
    (path / "trainer_state.json").write_text(text)
    assert folder.checkpoint() is None
    folder.close()


def test_what_another_process_was_saving_is_torn(tmp_path: Path) -> None:
    """The first one writes the state, and does not wait for the others' random numbers."""
    folder = opened(tmp_path / "run")
    path = save(folder, 5)
    for rank in range(2):
        torch.save({"cpu": torch.random.get_rng_state()}, path / f"rng_state_{rank}.pth")
    assert folder.checkpoint() == path
    file = path / "rng_state_1.pth"
    content = file.read_bytes()
    for kept in (0, 10, len(content) - 1):
        file.write_bytes(content[:kept])
        assert folder.checkpoint() is None, kept
    folder.close()


def test_sharded_moments_are_moments(tmp_path: Path) -> None:
    """As FSDP and DeepSpeed write them."""
    folder = opened(tmp_path / "run")
    for step, name in ((5, "optimizer_0"), (6, "global_step6")):
        path = save(folder, step, "optimizer.pt")
        (path / name).mkdir()
        assert folder.checkpoint() == path
    folder.close()


# --- other folders -------------------------------------------------------------------------------


def test_a_folder_of_something_else_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.mkdir()
    (path / "letter.txt").write_text("dear")
    (path / ".lock").write_text("theirs")
    with pytest.raises(HealingError, match="holds other things than a training"):
        opened(path)
    assert sorted(os.listdir(path)) == [".lock", "letter.txt"]
    assert (path / ".lock").read_text() == "theirs"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".DS_Store").touch()
    opened(tmp_path / "run").close()


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "run").close()
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(HealingError, match=r"run\.json is damaged; remove"):
        opened(tmp_path / "run")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(HealingError, match=r"cannot write to .*run: "):
        opened(tmp_path / "run")


@pytest.mark.usefixtures("powerless")
def test_a_folder_that_nobody_may_write_to(locked: Path) -> None:
    with pytest.raises(HealingError, match=r"cannot write to .*: Permission denied"):
        opened(locked / "run")


def test_nothing_is_left_at_the_end(tmp_path: Path) -> None:
    folder = opened(tmp_path / "run")
    save(folder, 5)
    folder.remove()
    assert os.listdir(tmp_path) == []
    assert not folder.is_ours
    opened(tmp_path / "run").close()


def test_what_was_asked_can_be_read(tmp_path: Path) -> None:
    folder = opened(tmp_path / "run")
    words = json.loads((tmp_path / "run" / "run.json").read_text())
    assert words["plan"]["seq_len"] == 64
    assert "micro_batch" not in words["plan"]
    assert words["data"] == ["a.txt"]
    folder.close()
