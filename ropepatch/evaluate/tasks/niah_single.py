"""One number under a key: a needle in a haystack."""

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from ropepatch.evaluate.tasks.base import Item, Needle, Task, nouns, numbers, some


class NiahSingle(Task):
    """One key and its number."""

    name: ClassVar[str] = "niah_single"
    title: ClassVar[str] = "one number, asked for by its key"
    shared: ClassVar[bool] = True

    def items(self, rng: Random, depths: Sequence[float]) -> tuple[Item, ...]:
        """Questions about one text."""
        keys, values = some(rng, nouns(), len(depths)), numbers(rng, len(depths))
        return tuple(
            asked(key, value, depth) for key, value, depth in zip(keys, values, depths, strict=True)
        )


def asked(key: str, value: str, depth: float, others: tuple[Needle, ...] = ()) -> Item:
    """A question for one of the codes in a text."""
    return Item(
        needles=(Needle(f"The code of {key} is {value}.", depth), *others),
        opening=f"The code of {key} is",
        question=f"What is the code of {key}? Answer with the number alone.",
        answers=(value,),
        ending=f" {value}",
    )
