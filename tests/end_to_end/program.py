"""The program, called in this process or as one of its own, and how it answers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXTEND = ("--method", "yarn", "--factor", "4", "--no-verify")
"""A change that needs no torch."""


@dataclass(frozen=True)
class Answer:
    """How a run ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which holds one JSON document and nothing else."""
        value: dict[str, Any] = json.loads(self.out)
        return value


Run = Callable[..., Answer]


def process(*arguments: str | Path, cwd: Path, **environment: str) -> Answer:
    """The program as a process of its own."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    done = subprocess.run(
        [sys.executable, "-m", "ropepatch_cli", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def line_of(answer: Answer) -> str:
    """The one line on standard error by which the program refuses."""
    assert answer.code == 2, answer
    assert answer.out == ""
    assert answer.err.endswith("\n")
    (line,) = answer.err.splitlines()
    assert line.startswith("ropepatch: ")
    return line.removeprefix("ropepatch: ")
