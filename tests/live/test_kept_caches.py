"""Caches from elsewhere, and caches that were cut, copied, emptied or rearranged."""

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Cache, PreTrainedModel

import ropepatch
from ropepatch.errors import CacheError
from tests.live.subjects import (
    ALL,
    DYNAMIC,
    FOLLOWING,
    LENGTH,
    TRAINED,
    Case,
    cache_for,
    close,
    keys_of,
    left_padded,
    make,
    patched,
    read,
    read_on,
    text,
)

KINDS = pytest.mark.parametrize("kind", ["dynamic", "static"])


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return make()


# --- not this patch's ---------------------------------------------------------------------------


@ALL
@KINDS
def test_a_cache_from_before_the_patch_is_refused(
    case: Case, kind: str, llama: PreTrainedModel
) -> None:
    ids = text(100)
    _, cache = read_on(llama, ids[:, :10], 10, cache_for(llama, kind))
    with patched(llama, case):
        with pytest.raises(CacheError, match="before the patch"):
            read_on(llama, ids[:, 10:], 90, cache)
        assert int(cache.get_seq_length()) == 10
        read(llama, ids)  # the refusal broke nothing


@ALL
def test_a_cache_of_another_patch_is_refused(case: Case, llama: PreTrainedModel) -> None:
    ids = text(100)
    with patched(llama, ("pi", {"factor": 2.0})):
        _, cache = read_on(llama, ids[:, :10], 10)
    with patched(llama, case), pytest.raises(CacheError, match="another one"):
        read_on(llama, ids[:, 10:], 90, cache)


@ALL
def test_a_cache_goes_on_under_the_same_patch_put_there_again(
    case: Case, llama: PreTrainedModel
) -> None:
    ids = text(100)
    with patched(llama, case):
        whole = read(llama, ids)
        first, cache = read_on(llama, ids[:, :30], 30)
    with patched(llama, case):
        second, _ = read_on(llama, ids[:, 30:], 90, cache)
    close(torch.cat([first, second], dim=1), whole)


@ALL
def test_a_cache_moves_between_two_models_patched_alike(case: Case, llama: PreTrainedModel) -> None:
    twin, ids = make(), text(100)
    with patched(llama, case), patched(twin, case):
        first, cache = read_on(llama, ids[:, :70], 70)
        second, _ = read_on(twin, ids[:, 70:], 90, cache)
        close(torch.cat([first, second], dim=1), read(llama, ids))


@KINDS
def test_an_empty_cache_from_before_the_patch_is_welcome(kind: str, llama: PreTrainedModel) -> None:
    ids, cache = text(100), cache_for(llama, kind)
    with patched(llama, DYNAMIC):
        found, _ = read_on(llama, ids, 30, cache)
        close(found, read(llama, ids))


def test_a_cache_that_something_else_has_filled_is_refused(llama: PreTrainedModel) -> None:
    ids = text(100)
    with patched(llama, DYNAMIC):
        _, cache = read_on(llama, ids[:, :30], 30)
        handle: Any = ropepatch.patch_of(llama)
        handle.revert()
        _, cache = read_on(llama, ids[:, 30:60], 30, cache)
    with patched(llama, DYNAMIC), pytest.raises(CacheError, match="60 tokens, 30 of them"):
        read_on(llama, ids[:, 60:], 40, cache)


# --- cut, copied, emptied, rearranged -----------------------------------------------------------


@FOLLOWING
@pytest.mark.parametrize("keep", [90, 70, 40])
def test_a_cache_cut_back_goes_on(case: Case, keep: int, llama: PreTrainedModel) -> None:
    """Back within the regime, across one change, and across all of them."""
    ids, other = text(100), text(LENGTH, seed=1)
    with patched(llama, case):
        _, cache = read_on(llama, ids, 10)
        cache.crop(keep - 100)
        found, _ = read_on(llama, other[:, keep:], 13, cache)
        joined = torch.cat([ids[:, :keep], other[:, keep:]], dim=1)
        close(found, read(llama, joined)[:, keep:])


@FOLLOWING
@KINDS
def test_a_cache_emptied_starts_anew(case: Case, kind: str, llama: PreTrainedModel) -> None:
    ids = text(150)
    with patched(llama, case):
        _, cache = read_on(llama, text(120, seed=5), 9, cache_for(llama, kind))
        cache.reset()
        found, _ = read_on(llama, ids, 9, cache)
        close(found, read(llama, ids))


def pickled(cache: Cache) -> Any:
    return pickle.loads(pickle.dumps(cache))


@FOLLOWING
@KINDS
def test_one_prompt_is_continued_twice(case: Case, kind: str, llama: PreTrainedModel) -> None:
    prompt = text(70)
    with patched(llama, case):
        _, cache = read_on(llama, prompt, 70, cache_for(llama, kind))
        assert isinstance(cache, type(cache_for(llama, kind)))
        for seed, again in ((1, copy.deepcopy), (2, pickled)):
            rest = text(80, seed=seed)
            found, _ = read_on(llama, rest, 11, again(cache))
            close(found, read(llama, torch.cat([prompt, rest], dim=1))[:, 70:])
        assert int(cache.get_seq_length()) == 70


