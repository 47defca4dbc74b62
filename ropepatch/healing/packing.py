"""How documents share sequences.

Where documents are kept apart, none that fits into a sequence is cut: best fit, longest first
(Ding et al., Fewer Truncations Improve Language Modeling, arXiv:2404.10830), for what a long
context is to be learned from are whole documents.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ropepatch.healing.words import Packing


@dataclass(frozen=True, eq=False)
class Segments:
    """Pieces of the data by sequence."""

    pieces: np.ndarray
    """(pieces, 2): first token, and the one after the last."""
    first: np.ndarray
    """(sequences + 1,): the first piece of each sequence."""

    def __len__(self) -> int:
        return len(self.first) - 1

    def __getitem__(self, i: int) -> Iterator[tuple[int, int]]:
        """The pieces of a sequence."""
        for start, stop in self.pieces[self.first[i] : self.first[i + 1]]:
            yield int(start), int(stop)


def packed(ends: np.ndarray, length: int, packing: Packing) -> Segments:
    """Documents in sequences of `length` tokens.

    Args:
        ends: (documents,): tokens up to the end of each.
        length: Tokens of a sequence.
        packing: 'continue' cuts the data as one text; 'single' gives each piece of a document a
            sequence of its own; 'restart' lets several share one.
    """
    tokens = int(ends[-1])
    if packing == "continue":
        starts = np.arange(0, tokens - length, length)
        return Segments(np.stack([starts, starts + length], axis=1), np.arange(len(starts) + 1))
    pieces = _pieces(ends, length)
    if packing == "single":
        return Segments(pieces, np.arange(len(pieces) + 1))
    rows = _best_fit(pieces[:, 1] - pieces[:, 0], length)
    sizes = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    order = np.fromiter((piece for row in rows for piece in row), np.int64, int(sizes.sum()))
    return Segments(pieces[order], np.concatenate([[0], np.cumsum(sizes)]))


def _pieces(ends: np.ndarray, length: int) -> np.ndarray:
    """Documents, the long ones in pieces of `length` tokens; what has no second token is left."""
    begins = np.concatenate([[0], ends[:-1]])
    counts = -(-(ends - begins) // length)
    document = np.repeat(np.arange(len(ends)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = begins[document] + number * length
    stops = np.minimum(starts + length, ends[document])
    pieces = np.stack([starts, stops], axis=1)
    kept: np.ndarray = pieces[stops - starts > 1]
    return kept


def _best_fit(sizes: np.ndarray, length: int) -> list[list[int]]:
    """Numbers of pieces by sequence: each where least room is left over, longest first."""
    rows: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []
    for piece in np.argsort(-sizes, kind="stable"):
        size = int(sizes[piece])
        place = bisect.bisect_left(rooms, size)
        if place == len(rooms):
            row, room = len(rows), length
            rows.append([])
        else:
            room = rooms[place]
            row = by_room[room].pop()
            if not by_room[room]:
                del by_room[room]
                rooms.pop(place)
        rows[row].append(int(piece))
        left = room - size
        if left > 1:
            if left not in by_room:
                by_room[left] = []
                bisect.insort(rooms, left)
            by_room[left].append(row)
    return rows
