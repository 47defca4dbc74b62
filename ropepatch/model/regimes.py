"""Which frequencies are in force at which length. Plain numbers; knows no tensors.

A regime is named by a length: the one whose frequencies are in force. Every token is read under
the regime of its own place in the text, whether the text comes at once, in chunks or one token
at a time, so that all three give the same logits.
"""

import math
from dataclasses import dataclass
from typing import Literal

from ropepatch.methods.base import Method

Changes = Literal["never", "once", "growing"]

DEFAULT_GROWTH = 1.25
"""Five changes from the trained length to three times of it."""


@dataclass(frozen=True)
class Regimes:
    """The lengths at which frequencies change."""

    changes: Changes
    trained: int
    """Tokens; the first regime ends here, unless nothing ever changes."""
    target: int
    """Tokens the change is meant for; always the end of a regime."""
    growth: float = DEFAULT_GROWTH
    """Ratio of the ends of two regimes that follow each other."""

    @classmethod
    def of(
        cls, method: Method, trained: int, target: int, *, exact: bool, growth: float | None
    ) -> "Regimes":
        """Those of a method.

        Args:
            method: Any of the model's; all of them come from one recipe.
            trained: Tokens.
            target: Tokens.
            exact: Whether the first regime keeps the frequencies from before.
            growth: Ratio, or None for the default.
        """
        once: Changes = "once" if exact or method.length_dependent else "never"
        changes: Changes = "growing" if method.grows else once
        beyond = trained if changes == "never" else trained + 1  # p-RoPE reaches no farther
        return cls(changes, trained, max(target, beyond), growth or DEFAULT_GROWTH)

    def at(self, length: int) -> int:
        """The regime of an input of so many tokens."""
        if self.changes == "never":
            return self.target
        return self.ends(length)[-1]

    def pinned(self, length: int) -> int:
        """The regime of a whole text that is known to end at `length` tokens.

        Unlike `at`, exactly that length, as if the text were read in one pass by transformers.
        """
        if self.changes == "growing" and length > self.trained:
            return length
        return self.at(length)

    def ends(self, length: int) -> list[int]:
        """The ends of all regimes up to the one of `length`, in tokens, shortest first.

        What is beyond the target stays in the last regime of a method that changes once.
        """
        ends = [self.trained]
        while ends[-1] < length:
            if self.changes == "once":
                return [*ends, self.target]
            grown = max(math.ceil(ends[-1] * self.growth), ends[-1] + 1)
            ends.append(self.target if ends[-1] < self.target < grown else grown)
        return ends
