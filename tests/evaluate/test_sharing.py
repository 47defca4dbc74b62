"""Beginnings that are read once: on lists of token ids in place of caches."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.evaluate.cells import Cell, Prompt
from ropepatch.evaluate.outlook import Outlook, outlook_of
from ropepatch.evaluate.sharing import Sharing


def read(prompts: list[np.ndarray[Any, Any]], least: int) -> tuple[dict[int, list[int]], int]:
    """What each prompt was read as, and how many tokens that took."""
    tree, found, count = Sharing(prompts, least), {}, 0
    stack: list[tuple[Any, list[int]]] = [(tree.root(), [])]
    for _ in range(2 * len(prompts)):  # a tree has no more branches
        if not stack:
            break
        branch, cache = stack.pop()
        step = tree.step(branch)
        assert step.start == len(cache)
        assert sorted(step.prompts) == sorted(
            [*step.leaves, *(i for b in step.branches for i in tree.step(b).prompts)]
        )
        if step.stop > step.start:
            assert step.stop - step.start >= least
            cache = cache + prompts[step.prompts[0]][step.start : step.stop].tolist()
            count += step.stop - step.start
        for i in step.leaves:
            assert i not in found
            own = prompts[i][len(cache) :].tolist()
            assert own  # the last token is what a prompt is read for
            found[i] = cache + own
            count += len(own)
        stack += [(further, cache) for further in step.branches]
    assert not stack
    return found, count


def trie_size(prompts: list[np.ndarray[Any, Any]]) -> int:
    """Different beginnings; but the last token of each prompt is always its own."""
    shared = {tuple(p[:n].tolist()) for p in prompts for n in range(1, len(p))}
    return len(shared) + len(prompts)


rows = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12)
stems = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=6)),
    min_size=1,
    max_size=10,
)


def long(parted: list[tuple[int, list[int]]]) -> list[np.ndarray[Any, Any]]:
    """Prompts that begin with one of four stems."""
    beginnings: list[list[int]] = [[], [0] * 9, [0] * 5 + [1] * 6, [2] * 4]
    return [np.asarray(beginnings[which] + rest, np.int32) for which, rest in parted]


@settings(deadline=None)
@given(made=rows | stems.map(long), least=st.integers(1, 8))
def test_every_prompt_is_read_whole_and_once(made: Any, least: int) -> None:
    prompts = [np.asarray(ids, np.int32) for ids in made]
    found, count = read(prompts, least)
    assert found == {i: ids.tolist() for i, ids in enumerate(prompts)}
    assert trie_size(prompts) <= count <= sum(map(len, prompts))


@settings(deadline=None)
@given(made=rows | stems.map(long))
def test_nothing_is_read_twice(made: Any) -> None:
    prompts = [np.asarray(ids, np.int32) for ids in made]
    _, count = read(prompts, 1)
    assert count == trie_size(prompts)


def test_equal_prompts_end() -> None:
    """Two that are the same to the end, which is just `least` tokens on, and a third."""
    stem, rest = list(range(100)), [1] * 32
    prompts = [np.asarray(ids, np.int32) for ids in (stem + rest, stem + rest, [*stem, 2, 2])]
    found, count = read(prompts, 32)
    assert len(found) == 3
    assert count == 100 + 32 + 32 + 2


def test_far_ids_are_sorted_like_near_ones() -> None:
    stem = [70000, 5, 262143] * 20
    prompts = [np.asarray([*stem, tail, 1], np.int32) for tail in (1, 256, 65536, 2, 262000)]
    _, count = read(prompts, 32)
    assert count == 60 + 5 * 2


@settings(deadline=None)
@given(made=rows | stems.map(long), least=st.integers(1, 8), extra=st.integers(0, 5))
def test_the_outlook_is_what_is_read(made: Any, least: int, extra: int) -> None:
    prompts = [np.asarray(ids, np.int32) for ids in made]
    cell = Cell("passkey", 1, 0.0, 0)
    asked = [
        Prompt(cell, ids, ids[:0], ((0, 0),), (), 0, None, None, slice(0, 0)) for ids in prompts
    ]
    found = outlook_of(asked, least, extra)
    _, count = read(prompts, least)
    assert found.tokens == count + extra * len(prompts)
    assert found.nominal == sum(map(len, prompts)) + extra * len(prompts)
    if least > 12:
        assert found.pairs == sum((len(p) + extra) ** 2 / 2 for p in prompts)


def test_outlooks_add() -> None:
    a, b = Outlook(), Outlook()
    a.add(0, 10)
    b.add(10, 14)
    a += b
    assert (a.tokens, a.pairs) == (14, 14 * 14 / 2)
    assert outlook_of([], 1, 3) == Outlook()
