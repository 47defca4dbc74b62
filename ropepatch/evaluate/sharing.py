"""Which prompts can be read together, and which beginnings need to be read only once."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SHARE = 32
"""Tokens that a common beginning must save before it is read on its own."""


@dataclass(frozen=True)
class Step:
    """What to do with the cache of a beginning that `prompts` share."""

    prompts: tuple[int, ...]
    """Numbers of the prompts that begin alike."""
    start: int
    """Tokens that the cache holds."""
    stop: int
    """Tokens that it shall hold; beyond `start` they are the same in all of `prompts`."""
    leaves: tuple[int, ...]
    """Prompts to finish from there, each on its own."""
    branches: tuple["Branch", ...]
    """Sets of prompts that go on alike, each with the next step on a copy of the cache."""


@dataclass(frozen=True)
class Branch:
    """A set of prompts, as a run in the sorted order."""

    low: int
    high: int
    depth: int


class Sharing:
    """Prompts in an order in which common beginnings are neighbours.

    The same idea as the radix tree of prefixes of inference engines (Zheng et al., "SGLang",
    arXiv 2312.07104, section 3): a tree whose edges are runs of tokens.
    """

    def __init__(self, prompts: Sequence[np.ndarray], least: int = LEAST_SHARE) -> None:
        """Sort.

        Args:
            prompts: Token ids, (tokens,) each.
            least: Tokens below which nothing is shared.
        """
        self._prompts = prompts
        self._least = max(least, 1)
        self._order = sorted(range(len(prompts)), key=lambda i: prompts[i].astype(">i4").tobytes())
        ordered = [prompts[i] for i in self._order]
        pairs = itertools.pairwise(ordered)
        self._common = [0, *(_common(a, b) for a, b in pairs)]

    def root(self) -> Branch:
        """All of them."""
        return Branch(0, len(self._order), 0)

    def step(self, at: Branch) -> Step:
        """What the prompts of a branch have in common, and how they part after that."""
        numbers = tuple(self._order[at.low : at.high])
        # One token of each prompt stays unread: its logits are what the prompt is read for. What
        # neighbours have in common heeds that too, or a branch could stand still.
        shortest = min(len(self._prompts[i]) for i in numbers) - 1
        common = min([shortest, *self._common[at.low + 1 : at.high]])
        depth = common if common - at.depth >= self._least else at.depth
        leaves: list[int] = []
        branches: list[Branch] = []
        for low, high in self._runs(at, depth):
            if high - low == 1:
                leaves.append(self._order[low])
            else:
                branches.append(Branch(low, high, depth))
        return Step(numbers, at.depth, depth, tuple(leaves), tuple(branches))

    def _runs(self, at: Branch, depth: int) -> Iterator[tuple[int, int]]:
        """Runs whose neighbours share enough beyond `depth`."""
        low = at.low
        for i in range(at.low + 1, at.high):
            if self._common[i] < depth + self._least:
                yield low, i
                low = i
        yield low, at.high


def _common(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b)) - 1  # one token of each stays unread
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n
