"""Which tokens each step reads, against a slow and plain reading of the documents."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.healing.packing import packed
from ropepatch.healing.plan import HealPlan, Stage
from ropepatch.healing.rows import NOTHING, Collate, Rows, length_at
from tests.heal import parts

PACKINGS = ["restart", "continue", "single"]
SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=25)


def rows_of(sizes: list[int], packing: Any, length: int = 8, **words: Any) -> Rows:
    plan = HealPlan(**{"seq_len": length, "steps": 3, "batch": 4, "packing": packing, **words})
    return Rows(plan, parts.store(sizes), words.get("short_len") or length)


def document_of(sizes: list[int]) -> np.ndarray:
    """The document of each token id; 0 is of none."""
    return np.repeat(np.arange(-1, len(sizes)), [1, *sizes])


def read_rows(rows: Rows) -> list[dict[str, torch.Tensor]]:
    return [rows.row(i) for i in range(rows.sequences)]


def segments(row: dict[str, torch.Tensor]) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of each piece of a row, cut at its beginnings."""
    places = row["starts"].nonzero()[:, 0].tolist()
    stops = [*places[1:], len(row["input_ids"])]
    return [
        (row["input_ids"][a:b].tolist(), row["labels"][a:b].tolist())
        for a, b in zip(places, stops, strict=True)
    ]


@pytest.mark.parametrize("packing", PACKINGS)
@given(sizes=SIZES, length=st.integers(2, 12))
@settings(deadline=None, max_examples=150)
def test_every_label_is_the_next_token_of_the_same_document(
    packing: str, sizes: list[int], length: int
) -> None:
    owner, total = document_of(sizes), sum(sizes)
    for row in read_rows(rows_of(sizes, packing, length)):
        ids, labels = row["input_ids"].numpy(), row["labels"].numpy()
        assert len(ids) == len(labels) == length
        for place in (labels != NOTHING).nonzero()[0]:
            assert labels[place] == ids[place] + 1  # ids are places in the data, from 1
            assert owner[labels[place]] == owner[ids[place]]
        # what has no label is padding, a document's end, or the end of the data
        for place in (labels == NOTHING).nonzero()[0]:
            after = int(ids[place]) + 1
            assert ids[place] == 0 or after > total or owner[after] != owner[ids[place]]


@given(sizes=SIZES, length=st.integers(2, 12))
@settings(deadline=None, max_examples=150)
def test_documents_apart_are_read_whole_and_once(sizes: list[int], length: int) -> None:
    """Against pieces cut by hand."""
    wanted, begin = Counter[tuple[int, ...]](), 1
    for size in sizes:
        ids = list(range(begin, begin + size))
        cut = [ids[i : i + length] for i in range(0, size, length)]
        wanted += Counter(tuple(piece) for piece in cut if len(piece) > 1)
        begin += size
    for packing in ("restart", "single"):
        found = Counter[tuple[int, ...]]()
        for row in read_rows(rows_of(sizes, packing, length)):
            pieces = segments(row)
            assert row["starts"][0]
            if packing == "single":
                assert len(pieces) == 1
            for ids, labels in pieces:
                count = len(ids) - ids.count(0)
                assert ids[count:] == [0] * (len(ids) - count)  # padding, only at the end
                assert labels[count:] == [NOTHING] * (len(ids) - count)
                found[tuple(ids[:count])] += 1
        assert found == wanted


@given(sizes=SIZES, length=st.integers(2, 12))
@settings(deadline=None, max_examples=100)
def test_one_text_is_read_in_order_and_once(sizes: list[int], length: int) -> None:
    rows = rows_of([*sizes, length], "continue", length)
    total = sum(sizes) + length
    found = [row["input_ids"].tolist() for row in read_rows(rows)]
    whole = (total - 1) // length  # each needs the token behind it as its last label
    assert found == [list(range(i * length + 1, (i + 1) * length + 1)) for i in range(whole)]
    starts = {1, *(np.cumsum(sizes) + 1).tolist()}
    for row in read_rows(rows):
        begun = {int(i) for i in row["input_ids"][row["starts"]]}
        inside = {s for s in starts if s in row["input_ids"].tolist()}
        assert begun == inside | {int(row["input_ids"][0])}


