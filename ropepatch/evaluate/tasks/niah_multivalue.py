"""One key with several numbers, all of which are asked for."""

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from ropepatch.evaluate.tasks.base import Item, Needle, Task, anywhere, listed, nouns, numbers, some

_VALUES = 4


class NiahMultivalue(Task):
    """One number lies at the depth of the cell, the others anywhere."""

    name: ClassVar[str] = "niah_multivalue"
    title: ClassVar[str] = "four numbers of one key"

    def items(self, rng: Random, depths: Sequence[float]) -> tuple[Item, ...]:
        """One question."""
        (depth,) = depths
        key = some(rng, nouns(), 1)[0]
        places = sorted([depth, *anywhere(rng, _VALUES - 1)])
        values = numbers(rng, _VALUES)
        asked = Item(
            needles=tuple(
                Needle(f"One code of {key} is {value}.", place)
                for value, place in zip(values, places, strict=True)
            ),
            opening=f"The four codes of {key}, in the order of the text, are",
            question=f"What are the four codes of {key}? Answer with the numbers alone.",
            answers=tuple(values),
            ending=f" {listed(values)}",
        )
        return (asked,)
