"""Results on disk, whatever happens to the run."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.results import ResultsFolder, read_results, read_run
from tests.evaluate import parts

ASKED = {"kind": "needle", "plan": {"lengths": [4, 8], "seed": 0}, "chat": False}


def folder_with(path: Path, *records: dict[str, Any], **asked: Any) -> ResultsFolder:
    with ResultsFolder(path, {**ASKED, **asked}, {"label": "x"}).open() as results:
        for record in records:
            results.add(record)
    return results


def test_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    folder_with(path, {"n": 1, "said": "ü"}, {"n": 2, "loss": math.inf})
    assert read_run(path) == {"asked": ASKED, "about": {"label": "x"}}
    assert list(read_results(path)) == [{"n": 1, "said": "ü"}, {"n": 2, "loss": math.inf}]
    with ResultsFolder(path, ASKED, {"label": "other"}).open() as results:
        assert [record["n"] for record in results.records] == [1, 2]
        results.add({"n": 3})
    assert [record["n"] for record in read_results(path)] == [1, 2, 3]
    assert read_run(path)["about"] == {"label": "x"}
    assert sorted(p.name for p in path.iterdir()) == [".lock", "results.jsonl", "run.json"]


@pytest.mark.parametrize("torn", ['{"n": 3', '{"n": 3}', "x", "\u00fc"])
def test_a_torn_last_line_is_dropped(torn: str, tmp_path: Path) -> None:
    folder_with(tmp_path, {"n": 1}, {"n": 2})
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(torn.encode()[: -1 if torn == "\u00fc" else None])
    assert [record["n"] for record in read_results(tmp_path)] == [1, 2]
    with ResultsFolder(tmp_path, ASKED, {}).open() as results:
        assert [record["n"] for record in results.records] == [1, 2]
        results.add({"n": 4})
    assert (tmp_path / "results.jsonl").read_text() == '{"n": 1}\n{"n": 2}\n{"n": 4}\n'


@pytest.mark.parametrize("line", ['{"n": ', "[1]", "", "\x00\x00"])
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    folder_with(tmp_path, {"n": 1})
    path = tmp_path / "results.jsonl"
    path.write_text(f'{{"n": 1}}\n{line}\n{{"n": 3}}\n')
    with pytest.raises(EvaluationError, match=r"results\.jsonl, line 2, cannot be read"):
        ResultsFolder(tmp_path, ASKED, {}).open()
    assert path.read_text() == f'{{"n": 1}}\n{line}\n{{"n": 3}}\n'


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"chat": True}, "a run with chat false, this one has true; continue"),
        (
            {"plan": {"lengths": [4, 9], "seed": 0}},
            r"plan.lengths \[4, 8\], this one has \[4, 9\];",
        ),
        ({"plan": {"lengths": [4], "seed": 1}}, r"plan.lengths .* \(and 1 more\); continue"),
        ({"more": 1}, "with more null, this one has 1;"),
    ],
)
def test_another_run_is_refused(asked: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder_with(tmp_path, {"n": 1})
    with pytest.raises(EvaluationError, match=said):
        ResultsFolder(tmp_path, {**ASKED, **asked}, {}).open()
    assert [record["n"] for record in read_results(tmp_path)] == [1]


def test_one_at_a_time(tmp_path: Path) -> None:
    first = ResultsFolder(tmp_path, ASKED, {}).open()
    with pytest.raises(EvaluationError, match="another run is writing"):
        ResultsFolder(tmp_path, ASKED, {}).open()
    first.close()
    ResultsFolder(tmp_path, ASKED, {}).open().close()


@pytest.mark.parametrize("name", ["config.json", "data.jsonl"])
def test_other_things_in_the_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(EvaluationError, match="holds other things than a ropepatch run"):
        ResultsFolder(tmp_path, ASKED, {}).open()
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"about": {}}', '{"asked": 3}'])
def test_a_damaged_record_of_the_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(EvaluationError, match=r"run\.json is damaged"):
        ResultsFolder(tmp_path, ASKED, {}).open()
    with pytest.raises(EvaluationError, match=r"holds no run: run\.json is missing"):
        read_run(tmp_path / "none")


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(EvaluationError, match="cannot write to"):
        ResultsFolder(tmp_path / "file", ASKED, {}).open()


def test_ranks_are_merged(tmp_path: Path) -> None:
    first = ResultsFolder(tmp_path, ASKED, {}).open()
    second = ResultsFolder(tmp_path, ASKED, {}).open(rank=1)
    second.add({"n": 2})
    first.add({"n": 1})
    second.close()
    # interrupted before they are merged: both parts count
    assert [record["n"] for record in read_results(tmp_path)] == [1, 2]
    first.merge()
    first.add({"n": 3})
    first.close()
    assert [record["n"] for record in read_results(tmp_path)] == [1, 2, 3]
    assert not list(tmp_path.glob("results.rank-*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.evaluate import parts
from tests.evaluate.test_results import PLAN

def report(progress):
    if progress.done == int(sys.argv[2]):
        with (Path(sys.argv[1]) / "results.jsonl").open("a") as file:
            file.write(sys.argv[3])
        os.kill(os.getpid(), signal.SIGKILL)

parts.run_needles(parts.reader("llama"), PLAN, Path(sys.argv[1]), report=report)
"""
PLAN = parts.needle_plan(trials=2, protocol="shared", lengths=(150, 170))


@pytest.mark.slow
@pytest.mark.parametrize(("after", "half"), [(3, ""), (7, '{"task": "niah_sin')])
def test_a_killed_run_goes_on(after: int, half: str, tmp_path: Path) -> None:
    wanted = parts.run_needles(parts.reader("llama"), PLAN, tmp_path / "whole")
    path = tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(after), half],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "."},
        check=False,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    lines = (path / "results.jsonl").read_text()
    assert lines.count("\n") == after
    assert lines.endswith(half)
    kept = [json.loads(line) for line in lines.split("\n")[:after]]
    found = parts.run_needles(parts.reader("llama"), PLAN, path)
    parts.assert_alike(found, wanted)
    assert [*read_results(path)][:after] == kept
    assert len([*read_results(path)]) == len(wanted) == 12
