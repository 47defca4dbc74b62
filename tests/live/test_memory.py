"""Patching and reverting, again and again, leaves nothing behind."""

import gc
import weakref
from typing import Any

import pytest
import torch

from tests.live.subjects import Case, in_chunks, make, name_of, patched, read, text

CASES: list[Case] = [
    ("yarn", {"factor": 4.0}),
    ("dynamic-yarn", {"factor": 4.0, "short_exact": True}),
]


def count() -> tuple[int, int]:
    """Tensors and objects that are alive."""
    gc.collect()
    alive = gc.get_objects()
    return sum(type(one) is torch.Tensor for one in alive), len(alive)


def cycle(model: Any, case: Case) -> None:
    with patched(model, case):
        pass


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_two_hundred_cycles_leave_as_many_objects(case: Case) -> None:
    model = make()
    for _ in range(3):
        cycle(model, case)
    before = count()
    for _ in range(200):
        cycle(model, case)
    after = count()
    assert after[0] == before[0]
    assert after[1] - before[1] < 50


@pytest.mark.slow
def test_replacing_again_and_again_leaves_as_many_objects() -> None:
    model = make()

    def replace(times: int) -> None:
        for i in range(times):
            patched(model, ("pi", {"factor": 2.0 + i % 3}), replace=True)

    replace(6)
    before = count()
    replace(200)
    after = count()
    assert after[0] == before[0]
    assert after[1] - before[1] < 50


def test_reading_leaves_as_many_objects() -> None:
    """Long texts, short ones, and chunks, of which every one has a cache of its own."""
    model, ids = make(), text(110)

    def use() -> None:
        read(model, ids)
        read(model, ids[:, :20])
        in_chunks(model, ids, 30)

    with patched(model, CASES[1]):
        use()
        use()
        before = count()
        for _ in range(10):
            use()
        after = count()
    assert after[0] == before[0]
    assert after[1] - before[1] < 50


@pytest.mark.slow
def test_many_pinned_lengths_do_not_pile_up() -> None:
    model, ids = make(), text(20)
    with patched(model, CASES[1]) as handle:
        for length in range(65, 135):
            with handle.pinned(length):
                read(model, ids)
        before = count()
        for length in range(135, 205):
            with handle.pinned(length):
                read(model, ids)
        after = count()
        handle.describe()
    assert after[0] <= before[0]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_patch_does_not_keep_its_model_alive(case: Case) -> None:
    model: Any = make()
    gone, rotary = weakref.ref(model), weakref.ref(model.model.rotary_emb)
    patched(model, case)
    read(model, text(150))
    del model
    gc.collect()
    assert gone() is None
    assert rotary() is None


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_reverted_patch_leaves_its_tables(case: Case) -> None:
    model: Any = make()
    handle = patched(model, case)
    read(model, text(150))
    table = weakref.ref(model.model.rotary_emb)
    handle.revert()
    del handle
    gc.collect()
    assert table() is None
