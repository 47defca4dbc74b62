"""Made-up words by a power law: which are the most frequent?"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import ClassVar

from ropepatch.evaluate.tasks.base import Item, Task, listed

_ASKED = 3
_SHARES = (8, 4, 2)
"""Of each line, how many words are the first, the second and the third."""
_RARE = 4
"""Words of a line that are others."""
_FEWEST = 2
_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"


class FrequentWords(Task):
    """Three words at 8, 4 and 2 in a line of 18; the rest are seldom seen twice."""

    name: ClassVar[str] = "frequent_words"
    title: ClassVar[str] = "the three most frequent of many made-up words"
    opening_line: ClassVar[str] = "Count the words in these lines."
    has_depth: ClassVar[bool] = False

    def items(self, rng: Random, depths: Sequence[float]) -> tuple[Item, ...]:
        """One question."""
        del depths  # it is about all of the text
        made: dict[str, None] = {}
        while len(made) < _ASKED + 60 * _RARE:
            made[_word(rng)] = None
        words = list(made)
        asked = Item(
            needles=(),
            opening="The three most frequent words, the most frequent first, are",
            question="Which three words are the most frequent? Answer with the words alone.",
            answers=tuple(words[:_ASKED]),
            ending=f" {listed(words[:_ASKED])}",
            haystack=_lines(rng, words[:_ASKED], words[_ASKED:]),
            fewest=_FEWEST,
        )
        return (asked,)


def _word(rng: Random) -> str:
    """Three syllables."""
    letters = (_CONSONANTS, _VOWELS) * 3
    return "".join(part[int(rng.random() * len(part))] for part in letters)


def _lines(rng: Random, frequent: Sequence[str], rare: Sequence[str]) -> Iterator[str]:
    place = 0
    while True:
        line = [word for word, share in zip(frequent, _SHARES, strict=True) for _ in range(share)]
        line += [rare[(place + i) % len(rare)] for i in range(_RARE)]
        place += _RARE
        mixed = list(line)
        for i in range(len(mixed) - 1, 0, -1):
            j = int(rng.random() * (i + 1))
            mixed[i], mixed[j] = mixed[j], mixed[i]
        yield f"{' '.join(mixed)}."
