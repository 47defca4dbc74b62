"""What goes along with a training: progress, the goal, and leaving when told to."""

import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback

from ropepatch.errors import HealingError


@dataclass(frozen=True)
class Progress:
    """How far a training is."""

    step: int
    steps: int
    loss: float | None = None
    """Nats per token, of the last step."""
    rate: float = 0.0
    """Learning rate."""
    steps_here: int = 0
    """Taken since this process began."""
    tokens: int = 0
    """Read since this process began."""
    seconds: float = 0.0
    measured: Mapping[str, float] | None = None
    """What was measured just now."""


Report = Callable[[Progress], None]


class Following(TrainerCallback):
    """Tells how far it is, stops at the goal, and saves when it is told to leave."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._started = time.monotonic()
        self._first: int | None = None
        self.asked_to_stop = False
        self.stopped = False
        """Whether it left before its end because it was told to."""
        self.reached = False
        """Whether the goal was reached."""

    def told(self, measured: Mapping[str, float]) -> None:
        """Something was measured."""
        goal = self._trainer.plan.goal
        self.reached = goal is not None and goal.reached(measured)
        self._trainer.report(self._progress(measured=measured))

    def recall(self, history: Iterable[Mapping[str, Any]]) -> bool:
        """Whether what was logged before had met the goal."""
        goal = self._trainer.plan.goal
        rows = (
            {k.removeprefix("eval_"): v for k, v in row.items() if k.startswith("eval_")}
            for row in history
        )
        self.reached = goal is not None and any(goal.reached(row) for row in rows)
        return self.reached

    def _progress(self, **words: Any) -> Progress:
        plan, step = self._trainer.plan, self._trainer.state.global_step
        since = step - (self._first or 0)
        return Progress(
            step,
            plan.steps,
            rate=plan.rate * plan.share_of_rate(max(step - 1, 0)),
            steps_here=since,
            tokens=since * plan.batch * plan.seq_len,
            seconds=time.monotonic() - self._started,
            **words,
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **words: Any) -> Any:
        """Where this process began."""
        if self._first is None:
            self._first, self._started = state.global_step, time.monotonic()
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **words: Any) -> Any:
        """Measure and save at the end; leave where any process was told to."""
        if state.global_step >= state.max_steps and self._trainer.plan.check_every:
            control.should_evaluate = True
        if self._any_asked():
            self.stopped = state.global_step < state.max_steps
            control.should_save = control.should_training_stop = True
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, **words: Any) -> Any:
        """Stop at the goal."""
        if self.reached:
            control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **words: Any) -> Any:
        """A step was taken."""
        loss = (logs or {}).get("loss")
        if loss is None:
            return control
        if not math.isfinite(loss):
            raise HealingError(
                f"the loss is {loss} at step {state.global_step}; take a lower --learning-rate "
                f"than {self._trainer.plan.rate:g}, and a longer warmup."
            )
        self._trainer.report(self._progress(loss=float(loss)))
        return control

    def _any_asked(self) -> bool:
        if self._trainer.args.world_size == 1:
            return self.asked_to_stop
        mine = torch.tensor(float(self.asked_to_stop), device=self._trainer.args.device)
        return bool(self._trainer.accelerator.reduce(mine, "sum") > 0)


@contextmanager
def leaving_politely(following: Following) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the training after the step, saved; a second one ends it at once."""

    def ask(number: int, frame: Any) -> None:
        following.asked_to_stop = True
        signal.signal(number, before[signal.Signals(number)])

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                before[number] = signal.signal(number, ask)
            except ValueError:  # not the main thread: whoever runs us decides
                break
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
