"""The whole story on the model that comes with the repository: it retrieves, fails, recovers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.program import ROOT, Run, process

GRID = ("--lengths", "256,1024", "--depths", "0:100:25", "--trials", "4")


def records(folder: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """By cell, without what depends on the way they were made."""
    found = {}
    for row in (folder / "results.jsonl").read_text().splitlines():
        record = json.loads(row)
        key = tuple(record[name] for name in ("task", "length", "depth", "trial"))
        found[key] = {name: value for name, value in record.items() if name != "forwarded"}
    return found


def score(folder: Path, length: int) -> float:
    rows: list[int] = [r["exact"] for key, r in records(folder).items() if key[1] == length]
    assert rows
    return sum(rows) / len(rows)


def test_the_tiny_model_retrieves_fails_beyond_and_recovers(
    run: Run, retriever: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = run(
        *("compare", "-m", retriever, "--methods", "none,yarn,ntk-by-parts", "--factor", "4"),
        *("--only", "needle", *GRID, "-o", out),
    )
    assert done.code == 0, done.err
    inside = score(out / "none" / "needle", 256)
    assert inside >= 0.95
    assert score(out / "none" / "needle", 1024) <= inside - 0.3
    assert score(out / "ntk-by-parts" / "needle", 1024) >= 0.6
    assert score(out / "yarn" / "needle", 1024) >= 0.6
    assert (out / "report.html").is_file()
    assert (out / "needle-niah_single.png").read_bytes().startswith(b"\x89PNG")
    assert "1.00" in done.out


def test_compare_measures_both_and_leaves_the_best_marked(
    run: Run, retriever: Path, prose: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words: list[str | Path] = ["compare", "-m", retriever, "--methods", "none,yarn:factor=2"]
    words += ["--text", prose, "--lengths", "128,512", "--depths", "0,100", "-o", out]
    done = run(*words, "--json")
    assert done.code == 0, done.err
    assert done.err == ""
    labels = [subject["label"] for subject in done.json["subjects"]]
    assert labels == ["none", "yarn:factor=2"]
    for subject in done.json["subjects"]:
        assert subject["trained_length"] == 256
        assert subject["needle"] is not None
        assert subject["perplexity"] is not None
    again = run(*words)  # nothing is measured twice
    assert again.code == 0
    assert again.err.count("all of it is answered already") == 4
    assert "*" in again.out
    told = run("report", out, "-o", tmp_path / "two.html", "--json")
    assert told.json["subjects"] == done.json["subjects"]


def test_a_finished_run_goes_on_where_it_stopped_and_refuses_another(
    run: Run, retriever: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("evaluate", "needle", "-m", retriever, "--lengths", "128", "-o", out)
    assert run(*words, "--depths", "0,100").code == 0
    whole = (out / "results.jsonl").read_text().splitlines(keepends=True)
    (out / "results.jsonl").write_text(whole[0] + whole[1][:20])
    assert run(*words, "--depths", "0,100").code == 0
    assert len((out / "results.jsonl").read_text().splitlines()) == 2
    other = run(*words, "--depths", "0,50")
    assert other.code == 2
    assert "plan.depths [0.0, 100.0], this one has [0.0, 50.0]" in other.err


@pytest.mark.slow
def test_kill_minus_nine_and_again_is_as_if_undisturbed(retriever: Path, tmp_path: Path) -> None:
    words = ["evaluate", "needle", "-m", str(retriever), "--lengths", "600,900"]
    words += ["--depths", "0:100:5", "--trials", "3", "-o"]
    assert process(*words, "quiet", cwd=tmp_path).code == 0
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    killed = subprocess.Popen(
        [sys.executable, "-m", "ropepatch_cli", *words, "killed"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    results = tmp_path / "killed" / "results.jsonl"
    deadline = time.monotonic() + 240
    while not (results.exists() and results.read_bytes().count(b"\n") > 5):
        assert time.monotonic() < deadline
        assert killed.poll() is None, "it was done before it could be killed"
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert results.read_bytes().count(b"\n") < 126
    assert process(*words, "killed", cwd=tmp_path).code == 0
    quiet, again = records(tmp_path / "quiet"), records(tmp_path / "killed")
    assert quiet.keys() == again.keys()
    for key, record in quiet.items():
        assert again[key].pop("logprob") == pytest.approx(record.pop("logprob"), abs=1e-5)
        assert again[key] == record


@pytest.mark.slow
def test_two_processes_give_what_one_gives(retriever: Path, tmp_path: Path) -> None:
    words = ["evaluate", "needle", "-m", str(retriever), "--lengths", "128,600"]
    words += ["--depths", "0:100:25", "--trials", "2", "-o"]
    assert process(*words, "one", cwd=tmp_path).code == 0
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    done = subprocess.run(
        [sys.executable, *launch, "-m", "ropepatch_cli", *words, "two"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    assert one.keys() == two.keys()
    for key, record in one.items():
        assert two[key].pop("logprob") == pytest.approx(record.pop("logprob"), abs=1e-5)
        assert two[key] == record
    assert not list((tmp_path / "two").glob("results.rank-*"))
    assert json.loads((tmp_path / "two" / "run.json").read_text())["about"]["processes"] == 2
