"""Processes of their own: some with ropepatch, some where nobody can import it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

_NOWHERE = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ropepatch", "ropepatch_cli"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Nowhere())
"""

_ATTEMPTS = """
answer = {}

def attempt(name, action):
    try:
        done = action()
    except Exception as error:
        chain = []
        while error is not None:
            chain.append(f"{type(error).__name__}: {error}")
            error = error.__cause__ or error.__context__
        answer[name] = "; ".join(chain)
    else:
        answer[name] = f"done: {type(done).__name__}"
"""
"""Notes how each attempt ended, under its name."""

_END = """
import json, pathlib
pathlib.Path("answer.json").write_text(json.dumps(answer), encoding="utf-8")
"""


def apart(script: str, place: Path, *, installed: bool = False) -> Any:
    """What a script left in `answer`; it runs in `place`, which also holds its caches."""
    place.mkdir(parents=True, exist_ok=True)
    whole = ("" if installed else _NOWHERE) + _ATTEMPTS + script + _END
    (place / "script.py").write_text(whole, encoding="utf-8")
    (place / "answer.json").unlink(missing_ok=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli")]) if installed else ""
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "HF_HOME": str(place / "hf"),
            "HF_MODULES_CACHE": str(place / "hf_modules"),
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((place / "answer.json").read_text(encoding="utf-8"))
