"""Several keys with a number each, all of which are asked for at once."""

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from ropepatch.evaluate.tasks.base import Item, Needle, Task, anywhere, listed, nouns, numbers, some

_KEYS = 4


class NiahMultiquery(Task):
    """The first key lies at the depth of the cell, the others anywhere."""

    name: ClassVar[str] = "niah_multiquery"
    title: ClassVar[str] = "four numbers, asked for by four keys at once"

    def items(self, rng: Random, depths: Sequence[float]) -> tuple[Item, ...]:
        """One question."""
        (depth,) = depths
        keys, values = some(rng, nouns(), _KEYS), numbers(rng, _KEYS)
        places = [depth, *anywhere(rng, _KEYS - 1)]
        asked = Item(
            needles=tuple(
                Needle(f"The code of {key} is {value}.", place)
                for key, value, place in zip(keys, values, places, strict=True)
            ),
            opening=f"The codes of {listed(keys)}, in this order, are",
            question=(
                f"What are the codes of {listed(keys)}? Answer with the numbers alone, in this "
                "order."
            ),
            answers=tuple(values),
            ending=f" {listed(values)}",
        )
        return (asked,)
