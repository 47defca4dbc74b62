"""How far an evaluation is."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ropepatch_cli.terminal import dim, line

if TYPE_CHECKING:
    from ropepatch.evaluate.needle import Progress as Done


class Bar:
    """Cells done, tokens a second and the time left; sentences above it."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet or os.environ.get("RANK", "0") != "0"  # one of several speaks
        self._shown = not self._quiet and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._told = 0

    def say(self, text: str) -> None:
        """One line."""
        self.stop()
        if not self._quiet:
            line(dim(text), err=True)

    def report(self, done: "Done") -> None:
        """Called by the library after each cell."""
        if done.note is not None:
            self.say(done.note)
        if not self._shown:
            self._plainly(done)
            return
        if self._bar is None:
            self._start(done)
        speed = done.tokens / done.seconds if done.seconds else 0.0
        left = ""
        if done.expected and done.tokens and done.done < done.total:
            seconds = done.seconds * max(done.expected - done.tokens, 0) / done.tokens
            left = f"{int(seconds) // 60}:{int(seconds) % 60:02d} left"
        self._bar.update(self._task, completed=done.done, speed=f"{speed:,.0f} tokens/s", left=left)
        if done.done >= done.total:
            self.stop()

    def _plainly(self, done: "Done") -> None:
        """Where no terminal looks: a line for every tenth part."""
        tenth = 10 * done.done // max(done.total, 1)
        if not self._quiet and tenth > self._told and done.seconds > 10:
            self._told = tenth
            line(dim(f"{done.done} of {done.total} done"), err=True)
        if done.done >= done.total:
            self._told = 0

    def _start(self, done: "Done") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=done.total, speed="", left="")
        self._bar.start()

    def stop(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def bar(*, quiet: bool) -> Iterator[Bar]:
    """A bar that is gone when the block ends."""
    shown = Bar(quiet=quiet)
    try:
        yield shown
    finally:
        shown.stop()
