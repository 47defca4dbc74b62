"""The folder of a training that is under way: what was asked, its data, its checkpoints."""

import contextlib
import fcntl
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from ropepatch.errors import HealingError

_RUN, _LOCK = "run.json", ".lock"
_STATE = "trainer_state.json"
"""What the trainer writes last into a checkpoint."""
_FREE = ("micro_batch", "gradient_checkpointing", "save_every")
"""What of a plan does not decide the result, so that a run may go on with another value."""


class RunFolder:
    """One training's folder; the same training finds it again and goes on."""

    def __init__(self, path: Path) -> None:
        """Name the folder; `open` makes it, or takes what it holds."""
        self.path = path
        self.store = path / "tokens"
        self.trainer = path / "trainer"
        self.trained = path / "trained"
        """The weights that came out, until they are in their place."""
        self.checks = path / "checks"
        self._lock: Any = None
        self._made: list[Path] = []
        """Folders above it that were made for it, the deepest first."""

    def open(self, asked: Mapping[str, Any], *, first: bool = True) -> Self:
        """Make the folder, or go on with it.

        Args:
            asked: What decides the result; the folder's must agree.
            first: Whether this process is the first of those that share the folder.

        Raises:
            HealingError: another training is in it, a process works in it, or it cannot be
                written.
        """
        if not first:
            return self
        words = json.loads(json.dumps(_decisive(asked)))
        try:
            self._take(words)
        except OSError as error:
            self.close()
            raise HealingError(f"cannot write to {self.path}: {error.strerror}.") from None
        except HealingError:
            self.close()
            raise
        return self

    def _take(self, words: Mapping[str, Any]) -> None:
        above = (self.path.parent, *self.path.parent.parents)
        self._made = [place for place in above if not place.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / _RUN).exists() and any(
            not entry.name.startswith(".") for entry in self.path.iterdir()
        ):
            raise HealingError(
                f"{self.path} holds other things than a training; choose another --output."
            )
        self._lock = (self.path / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HealingError(f"another run works in {self.path}; wait for it.") from None
        if (self.path / _RUN).exists():
            self._compare(words)
            self._drop_torn()
        else:
            _write(self.path / _RUN, words)

    def _compare(self, words: Mapping[str, Any]) -> None:
        try:
            before = json.loads((self.path / _RUN).read_text(encoding="utf-8"))
        except ValueError:
            raise HealingError(f"{self.path / _RUN} is damaged; remove {self.path}.") from None
        for where, was, now in _differences(before, words):
            raise HealingError(
                f"{self.path} holds a training with {where} {_short(was)}, this one has "
                f"{_short(now)}; go on with the same, remove the folder, or choose another "
                "--output."
            )

    @property
    def is_ours(self) -> bool:
        """Whether this process holds it."""
        return self._lock is not None

    def checkpoint(self) -> Path | None:
        """The last one that is whole."""
        whole = [path for path in self.trainer.glob("checkpoint-*") if _is_whole(path)]
        return max(whole, key=_step, default=None)

    def _drop_torn(self) -> None:
        """What a killed run had begun to save."""
        for path in self.trainer.glob("checkpoint-*"):
            if not _is_whole(path):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def remove(self) -> None:
        """When its result is in its place."""
        shutil.rmtree(self.path, ignore_errors=True)
        for place in self._made:  # those that a result lies in are not empty
            with contextlib.suppress(OSError):
                place.rmdir()
        self.close()


def _is_whole(path: Path) -> bool:
    try:
        state = json.loads((path / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    # without its moments the trainer would begin with fresh ones, and say nothing
    moments = (*path.glob("optimizer*"), *path.glob("global_step*"))
    # the first process writes the state and does not wait for what the others still save
    torn = any(not zipfile.is_zipfile(file) for file in path.glob("rng_state*.pth"))
    return isinstance(state, dict) and bool(moments) and not torn


def _step(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def _decisive(asked: Mapping[str, Any]) -> dict[str, Any]:
    plan = {key: value for key, value in asked["plan"].items() if key not in _FREE}
    return {**asked, "plan": plan}


def _differences(before: Any, now: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from _differences(
                before.get(key), now.get(key), f"{where}.{key}" if where else str(key)
            )
    elif before != now:
        yield where, before, now


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _write(path: Path, words: Mapping[str, Any]) -> None:
    other = path.with_name(f".{path.name}.{os.getpid()}")
    other.write_text(json.dumps(words, indent=2) + "\n", encoding="utf-8")
    other.replace(path)
