"""What all tasks share: facts to hide, a question, and how an answer is scored.

The names of the tasks and what each tries are RULER's (Hsieh et al., "RULER: What's the Real
Context Size of Your Long-Context Language Models?", arXiv 2404.06654, section 3 and appendix B);
their wording is our own.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random
from typing import ClassVar

DIGITS = 5
"""Of every hidden number, so that answers are equally long."""


@dataclass(frozen=True)
class Needle:
    """A sentence to hide."""

    text: str
    depth: float
    """Per cent of the haystack."""


@dataclass(frozen=True)
class Item:
    """One question and what it needs to be answered."""

    needles: tuple[Needle, ...]
    opening: str
    """Beginning of the sentence that the answer completes, as "The code of maple is"."""
    question: str
    """The same, asked of a model that chats."""
    answers: tuple[str, ...]
    """In the order in which they stand in `ending`."""
    ending: str
    """The answer as the text goes on after `opening`, with its leading space."""
    haystack: Iterator[str] | None = None
    """Sentences without end to hide the needles in, where the task brings its own."""
    fewest: int = 0
    """Sentences of it that have to fit, or its answer would be another."""


class Task(ABC):
    """One kind of question. Knows no tokens: sentences in, sentences out."""

    name: ClassVar[str]
    title: ClassVar[str]
    opening_line: ClassVar[str] = "Remember the codes that are hidden in this text."
    shared: ClassVar[bool] = False
    """Whether one text can hold a needle for every depth."""
    has_depth: ClassVar[bool] = True
    """Whether something lies at the depth of the cell."""

    @abstractmethod
    def items(self, rng: Random, depths: Sequence[float]) -> tuple[Item, ...]:
        """Questions about one text, one for each depth; several for `shared` tasks only.

        Args:
            rng: What is drawn comes from it.
            depths: Where what is asked for lies, per cent.
        """

    def found(self, text: str, answers: Sequence[str]) -> tuple[bool, ...]:
        """Which answers a generated text gives.

        A single answer must be the first of its kind; several may stand in any order.
        """
        words = re.findall(r"[A-Za-z]+|\d+", text)
        if len(answers) == 1:
            numeric = answers[0].isdigit()
            first = next((w for w in words if w.isdigit() == numeric), None)
            return (first == answers[0],)
        return tuple(answer in words for answer in answers)


def number(rng: Random) -> str:
    """A number of `DIGITS` digits that does not begin with zero."""
    return str(10 ** (DIGITS - 1) + int(rng.random() * 9 * 10 ** (DIGITS - 1)))


def numbers(rng: Random, count: int) -> list[str]:
    """Different ones."""
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[number(rng)] = None
    return list(drawn)


@cache
def nouns() -> tuple[str, ...]:
    """Words that serve as keys."""
    text = (resources.files("ropepatch.evaluate") / "texts" / "nouns.txt").read_text("utf-8")
    return tuple(text.split())


def some(rng: Random, words: Sequence[str], count: int) -> list[str]:
    """Different words; the same on every version of Python."""
    pool = list(words)
    return [pool.pop(int(rng.random() * len(pool))) for _ in range(count)]


def anywhere(rng: Random, count: int) -> list[float]:
    """Where further needles lie, per cent."""
    return [round(rng.random() * 100, 3) for _ in range(count)]


def listed(words: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
