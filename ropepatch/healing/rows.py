"""Sequences of a training: which tokens each step reads, decided by the seed alone."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ropepatch.healing.plan import HealPlan
from ropepatch.healing.store import Store

NOTHING = -100
"""Target of a token after which nothing is to be foretold."""


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Row `i` of the whole training; rows of one step follow each other.

    However many processes share a step, and wherever a run goes on, a row is the same. All rows
    have `seq_len` tokens; where a step reads shorter sequences, `collate` cuts its rows.
    """

    def __init__(self, plan: HealPlan, store: Store, short_len: int) -> None:
        """Count the sequences that the data have.

        Args:
            plan: Of the training.
            store: Its data.
            short_len: Tokens of a short sequence.
        """
        self.plan, self.store, self.short_len = plan, store, short_len
        self._ends = store.ends[store.ends < store.about.tokens]
        self._places = _places(plan, store)
        self._order = lru_cache(maxsize=2)(self._shuffled)

    @property
    def sequences(self) -> int:
        """Different ones that the data have."""
        return len(self._places)

    @property
    def passes(self) -> float:
        """How often the data are read."""
        return len(self) / self.sequences

    def __len__(self) -> int:
        return self.plan.steps * self.plan.batch

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Token ids (seq_len,), what follows each (or `NOTHING`), and where documents begin."""
        length = self.plan.seq_len
        epoch, place = divmod(i, self.sequences)
        start, stop = self._places[self._order(epoch)[place]]
        ids = np.zeros(length, np.int64)
        labels = np.full(length, NOTHING, np.int64)
        tokens = self.store.train[start : min(stop + 1, self.store.about.tokens)].astype(np.int64)
        size = stop - start
        ids[:size] = tokens[:size]
        labels[: len(tokens) - 1] = tokens[1:][:size]
        first, last = np.searchsorted(self._ends, [start, stop], "right")
        begins = self._ends[first:last] - start
        labels[begins - 1] = NOTHING  # another document's first token
        labels[size:] = NOTHING
        if len(tokens) == size and size:
            labels[size - 1] = NOTHING
        starts = np.zeros(length, bool)
        starts[0] = True
        starts[begins[begins < length]] = True
        step, slot = divmod(i, self.plan.batch)
        return {
            "input_ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            "starts": torch.from_numpy(starts),
            "length": length_at(self.plan, step, slot, self.short_len),
        }

    def _shuffled(self, epoch: int) -> np.ndarray:
        generator = np.random.default_rng((self.plan.seed, epoch))
        return generator.permutation(self.sequences)


def _places(plan: HealPlan, store: Store) -> np.ndarray:
    """(sequences, 2): first token, and the one after the last."""
    tokens, length = store.about.tokens, plan.seq_len
    if plan.packing != "single":
        starts = np.arange(0, tokens - length, length)
        return np.stack([starts, starts + length], axis=1)
    ends = [*(int(e) for e in store.ends if e < tokens), tokens]
    begins = [0, *ends[:-1]]
    return np.asarray(
        [
            (start, min(start + length, end))
            for begin, end in zip(begins, ends, strict=True)
            for start in range(begin, end, length)
            if min(start + length, end) - start > 1
        ]
    )


def length_at(plan: HealPlan, step: int, slot: int, short_len: int) -> int:
    """Tokens of the sequences that a row of a step is cut into."""
    length = plan.stage_at(step).seq_len or plan.seq_len
    return min(length, short_len) if slot < plan.short_rows(step) else length


class Collate:
    """Rows side by side, cut to the length of their step."""

    def __init__(self, *, restart: bool) -> None:
        """Choose whether positions begin anew with each document."""
        self.restart = restart

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Ids, labels and, where documents are kept apart, positions: (sequences, length) each."""
        length = rows[0]["length"]
        found = {
            key: torch.stack([row[key] for row in rows]).view(-1, length)
            for key in ("input_ids", "labels", "starts")
        }
        starts = found.pop("starts")
        starts[:, 0] = True
        if self.restart and bool(starts[:, 1:].any()):
            places = torch.arange(length).expand_as(starts)
            found["position_ids"] = places - torch.where(starts, places, 0).cummax(1).values
        # the trainer counts labels; it and context parallelism know shifted ones by this name
        found["shift_labels"] = found["labels"].clone()
        return found
