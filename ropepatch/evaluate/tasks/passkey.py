"""One number without a key (Mohtashami and Jaggi, "Landmark Attention", arXiv 2305.16300)."""

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from ropepatch.evaluate.tasks.base import Item, Needle, Task, number


class Passkey(Task):
    """The one passkey of the text."""

    name: ClassVar[str] = "passkey"
    title: ClassVar[str] = "one number, asked for without a key"
    opening_line: ClassVar[str] = "Remember the passkey that is hidden in this text."

    def items(self, rng: Random, depths: Sequence[float]) -> tuple[Item, ...]:
        """One question."""
        (depth,) = depths
        value = number(rng)
        asked = Item(
            needles=(Needle(f"The passkey is {value}; keep it in mind.", depth),),
            opening="The passkey is",
            question="What is the passkey? Answer with the number alone.",
            answers=(value,),
            ending=f" {value}",
        )
        return (asked,)
