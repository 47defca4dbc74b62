"""The cells of a grid, and what is read for one."""

from dataclasses import dataclass

import numpy as np

from ropepatch.evaluate.plan import NeedlePlan
from ropepatch.evaluate.tasks.table import task_named


@dataclass(frozen=True)
class Cell:
    """One trial of the grid."""

    task: str
    length: int
    """Tokens of prompt and answer together."""
    depth: float | None
    """Per cent; None where nothing lies at one place."""
    trial: int

    @property
    def key(self) -> tuple[str, int, float | None, int]:
        """What tells it from the others."""
        return (self.task, self.length, self.depth, self.trial)


@dataclass(frozen=True, eq=False)
class Prompt:
    """What is read for one cell."""

    cell: Cell
    ids: np.ndarray
    """Of the prompt, (tokens,), int32."""
    answer: np.ndarray
    """Of the right answer, (tokens,), int32."""
    spans: tuple[tuple[int, int], ...]
    """Where each answer lies in `answer`."""
    answers: tuple[str, ...]
    budget: int
    """Tokens kept free for the answer: `len(ids) + budget` is the length of the cell."""
    needle_token: int | None
    """Where the needle of the cell begins in the prompt."""
    actual_depth: float | None
    """Per cent of the haystack before it."""
    content: slice
    """The part of `ids` that a user would write."""


def cells_of(plan: NeedlePlan) -> list[Cell]:
    """All cells of a plan, in order."""
    return [
        Cell(task, length, depth, trial)
        for task in plan.tasks
        for length in plan.lengths
        for trial in range(plan.trials)
        for depth in (plan.depths if task_named(task).has_depth else (None,))
    ]
