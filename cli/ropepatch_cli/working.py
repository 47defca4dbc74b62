"""What is shown while something takes long: a sentence, a spinner, a bar."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from ropepatch_cli.terminal import dim, line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Work:
    """A line per slow step, a bar while bytes are copied; nothing where nobody looks."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._tasks.clear()

    def progress(self, name: str, done: int, total: int) -> None:
        """Called by the library while it copies."""
        if self._quiet or not sys.stderr.isatty():
            return
        if self._bar is None:
            self._bar = _copying()
            self._bar.start()
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=total)
        self._bar.update(self._tasks[name], completed=done)

    def say(self, sentence: str) -> None:
        """Called by the library when a slow step begins."""
        self._stop()
        if not self._quiet:
            line(dim(f"{sentence} ..."), err=True)


def _copying() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    name = TextColumn("copying {task.description}", markup=False)
    return Progress(
        name, BarColumn(), DownloadColumn(), console=Console(stderr=True), transient=True
    )


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on a terminal, nothing elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(what):
            yield
    else:
        yield
