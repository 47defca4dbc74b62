"""A chain of variables that hand one value on: which of them hold it?"""

import itertools
from collections.abc import Sequence
from random import Random
from typing import ClassVar

from ropepatch.evaluate.tasks.base import Item, Needle, Task, listed, number

_HOPS = 4
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


class VariableTracking(Task):
    """The chain begins at the depth of the cell and reaches to the end of the text."""

    name: ClassVar[str] = "variable_tracking"
    title: ClassVar[str] = "five variables that hand one value on"
    opening_line: ClassVar[str] = "Keep track of the variables that are set in this text."

    def items(self, rng: Random, depths: Sequence[float]) -> tuple[Item, ...]:
        """One question."""
        (depth,) = depths
        drawn: dict[str, None] = {}
        while len(drawn) <= _HOPS:
            drawn["".join(_LETTERS[int(rng.random() * len(_LETTERS))] for _ in range(5))] = None
        names, value = list(drawn), number(rng)
        said = [f"VAR {names[0]} = {value}."]
        said += [f"VAR {b} = VAR {a}." for a, b in itertools.pairwise(names)]
        asked = Item(
            needles=tuple(
                Needle(text, depth + (100 - depth) * i / _HOPS) for i, text in enumerate(said)
            ),
            opening=f"The five variables that hold {value}, in the order of the text, are",
            question=f"Which five variables hold the value {value}? Answer with their names alone.",
            answers=tuple(names),
            ending=f" {listed(names)}",
        )
        return (asked,)