def test_the_last_token_of_a_piece_foretells_the_first_of_the_next() -> None:
    rows = read_rows(rows_of([20], "single"))
    assert [row["labels"].tolist() for row in rows] == [
        [2, 3, 4, 5, 6, 7, 8, 9],
        [10, 11, 12, 13, 14, 15, 16, 17],
        [18, 19, 20, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING],
    ]
    assert [row["input_ids"].tolist()[:4] for row in rows] == [
        [1, 2, 3, 4],
        [9, 10, 11, 12],
        [17, 18, 19, 20],
    ]


def test_short_documents_share_a_row() -> None:
    (row,) = read_rows(rows_of([3, 1, 4], "restart"))
    # the longest first; that of one token foretells nothing, and is left out
    assert row["input_ids"].tolist() == [5, 6, 7, 8, 1, 2, 3, 0]
    assert row["labels"].tolist() == [6, 7, 8, NOTHING, 2, 3, NOTHING, NOTHING]
    assert row["starts"].nonzero()[:, 0].tolist() == [0, 4]


@given(sizes=st.lists(st.integers(2, 16), min_size=1, max_size=60))
@settings(deadline=None, max_examples=100)
def test_packing_fits_as_well_as_best_fit_does(sizes: list[int]) -> None:
    """Against the plain quadratic one: longest first, each where least room is left over."""
    length = 16
    rooms: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [i for i, room in enumerate(rooms) if room >= size]
        if fitting:
            rooms[min(fitting, key=lambda i: rooms[i])] -= size
        else:
            rooms.append(length - size)
    made = packed(np.cumsum(sizes), length, "restart")
    assert len(made) == len(rooms)
    left = [length - sum(b - a for a, b in made[i]) for i in range(len(made))]
    assert sorted(left) == sorted(rooms)


def test_only_what_is_trained_on_is_read() -> None:
    """The training part ends within a document."""
    store = parts.store([10, 30], tokens=25)
    for packing in PACKINGS:
        plan = HealPlan(8, steps=3, packing=packing)  # type: ignore[arg-type]
        read = read_rows(Rows(plan, store, 8))
        ids = {int(i) for row in read for i in row["input_ids"]}
        labels = {int(i) for row in read for i in row["labels"]} - {NOTHING}
        assert max(ids) <= 25
        assert max(labels) == 25
        assert len(ids) >= 24


# --- the order of a training ---------------------------------------------------------------------


def first_ids(rows: Rows, begin: int, count: int) -> list[int]:
    return [int(rows[begin + i]["input_ids"][0]) for i in range(count)]


