"""The recipes beside a conversion, run small."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.converted.apart import ROOT


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
def test_what_linear_biases_cost(tmp_path: Path) -> None:
    picture = tmp_path / "speed.png"
    said = run(
        *("bench/alibi_speed.py", "--lengths", "256", "--repeats", 1, "--threads", 1),
        *("--plot", picture),
    )
    assert len(re.findall(r"^ +256 .*x .*x .*x .*x", said, re.MULTILINE)) == 2
    assert picture.stat().st_size > 5000
