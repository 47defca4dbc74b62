"""How much a run will read, counted before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ropepatch.evaluate.cells import Prompt
from ropepatch.evaluate.sharing import Sharing


@dataclass
class Outlook:
    """Work to come."""

    tokens: int = 0
    """To be read."""
    pairs: float = 0.0
    """Of a query with a key that attention will look at."""
    nominal: int = 0
    """Tokens of all prompts and answers, as if each were read alone."""

    def add(self, start: int, stop: int) -> None:
        """Tokens from `start` to `stop` of one text."""
        count = stop - start
        self.tokens += count
        self.pairs += count * (start + count / 2)

    def __iadd__(self, other: Self) -> Self:
        self.tokens += other.tokens
        self.pairs += other.pairs
        self.nominal += other.nominal
        return self


def outlook_of(prompts: Sequence[Prompt], least: int, extra: int) -> Outlook:
    """What reading prompts costs when beginnings of `least` tokens and more are shared.

    Args:
        prompts: Those that may share.
        least: As of `Sharing`.
        extra: Tokens read after each prompt.
    """
    found = Outlook()
    if not prompts:
        return found
    tree = Sharing([prompt.ids for prompt in prompts], least)
    stack = [tree.root()]
    while stack:
        step = tree.step(stack.pop())
        found.add(step.start, step.stop)
        for i in step.leaves:
            end = len(prompts[i].ids) + extra
            found.add(step.stop, end)
            found.nominal += end
        stack += step.branches
    return found
