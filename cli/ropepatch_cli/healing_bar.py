"""How far a training is."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ropepatch_cli.terminal import dim, line

if TYPE_CHECKING:
    from ropepatch.healing.following import Progress as Done

_SECONDS = 20
"""Between two lines where no terminal looks."""


class Bar:
    """Steps, loss, tokens a second and the time left; measurements and sentences above it."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet or os.environ.get("RANK", "0") != "0"  # one of several speaks
        self._shown = not self._quiet and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._told = -_SECONDS * 1.0

    def say(self, text: str) -> None:
        """One line."""
        self.stop()
        if not self._quiet:
            line(dim(f"{text} ..."), err=True)

    def stored(self, done: int, wanted: int) -> None:
        """Called while texts become tokens."""
        if not self._shown:
            return
        if self._bar is None:
            self._start(wanted)
        self._bar.update(self._task, completed=done, text=f"{done:,} tokens")

    def report(self, done: "Done") -> None:
        """Called after each step, and after measuring."""
        if self._quiet:
            return
        if done.measured is not None:
            self.stop()
            found = ", ".join(f"{name} {value:.3f}" for name, value in done.measured.items())
            if found:
                line(dim(f"step {done.step}: {found}"), err=True)
            return
        text = self._text(done)
        if not self._shown:
            if done.seconds - self._told >= _SECONDS:
                self._told = done.seconds
                line(dim(f"step {done.step} of {done.steps}: {text}"), err=True)
            return
        if self._bar is None:
            self._start(done.steps)
        self._bar.update(self._task, completed=done.step, text=text)

    def _text(self, done: "Done") -> str:
        speed = done.tokens / done.seconds if done.seconds else 0.0
        loss = "" if done.loss is None else f"loss {done.loss:.3f}, "
        left = ""
        if done.steps_here:
            seconds = int(done.seconds / done.steps_here * (done.steps - done.step))
            left = f", {seconds // 3600}:{seconds % 3600 // 60:02d}:{seconds % 60:02d} left"
        return f"{loss}{speed:,.0f} tokens/s{left}"

    def _start(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=total, text="")
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
