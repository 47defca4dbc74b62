"""Several keys with a number each, one of which is asked for."""

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from ropepatch.evaluate.tasks.base import Item, Needle, Task, anywhere, nouns, numbers, some
from ropepatch.evaluate.tasks.niah_single import asked

_OTHERS = 3


class NiahMultikey(Task):
    """Needles of the same words lie about the asked one."""

    name: ClassVar[str] = "niah_multikey"
    title: ClassVar[str] = "one number of four, asked for by its key"
    shared: ClassVar[bool] = True

    def items(self, rng: Random, depths: Sequence[float]) -> tuple[Item, ...]:
        """Questions about one text; the needles nobody asks for hang on the first."""
        places = [*depths, *anywhere(rng, _OTHERS)]
        keys, values = some(rng, nouns(), len(places)), numbers(rng, len(places))
        rows = list(zip(keys, values, places, strict=True))
        others = tuple(
            Needle(f"The code of {key} is {value}.", place)
            for key, value, place in rows[len(depths) :]
        )
        return tuple(
            asked(*row, others=others if i == 0 else ())
            for i, row in enumerate(rows[: len(depths)])
        )
