"""Two processes train what one process trains: side by side, and with weights shared out."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import ropepatch
from tests.end_to_end.program import ROOT
from tests.heal.whole import documents, farthest, healed, left, options, saved

pytestmark = pytest.mark.slow
FSDP = ("--config_file", str(ROOT / "recipes" / "accelerate" / "fsdp-cpu.yaml"))
TWO = ("--multi_gpu", "--num_processes", "2", "--num_machines", "1")
PLAIN = ("--mixed_precision", "no", "--dynamo_backend", "no")
WORDS: dict[str, Any] = {"micro_batch": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, the same patched, and texts."""
    place = tmp_path_factory.mktemp("models")
    saved(place / "plain")
    ropepatch.extend(place / "plain", {"method": "yarn", "factor": 4}, place / "yarn")
    documents(place / "texts.jsonl")
    return place


def port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def started(launcher: tuple[str, ...], place: Path, output: Path, words: dict[str, Any]) -> Any:
    if launcher[:1] == ("torchrun",):
        front = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
        front += ["--master_port", port(), "-m"]
    else:
        front = [sys.executable, "-m", "accelerate.commands.launch", *launcher]
        front += ["--main_process_port", port(), "-m"]
    said = options(data=place / "texts.jsonl", output=output, device="cpu", **words)
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    return subprocess.Popen(
        [*front, "ropepatch_cli", "heal", "-m", str(place / "yarn"), *said],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: Any) -> None:
    """All that it started goes with it; each worker has a session of its own."""
    launcher = psutil.Process(process.pid)
    for one in (*launcher.children(recursive=True), launcher):
        one.kill()
    process.communicate(timeout=60)


def launched(
    launcher: tuple[str, ...], place: Path, output: Path, words: dict[str, Any]
) -> tuple[int, str]:
    process = started(launcher, place, output, words)
    try:
        out, _ = process.communicate(timeout=240)
    except BaseException:
        end(process)
        raise
    return process.returncode, out


def same(one: Path, two: Path, *, exact: float = 1e-5) -> None:
    ours, theirs = (
        json.loads((folder / "ropepatch.json").read_text(encoding="utf-8"))["training"]
        for folder in (one, two)
    )
    assert [row["step"] for row in ours["losses"]] == [row["step"] for row in theirs["losses"]]
    for row, other in zip(ours["losses"], theirs["losses"], strict=True):
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-4)
    for when in ("before", "after"):
        for name, value in ours["measured"][when].items():
            assert theirs["measured"][when][name] == pytest.approx(value, abs=1e-4)
    assert farthest(one, two) < exact


@pytest.mark.parametrize(
    ("launcher", "words", "taught"),
    [
        (("torchrun",), {"check_every": 2}, False),
        ((*TWO, *PLAIN), {"short_share": 0.5}, True),
        ((*TWO, *PLAIN), {"lora": 2}, False),
        (FSDP, {"lora": 2}, True),
    ],
    ids=["torchrun", "teacher", "lora", "fsdp"],
)
def test_two_train_what_one_trains(
    launcher: tuple[str, ...], words: dict[str, Any], taught: bool, place: Path, tmp_path: Path
) -> None:
    teacher = {"teacher": place / "plain"} if taught else {}
    code, out = launched(launcher, place, tmp_path / "two", {**WORDS, **words, **teacher})
    assert code == 0, out
    assert out.count("written: ") == 1
    healed(place / "yarn", place / "texts.jsonl", tmp_path / "one", {**WORDS, **words}, **teacher)
    assert left(tmp_path) == ["one", "two"]
    same(tmp_path / "one", tmp_path / "two")
    ropepatch.verify(tmp_path / "two")


def test_weights_that_are_shared_out_go_on_after_a_kill(place: Path, tmp_path: Path) -> None:
    words = {**WORDS, "steps": 40, "save_every": 2}
    process = started(FSDP, place, tmp_path / "two", words)
    trainer = tmp_path / "two.run" / "trainer"
    try:
        while not (trainer / "checkpoint-2" / "trainer_state.json").is_file():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
    finally:
        end(process)
    kept = [path for path in trainer.iterdir() if (path / "pytorch_model_fsdp.bin").is_file()]
    assert kept
    assert not (tmp_path / "two").exists()
    code, out = launched(FSDP, place, tmp_path / "two", words)
    assert code == 0, out
    healed(place / "yarn", place / "texts.jsonl", tmp_path / "one", words)
    assert left(tmp_path) == ["one", "two"]
    same(tmp_path / "one", tmp_path / "two", exact=1e-4)


def test_sigterm_to_one_process_saves_for_both(place: Path, tmp_path: Path) -> None:
    words = {**WORDS, "steps": 200, "save_every": 2}
    process = started(("torchrun",), place, tmp_path / "two", words)
    trainer = tmp_path / "two.run" / "trainer"
    try:
        while not (trainer / "checkpoint-2" / "trainer_state.json").is_file():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        psutil.Process(process.pid).children()[-1].send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
    except BaseException:
        end(process)
        raise
    assert "stopped at step " in out
    assert not (tmp_path / "two").exists()
    whole = [path for path in trainer.iterdir() if (path / "rng_state_1.pth").is_file()]
    assert whole