@pytest.mark.parametrize("packing", PACKINGS)
def test_each_pass_reads_every_sequence_once_in_another_order(packing: str) -> None:
    rows = rows_of([10, 3, 25, 9, 2, 7, 16] * 3, packing, steps=40)
    one = rows.sequences
    assert rows.passes == pytest.approx(160 / one)
    passes = [first_ids(rows, i * one, one) for i in range(3)]
    every = [int(rows.row(i)["input_ids"][0]) for i in range(one)]
    assert all(sorted(found) == sorted(every) for found in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert passes[0] != every


def test_the_order_depends_on_the_seed_alone() -> None:
    def order(**words: Any) -> list[int]:
        return first_ids(rows_of([8] * 100, "single", **words), 0, 100)

    base = order(steps=30)
    assert order(steps=30) == base
    assert order(steps=60, learning_rate=1.0, batch=10, micro_batch=5) == base
    assert order(steps=30, seed=1) != base


def test_a_row_is_the_same_wherever_reading_begins() -> None:
    sizes = [10, 3, 25, 9, 2, 7, 16]
    whole = rows_of(sizes, "restart", steps=20)
    forward = [whole[i] for i in range(len(whole))]
    assert len(forward) == 80
    for begin in (79, 0, 41, 13):
        fresh = rows_of(sizes, "restart", steps=20)
        for key in ("input_ids", "labels", "starts"):
            assert torch.equal(fresh[begin][key], forward[begin][key])
        assert fresh[begin]["length"] == forward[begin]["length"]


def test_short_rows_come_first_in_each_step() -> None:
    plan = HealPlan(
        16,
        stages=(Stage(1), Stage(1, seq_len=8), Stage(1, short_share=0.0), Stage(1, seq_len=4)),
        short_share=0.5,
        short_len=8,
        batch=4,
    )
    rows = Rows(plan, parts.store([16] * 8), 8)
    lengths = [[rows[4 * step + slot]["length"] for slot in range(4)] for step in range(4)]
    assert lengths == [[8, 8, 16, 16], [8] * 4, [16] * 4, [4] * 4]
    assert lengths[0] == [length_at(plan, 0, slot, 8) for slot in range(4)]
    assert all(len(rows[i]["input_ids"]) == 16 for i in range(16))


# --- side by side --------------------------------------------------------------------------------


def test_rows_side_by_side() -> None:
    rows = rows_of([3, 5, 8], "restart")
    one, two = read_rows(rows)
    batch = Collate(restart=True)([{**one, "length": 8}, {**two, "length": 8}])
    assert batch["input_ids"].shape == (2, 8)
    assert torch.equal(batch["input_ids"], torch.stack([one["input_ids"], two["input_ids"]]))
    assert torch.equal(batch["labels"], batch["shift_labels"])
    assert batch["position_ids"].tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [0, 1, 2, 3, 4, 0, 1, 2],
    ]
    assert "starts" not in batch


@pytest.mark.parametrize(("restart", "sizes"), [(False, [3, 5, 8]), (True, [8, 8])])
def test_positions_are_given_only_where_they_begin_anew(restart: bool, sizes: list[int]) -> None:
    batch = Collate(restart=restart)(read_rows(rows_of(sizes, "restart")))
    assert "position_ids" not in batch


@given(
    sizes=st.lists(st.integers(2, 40), min_size=2, max_size=12),
    length=st.sampled_from([2, 4, 8, 16]),
)
@settings(deadline=None, max_examples=100)
def test_rows_are_cut_to_the_length_of_their_step(sizes: list[int], length: int) -> None:
    owner = document_of(sizes)
    read = read_rows(rows_of(sizes, "restart", 16))
    batch = Collate(restart=True)([{**row, "length": length} for row in read])
    ids, labels = batch["input_ids"], batch["shift_labels"]
    assert ids.shape == labels.shape == (len(read) * 16 // length, length)
    assert torch.equal(ids.flatten(), torch.cat([row["input_ids"] for row in read]))
    assert torch.equal(labels.flatten(), torch.cat([row["labels"] for row in read]))
    positions = batch.get("position_ids", torch.arange(length).expand_as(ids))
    for i in range(len(ids)):
        assert positions[i, 0] == 0
        for j in range(1, length):
            now, before = int(ids[i, j]), int(ids[i, j - 1])
            goes_on = now == before + 1 and owner[now] == owner[before] and before
            assert positions[i, j] == (positions[i, j - 1] + 1 if goes_on or now == 0 else 0)


def test_what_is_collated_may_be_changed() -> None:
    """The trainer moves and shifts labels; the data stay as they are."""
    rows = rows_of([8, 8], "restart")
    batch = Collate(restart=True)([rows[0]])
    batch["labels"].fill_(7)
    assert not (batch["shift_labels"] == 7).all()
    batch["input_ids"].fill_(7)
    assert not (rows[0]["input_ids"] == 7).all()
