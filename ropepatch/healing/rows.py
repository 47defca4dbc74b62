"""Sequences of a training: which tokens each step reads, decided by the seed alone."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ropepatch.healing.packing import Segments, packed
from ropepatch.healing.plan import HealPlan
from ropepatch.healing.store import Store

NOTHING = -100
"""Target of a token after which nothing is to be foretold."""


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Row `i` of the whole training; rows of one step follow each other.

    However many processes share a step, and wherever a run goes on, a row is the same. All rows
    have `seq_len` tokens; where a step reads shorter sequences, `Collate` cuts its rows.
    """

    def __init__(self, plan: HealPlan, store: Store, short_len: int) -> None:
        """Pack the documents.

        Args:
            plan: Of the training.
            store: Its data.
            short_len: Tokens of a short sequence.
        """
        self.plan, self.store, self.short_len = plan, store, short_len
        self._ends = np.append(store.ends[store.ends < store.about.tokens], store.about.tokens)
        self._packed: Segments = packed(self._ends, plan.seq_len, plan.packing)
        self._order = lru_cache(maxsize=2)(self._shuffled)

    @property
    def sequences(self) -> int:
        """Different ones that the data have."""
        return len(self._packed)

    @property
    def passes(self) -> float:
        """How often the data are read."""
        return len(self) / self.sequences

    def __len__(self) -> int:
        return self.plan.steps * self.plan.batch

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Row `i` of the training, as `row` gives it."""
        epoch, place = divmod(i, self.sequences)
        step, slot = divmod(i, self.plan.batch)
        length = length_at(self.plan, step, slot, self.short_len)
        return {**self.row(int(self._order(epoch)[place])), "length": length}

    def row(self, number: int) -> dict[str, Any]:
        """Token ids (seq_len,), what follows each (or `NOTHING`), and where documents begin."""
        length = self.plan.seq_len
        ids = np.zeros(length, np.int64)
        labels = np.full(length, NOTHING, np.int64)
        starts = np.zeros(length, bool)
        at = 0
        for start, stop in self._packed[number]:
            size = stop - start
            tokens = self.store.train[start : stop + 1].astype(np.int64)
            ids[at : at + size] = tokens[:size]
            labels[at : at + len(tokens) - 1] = tokens[1:]
            first, last = np.searchsorted(self._ends, [start, stop], "right")
            ends = self._ends[first:last] - start
            labels[at + ends - 1] = NOTHING  # what follows is another document's
            starts[at] = True
            starts[at + ends[ends < size]] = True
            at += size
        return {
            "input_ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            "starts": torch.from_numpy(starts),
            "length": length,
        }

    def _shuffled(self, epoch: int) -> np.ndarray:
        generator = np.random.default_rng((self.plan.seed, epoch))
        return generator.permutation(self.sequences)


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
