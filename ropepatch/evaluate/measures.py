"""What a run measured: scores by length and depth, losses by length and place.

What was not measured, or is no finite number, is None.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class Failure:
    """Work that gave no number."""

    what: str
    reason: str
    count: int


@dataclass(frozen=True)
class Score:
    """Answers taken together."""

    exact: float | None
    """Share of answers that are right in full."""
    recall: float | None
    """Mean share of what was asked for that was found."""
    logprob: float | None
    """Mean nats per token of the right answers; None when answers were generated."""
    trials: int
    """Answers; those that failed are not among them."""
    failed: int
    low: float | None
    """Of the 95 % Wilson interval of `exact`."""
    high: float | None


@dataclass(frozen=True)
class NeedleGrid:
    """One task: scores by length and depth."""

    task: str
    lengths: tuple[int, ...]
    depths: tuple[float | None, ...]
    """None alone for a task that is about the whole text."""
    cells: Mapping[tuple[int, float | None], Score]
    """By length and depth; every pair is there."""
    by_length: Mapping[int, Score]
    """Over all depths and trials."""


@dataclass(frozen=True)
class NeedleSummary:
    """All tasks of a run."""

    grids: tuple[NeedleGrid, ...]
    by_length: Mapping[int, Score]
    """Over all tasks, depths and trials."""
    forwarded: int
    """Tokens that went through the model."""
    nominal: int
    """Tokens of all prompts and answers, each read on its own."""
    failures: tuple[Failure, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Shortest first."""
        return tuple(self.by_length)

    @property
    def share(self) -> float | None:
        """Forwarded over nominal tokens."""
        return self.forwarded / self.nominal if self.nominal else None

    @property
    def trials(self) -> int:
        """Answers over everything; a run that was broken off has fewer than were asked for."""
        return sum(score.trials for score in self.by_length.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        return {
            "by_length": {str(n): vars(score) for n, score in self.by_length.items()},
            "tasks": {
                grid.task: {
                    "by_length": {str(n): vars(score) for n, score in grid.by_length.items()},
                    "cells": [
                        {"length": length, "depth": depth, **vars(score)}
                        for (length, depth), score in grid.cells.items()
                    ],
                }
                for grid in self.grids
            },
            "forwarded": self.forwarded,
            "nominal": self.nominal,
            "failures": [vars(failure) for failure in self.failures],
        }


@dataclass(frozen=True)
class Tally:
    """Losses added up over windows, divided once."""

    nats: float
    tokens: int
    windows: int

    @property
    def loss(self) -> float | None:
        """Nats per token."""
        return finite(self.nats / self.tokens) if self.tokens else None

    @property
    def perplexity(self) -> float | None:
        """exp of the loss; None when no finite number holds it."""
        loss = self.loss
        return math.exp(loss) if loss is not None and loss < 700 else None

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        words = {"loss": self.loss, "perplexity": self.perplexity}
        return {**words, "tokens": self.tokens, "windows": self.windows}


@dataclass(frozen=True)
class LengthLoss:
    """What one length was measured by; None for what was not asked."""

    length: int
    whole: Tally | None
    """All tokens of the first `length`."""
    final: Tally | None
    """The same last tokens of the window, after ever more context."""
    sliding: Tally | None
    """The whole text by a window that slides."""


@dataclass(frozen=True)
class Place:
    """A part of the window, as token places."""

    start: int
    stop: int
    tally: Tally


@dataclass(frozen=True)
class KeyTokens:
    """LongPPL."""

    tally: Tally
    judged: int

    @property
    def share(self) -> float | None:
        """Key tokens among those judged."""
        return self.tally.tokens / self.judged if self.judged else None


@dataclass(frozen=True)
class PerplexitySummary:
    """All windows of a run."""

    by_length: tuple[LengthLoss, ...]
    places: tuple[Place, ...]
    key: KeyTokens | None
    windows: int
    """Read in full."""
    tokens: int
    """Scored under the longest length."""
    forwarded: int
    failures: tuple[Failure, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Shortest first."""
        return tuple(row.length for row in self.by_length)

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        return {
            "by_length": {
                str(row.length): {
                    name: tally.to_dict() if tally else None
                    for name, tally in (
                        ("whole", row.whole),
                        ("final", row.final),
                        ("sliding", row.sliding),
                    )
                }
                for row in self.by_length
            },
            "places": [
                {"start": place.start, "stop": place.stop, **place.tally.to_dict()}
                for place in self.places
            ],
            "longppl": None
            if self.key is None
            else {**self.key.tally.to_dict(), "judged": self.key.judged, "share": self.key.share},
            "windows": self.windows,
            "tokens": self.tokens,
            "forwarded": self.forwarded,
            "failures": [vars(failure) for failure in self.failures],
        }