@FOLLOWING
def test_a_pinned_text_is_continued_without_the_pin_and_back(
    case: Case, llama: PreTrainedModel
) -> None:
    """The first layer's keys follow; deeper ones were made from what was read before."""
    ids = text(150)
    with patched(llama, case) as handle:
        with handle.pinned(200):
            _, cache = read_on(llama, ids[:, :30], 30)
        read_on(llama, ids[:, 30:60], 30, cache)
        _, wanted = read_on(llama, ids[:, :60], 60)
        torch.testing.assert_close(keys_of(cache, 0), keys_of(wanted, 0), rtol=0, atol=1e-5)
        with handle.pinned(200):
            read_on(llama, ids[:, 60:90], 30, cache)
            _, wanted = read_on(llama, ids[:, :90], 90)
        torch.testing.assert_close(keys_of(cache, 0), keys_of(wanted, 0), rtol=0, atol=1e-5)


def rows_of_different_lengths(model: PreTrainedModel) -> tuple[list[torch.Tensor], Any]:
    """Two texts, and a cache that holds both, padded, in different regimes."""
    texts = [text(90, seed=1)[0], text(50, seed=2)[0]]
    words: dict[str, Any] = left_padded(texts, 90)
    _, cache = read_on(model, size=90, **words)
    return texts, cache


@FOLLOWING
@pytest.mark.parametrize("order", [[1, 0], [0, 0], [1, 1]])
def test_rows_put_in_another_order_are_followed_or_refused(
    case: Case, order: list[int], llama: PreTrainedModel
) -> None:
    """Never turned by the positions of another row."""
    rest = text(40, seed=3)[0]
    with patched(llama, case):
        texts, cache = rows_of_different_lengths(llama)
        cache.reorder_cache(torch.tensor(order))
        chosen = [torch.cat([texts[i], rest]) for i in order]
        batch = left_padded(chosen, 130)
        words = {
            "attention_mask": batch["attention_mask"],
            "position_ids": batch["position_ids"][:, 90:],
        }
        try:
            with torch.no_grad():
                found = llama(input_ids=batch["ids"][:, 90:], cache=cache, **words).logits
        except CacheError:
            return
        close(found, read(llama, **batch)[:, 90:])


WAYS: dict[str, Callable[[int], Any]] = {
    "indices": lambda row: torch.tensor([row]),
    "mask": lambda row: torch.arange(2) == row,
    "list": lambda row: [row],
}


@FOLLOWING
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_was_chosen_is_followed_or_refused(
    case: Case, row: int, way: str, llama: PreTrainedModel
) -> None:
    rest = text(40, seed=3)[0]
    with patched(llama, case):
        texts, cache = rows_of_different_lengths(llama)
        cache.batch_select_indices(WAYS[way](row))
        batch = left_padded([torch.cat([texts[row], rest])], 130)
        words = {
            "attention_mask": batch["attention_mask"],
            "position_ids": batch["position_ids"][:, 90:],
        }
        try:
            with torch.no_grad():
                found = llama(input_ids=batch["ids"][:, 90:], cache=cache, **words).logits
        except CacheError:
            return
        close(found, read(llama, **batch)[:, 90:])


@FOLLOWING
def test_a_repeated_prompt_is_followed_or_refused(case: Case, llama: PreTrainedModel) -> None:
    """One row becomes three, as when several answers are drawn from one prompt."""
    prompt, rest = text(70), text(60, rows=3, seed=1)
    with patched(llama, case):
        _, cache = read_on(llama, prompt, 70)
        cache.batch_repeat_interleave(3)
        found, _ = read_on(llama, rest, 20, cache)
        close(found, read(llama, torch.cat([prompt.expand(3, -1), rest], dim=1))[:, 70:])


def test_below_the_trained_length_keys_are_never_touched(llama: PreTrainedModel) -> None:
    ids = text(TRAINED)
    _, plain = read_on(llama, ids, 9)
    with patched(llama, DYNAMIC):
        _, cache = read_on(llama, ids, 9)
    for layer in range(2):
        assert torch.equal(keys_of(cache, layer), keys_of(plain, layer))


@FOLLOWING
def test_two_texts_are_read_in_turns(case: Case, llama: PreTrainedModel) -> None:
    """What is remembered of a cache hangs on the cache."""
    texts = [text(120, seed=seed) for seed in (1, 2)]
    with patched(llama, case):
        wanted = [read(llama, ids) for ids in texts]
        parts: list[list[torch.Tensor]] = [[], []]
        caches: list[Cache | None] = [None, None]
        for start, stop in ((0, 30), (30, 66), (66, 100), (100, 120)):
            for i, ids in enumerate(texts):
                found, caches[i] = read_on(llama, ids[:, start:stop], 40, caches[i])
                parts[i].append(found)
    for i in range(2):
        close(torch.cat(parts[i], dim=1), wanted[i])


def calls_of_a_step(model: PreTrainedModel, cache: Cache) -> int:
    """Python functions entered while one token is read; nothing else is so repeatable."""
    entered = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count)
    try:
        read_on(model, text(1), 1, cache)
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("method", ["yarn", "dynamic-ntk"])
def test_a_step_costs_the_same_after_many_steps(method: str, llama: PreTrainedModel) -> None:
    """Within one regime, the hundredth token needs no more work of ours than the third."""
    words = {"growth": 300.0} if method == "dynamic-ntk" else {}
    with patched(llama, (method, {"factor": 256.0}), **words):
        _, cache = read_on(llama, text(70), 70)
        read_on(llama, text(2), 1, cache)
        early = calls_of_a_step(llama, cache)
        read_on(llama, text(100), 1, cache)
        late = calls_of_a_step(llama, cache)
    assert late - early < 30
