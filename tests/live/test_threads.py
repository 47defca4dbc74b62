"""Pinned lengths and threads: each forward is read by what holds where it runs."""

import sys
import threading
from typing import Any

import pytest
import torch

from tests.live.subjects import DYNAMIC, FOLLOWING, Case, make, patched, read, text


def test_the_inner_pin_holds_and_the_outer_returns() -> None:
    with patched(make(), DYNAMIC) as handle:
        with handle.pinned(100):
            with handle.pinned(200):
                assert handle.follower.pin() == 200
            assert handle.follower.pin() == 100
        assert handle.follower.pin() is None


def test_a_pin_ends_where_its_block_fails() -> None:
    with patched(make(), DYNAMIC) as handle:
        with pytest.raises(ZeroDivisionError), handle.pinned(100):
            _ = 1 / 0
        assert handle.follower.pin() is None


def test_of_two_overlapping_pins_the_one_still_open_holds() -> None:
    """Two threads, each within a block of its own: the first to leave takes only its own pin."""
    with patched(make(), DYNAMIC) as handle:
        first, second = handle.pinned(100), handle.pinned(200)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert handle.follower.pin() == 200
        second.__exit__(None, None, None)
        assert handle.follower.pin() is None


def test_pins_of_many_threads_all_end() -> None:
    """Entered and left a thousand times at once, none stays behind and none is lost."""
    lost = []
    before = sys.getswitchinterval()

    with patched(make(), DYNAMIC) as handle:

        def work(length: int) -> None:
            for _ in range(500):
                with handle.pinned(length):
                    if handle.follower.pin() is None:
                        lost.append(length)

        threads = [threading.Thread(target=work, args=(100 + i,)) for i in range(6)]
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        assert handle.follower.pin() is None
        assert lost == []


def test_a_pin_holds_in_every_thread() -> None:
    model, ids, found = make(), text(150), []
    with patched(model, DYNAMIC) as handle, handle.pinned(150):
        thread = threading.Thread(target=lambda: found.append(read(model, ids)))
        thread.start()
        thread.join()
        assert torch.equal(found[0], read(model, ids))


# --- threads ------------------------------------------------------------------------------------


@FOLLOWING
def test_threads_generate_what_each_generates_alone(case: Case) -> None:
    model: Any = make()
    model.generation_config.eos_token_id = None
    prompts = [text(count, seed=count) for count in (20, 50, 75, 110)]

    def run(ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False
        )
        return found

    with patched(model, case):
        alone = [run(ids) for ids in prompts]
        found: dict[int, torch.Tensor] = {}
        threads = [
            threading.Thread(target=lambda i=i, ids=ids: found.__setitem__(i, run(ids)))
            for i, ids in enumerate(prompts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 4
    for i, one in enumerate(alone):
        assert torch.equal(found[i], one)


def test_a_quantized_generation_pins_no_other_thread() -> None:
    """What `generate` pins for itself holds where it runs."""
    model: Any = make()
    model.generation_config.eos_token_id = None
    ids, pins = text(70), []
    with patched(model, DYNAMIC) as handle:

        def look(module: Any, args: Any) -> None:
            other = threading.Thread(target=lambda: pins.append(handle.follower.pin()))
            other.start()
            other.join()
            pins.append(handle.follower.pin())

        hook = model.lm_head.register_forward_pre_hook(look)
        words = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
        model.generate(ids, max_new_tokens=2, attention_mask=torch.ones_like(ids), **words)
        hook.remove()
    assert pins == [None, 72, None, 72]
