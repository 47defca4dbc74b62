"""Results on disk: what was asked, and one line per finished piece of work.

A run's folder holds `run.json` (what was asked, of which model, with which versions) and
`results.jsonl`. Lines are flushed to the disk as they come, so whatever kills a run leaves all
finished work; a line torn in the middle is dropped when the run goes on.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from ropepatch.errors import EvaluationError

RUN = "run.json"
RESULTS = "results.jsonl"
_PARTS = "results.rank-*.jsonl"
_LOCK = ".lock"


class ResultsFolder:
    """The folder of one run, open for one process (or one of several ranks)."""

    def __init__(self, folder: Path, asked: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Name the folder; `open` creates or continues it.

        Args:
            folder: Need not exist.
            asked: What decides the results; another run in the same folder must agree.
            about: Versions, times, names: kept, never compared.
        """
        self.folder = folder
        self._asked = json.loads(json.dumps(asked))
        self._about = json.loads(json.dumps(about))
        self._lock: Any = None
        self._file: Any = None
        self.records: list[dict[str, Any]] = []
        """What earlier runs finished, then what this one adds."""

    def open(self, rank: int = 0) -> Self:
        """Create the folder, or read what it holds.

        Raises:
            EvaluationError: another configuration is in it, another process writes to it, or it
                cannot be read or written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if rank == 0:
                self._take_lock()
                self._write_or_compare()
            part = self.folder / (f"results.rank-{rank}.jsonl" if rank else RESULTS)
            _drop_torn_line(part)
            self.records = list(self._all())
            self._file = part.open("a", encoding="utf-8")
        except OSError as error:
            self.close()
            raise EvaluationError(f"cannot write to {self.folder}: {error.strerror}.") from None
        except EvaluationError:
            self.close()
            raise
        return self

    def _take_lock(self) -> None:
        self._lock = (self.folder / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EvaluationError(
                f"another run is writing to {self.folder}; wait for it."
            ) from None

    def _write_or_compare(self) -> None:
        path = self.folder / RUN
        if not path.exists():
            if any(not entry.name.startswith(".") for entry in self.folder.iterdir()):
                raise EvaluationError(
                    f"{self.folder} holds other things than a ropepatch run; choose a new folder."
                )
            words = {"asked": self._asked, "about": self._about}
            _write(path, json.dumps(words, indent=2, ensure_ascii=False) + "\n")
            return
        before = read_run(self.folder)["asked"]
        different = [*_differences(before, self._asked)]
        if different:
            where, was, now = different[0]
            more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
            raise EvaluationError(
                f"{self.folder} holds a run with {where} {_short(was)}, this one has "
                f"{_short(now)}{more}; continue with the same, or choose a new folder."
            )

    def _all(self) -> Iterator[dict[str, Any]]:
        yield from read_results(self.folder)

    def add(self, record: Mapping[str, Any]) -> None:
        """Keep one finished piece of work, on the disk before this returns.

        Raises:
            EvaluationError: the disk refuses.
        """
        try:
            self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=True) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise EvaluationError(f"cannot write to {self.folder}: {error.strerror}.") from None
        self.records.append(dict(record))

    def merge(self) -> None:
        """Bring the lines of all ranks into one file; for the first rank, when all are done."""
        parts = sorted(self.folder.glob(_PARTS))
        if not parts:
            return
        lines = [json.dumps(record, ensure_ascii=False) for record in self._all()]
        self._file.close()
        _write(self.folder / RESULTS, "".join(line + "\n" for line in lines))
        for part in parts:
            part.unlink()
        self.records = list(self._all())
        self._file = (self.folder / RESULTS).open("a", encoding="utf-8")

    def close(self) -> None:
        """Let others in."""
        for file in (self._file, self._lock):
            if file is not None:
                with contextlib.suppress(OSError):  # a full disk, of which was told already
                    file.close()
        self._file = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_run(folder: Path) -> dict[str, Any]:
    """What a folder's run was asked.

    Raises:
        EvaluationError: there is none, or it is damaged.
    """
    path = folder / RUN
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(words, dict) or not isinstance(words.get("asked"), dict):
            raise ValueError("no record of a run")
    except FileNotFoundError:
        raise EvaluationError(f"{folder} holds no run: {RUN} is missing.") from None
    except OSError as error:
        raise EvaluationError(f"cannot read {path}: {error.strerror}.") from None
    except ValueError as error:
        raise EvaluationError(f"{path} is damaged ({error}); choose a new folder.") from None
    return words


def read_results(folder: Path) -> Iterator[dict[str, Any]]:
    """The finished work of a folder, one record each; a torn last line is left out.

    Raises:
        EvaluationError: a line before the last cannot be read.
    """
    for path in [folder / RESULTS, *sorted(folder.glob(_PARTS))]:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise EvaluationError(f"cannot read {path}: {error.strerror}.") from None
        for number, row in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
            try:
                record = json.loads(row)
                if not isinstance(record, dict):
                    raise ValueError("no record")
            except ValueError:
                raise EvaluationError(
                    f"{path}, line {number}, cannot be read; remove the line to measure it again."
                ) from None
            yield record


def _drop_torn_line(path: Path) -> None:
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)


def _write(path: Path, text: str) -> None:
    """All or nothing."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def _differences(
    was: Mapping[str, Any], now: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for key in [*was, *(k for k in now if k not in was)]:
        a, b = was.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _differences(a, b, f"{path}{key}.")
        elif a != b:
            yield f"{path}{key}", a, b


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
