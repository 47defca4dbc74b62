"""The recipes beside a conversion, run small."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ropepatch
from ropepatch import convert_checkpoint
from tests.converted.apart import ROOT
from tests.live.subjects import read, text


def run(script: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "recipes" / script, *map(str, words)],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_recovery_lowers_the_loss_and_stays_converted(llama_folder: Path, tmp_path: Path) -> None:
    folder = convert_checkpoint(llama_folder, {"to": "alibi"}, tmp_path / "converted").target
    script = tmp_path / "text.txt"
    script.write_text("The boats inside hardly moved when the storm came. " * 300)
    said = run(
        *("recover.py", folder, tmp_path / "out", "--teacher", llama_folder),
        *("--text", script, "--steps", 40, "--length", 64, "--held", 2, "--rate", "1e-3"),
    )
    losses = [float(n) for n in re.findall(r"^step \d+: ([\d.]+)", said, re.MULTILINE)]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    before, after = (ropepatch.load(f).eval() for f in (folder, tmp_path / "out"))
    assert type(before) is type(after)
    assert (read(before, text(40)) - read(after, text(40))).abs().max() > 1e-2


@pytest.mark.slow
def test_what_linear_biases_cost(tmp_path: Path) -> None:
    picture = tmp_path / "speed.png"
    said = run(
        *("bench/alibi_speed.py", "--lengths", "256", "--repeats", 1, "--threads", 1),
        *("--plot", picture),
    )
    assert len(re.findall(r"^ +256 .*x .*x .*x .*x", said, re.MULTILINE)) == 2
    assert picture.stat().st_size > 5000
