"""A long list of words: which of them are common?"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import ClassVar

from ropepatch.evaluate.tasks.base import Item, Task, listed, nouns, some

_COMMON = 5
_PER_LINE = 10
_FEWEST = 3


class CommonWords(Task):
    """Five words stand in every line of ten, all others in one line of many."""

    name: ClassVar[str] = "common_words"
    title: ClassVar[str] = "the five words that stand in every line of a list"
    opening_line: ClassVar[str] = "Count the words in these lines."
    has_depth: ClassVar[bool] = False

    def items(self, rng: Random, depths: Sequence[float]) -> tuple[Item, ...]:
        """One question."""
        del depths  # it is about all of the text
        words = some(rng, nouns(), len(nouns()))
        common, others = words[:_COMMON], words[_COMMON:]
        asked = Item(
            needles=(),
            opening="The five words that stand in every line, in the order of the first line, are",
            question="Which five words stand in every line? Answer with the words alone.",
            answers=tuple(common),
            ending=f" {listed(common)}",
            haystack=_lines(rng, common, others),
            fewest=_FEWEST,
        )
        return (asked,)


def _lines(rng: Random, common: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """The first line begins with the common words in order; the others are mixed."""
    place, first = 0, True
    while True:
        rest = [others[(place + i) % len(others)] for i in range(_PER_LINE - _COMMON)]
        place += len(rest)
        line = [*common, *rest] if first else some(rng, [*common, *rest], _PER_LINE)
        first = False
        yield f"{' '.join(line)}."
