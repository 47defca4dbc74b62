"""`generate` on patched models: what it gives with a cache is what it gives without one."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StaticCache

from ropepatch.errors import CacheError
from tests.live.subjects import (
    ALL,
    DYNAMIC,
    FIRST,
    FOLLOWING,
    GROWING,
    STATIC,
    Case,
    left_padded,
    make,
    name_of,
    patched,
    read,
    text,
)

MORE = 30
"""Tokens to generate, enough to cross two changes from a prompt of 55."""


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    """They never end of themselves."""
    found = {family: make(family) for family in ("llama", "gemma3")}
    for model in found.values():
        own: Any = model.generation_config
        own.eos_token_id = None
    return found


@pytest.fixture
def llama(models: dict[str, PreTrainedModel]) -> PreTrainedModel:
    return models["llama"]


def greedy(model: Any, ids: torch.Tensor, more: int = MORE, **words: Any) -> torch.Tensor:
    words = {"attention_mask": torch.ones_like(ids), "do_sample": False, **words}
    found: torch.Tensor = model.generate(ids, max_new_tokens=more, **words)
    return found


def by_one_pass(model: Any, ids: torch.Tensor, more: int = MORE) -> torch.Tensor:
    """The greedy continuation, each token from a pass over everything before it."""
    for _ in range(more):
        following = read(model, ids, use_cache=False)[:, -1:].argmax(-1)
        ids = torch.cat([ids, following], dim=1)
    return ids


@pytest.mark.parametrize("case", FIRST, ids=name_of)
def test_greedy_is_the_same_with_a_cache_and_without(case: Case, llama: PreTrainedModel) -> None:
    ids = text(55)
    with patched(llama, case, short_exact=case[0] not in GROWING):
        wanted = by_one_pass(llama, ids)
        assert torch.equal(greedy(llama, ids), wanted)


@FOLLOWING
def test_greedy_of_another_family(case: Case, models: dict[str, PreTrainedModel]) -> None:
    ids = text(55)
    with patched(models["gemma3"], case, layers="all"):
        wanted = by_one_pass(models["gemma3"], ids)
        assert torch.equal(greedy(models["gemma3"], ids), wanted)


WAYS: dict[str, dict[str, Any]] = {
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
    "chunked prefill": {"prefill_chunk_size": 17},
    "prompt lookup": {"prompt_lookup_num_tokens": 4},
    "max_length": {"max_length": 55 + MORE},
}


@ALL
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_generating_gives_the_same(
    case: Case, way: str, llama: PreTrainedModel
) -> None:
    ids, words = text(55), dict(WAYS[way])
    with patched(llama, case):
        wanted = greedy(llama, ids)
        if way == "max_length":
            words["max_new_tokens"] = None
            found: Any = llama.generate(  # type: ignore[operator]
                ids, attention_mask=torch.ones_like(ids), do_sample=False, **words
            )
        else:
            found = greedy(llama, ids, **words)
    assert torch.equal(found, wanted)


@ALL
def test_an_assistant_changes_nothing(case: Case, llama: PreTrainedModel) -> None:
    """Its guesses are read together and cut back, past the changes and back."""
    ids = text(55)
    with patched(llama, case):
        wanted = greedy(llama, ids)
        twin = copy.deepcopy(llama)
        assert torch.equal(greedy(llama, ids, assistant_model=twin), wanted)
        other = make(seed=3)  # unpatched, and wrong most of the time
        assert torch.equal(greedy(llama, ids, assistant_model=other), wanted)


@ALL
def test_a_batch_of_prompts_gives_what_each_gives_alone(case: Case, llama: PreTrainedModel) -> None:
    texts = [text(count, seed=count)[0] for count in (55, 70, 7)]
    batch = left_padded(texts, 70)
    with patched(llama, case):
        found = greedy(llama, batch["ids"], attention_mask=batch["attention_mask"])
        static: dict[str, Any] = {"cache_implementation": "static", "disable_compile": True}
        again = greedy(llama, batch["ids"], attention_mask=batch["attention_mask"], **static)
        assert torch.equal(again, found)
        for row, one in zip(found, texts, strict=True):
            assert torch.equal(row[70 - len(one) :], greedy(llama, one[None])[0])


@ALL
def test_beams_are_the_same_with_a_cache_and_without(case: Case, llama: PreTrainedModel) -> None:
    texts = [text(count, seed=count)[0] for count in (55, 70)]
    batch = left_padded(texts, 70)
    words: dict[str, Any] = {"num_beams": 3, "attention_mask": batch["attention_mask"]}
    with patched(llama, case):
        found = greedy(llama, batch["ids"], **words)
        assert torch.equal(found, greedy(llama, batch["ids"], use_cache=False, **words))


@FOLLOWING
def test_several_answers_to_one_prompt(case: Case, llama: PreTrainedModel) -> None:
    ids = text(55)
    words: dict[str, Any] = {"do_sample": True, "num_return_sequences": 3, "temperature": 0.7}
    with patched(llama, case):
        torch.manual_seed(0)
        found = greedy(llama, ids, **words)
        torch.manual_seed(0)
        assert torch.equal(found, greedy(llama, ids, use_cache=False, **words))
    assert len({tuple(row.tolist()) for row in found}) == 3


@FOLLOWING
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_chat_goes_on_in_one_cache(case: Case, kind: str, llama: PreTrainedModel) -> None:
    with patched(llama, case):
        cache: Any = (
            DynamicCache(config=llama.config)
            if kind == "dynamic"
            else StaticCache(config=llama.config, max_cache_len=256)
        )
        ids = text(30)
        for turn in range(3):
            found = greedy(llama, ids, 15, cache=cache, disable_compile=True)
            assert torch.equal(found, greedy(llama, ids, 15))
            ids = torch.cat([found, text(20, seed=turn + 1)], dim=1)


@FOLLOWING
def test_a_cached_prompt_is_continued_twice(case: Case, llama: PreTrainedModel) -> None:
    prompt = text(70)
    with patched(llama, case), torch.no_grad():
        cache = llama(prompt).cache
        for seed in (1, 2):
            ids = torch.cat([prompt, text(5, seed=seed)], dim=1)
            found = greedy(llama, ids, cache=copy.deepcopy(cache))
            assert torch.equal(found, greedy(llama, ids))


@FOLLOWING
@pytest.mark.parametrize("backend", ["fp8", pytest.param("quanto", marks=pytest.mark.slow)])
def test_a_quantized_cache_pins_the_length(
    case: Case, backend: str, llama: PreTrainedModel
) -> None:
    """Pinned by `generate` itself, as the caller would have done."""
    if backend == "quanto":
        pytest.importorskip("optimum.quanto")
    ids = text(55)
    words: dict[str, Any] = {
        "cache_implementation": "quantized",
        "cache_config": {"backend": backend},
    }
    with patched(llama, case) as handle:
        found = greedy(llama, ids, **words)
        with handle.pinned(55 + MORE):
            assert torch.equal(greedy(llama, ids, **words), found)
        assert handle.follower.pin() is None
    assert found.shape[1] == 55 + MORE


def test_a_quantized_cache_named_by_the_generation_config(llama: PreTrainedModel) -> None:
    ids, own = text(55), copy.deepcopy(llama.generation_config)
    assert own is not None
    own.update(cache_implementation="quantized", cache_config={"backend": "fp8"})
    own.update(max_new_tokens=MORE, do_sample=False)
    words: dict[str, Any] = {
        "cache_implementation": "quantized",
        "cache_config": {"backend": "fp8"},
    }
    with patched(llama, DYNAMIC):
        found: Any = llama.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), generation_config=own
        )
        assert torch.equal(found, greedy(llama, ids, **words))


def test_a_generation_config_handed_over_by_position(llama: PreTrainedModel) -> None:
    model: Any = llama
    ids, own = text(55), copy.deepcopy(model.generation_config)
    own.update(cache_implementation="quantized", cache_config={"backend": "fp8"})
    own.update(max_new_tokens=MORE, do_sample=False)
    with patched(llama, DYNAMIC):
        mask = torch.ones_like(ids)
        wanted = model.generate(ids, attention_mask=mask, generation_config=own)
        assert torch.equal(model.generate(ids, own, attention_mask=mask), wanted)


@ALL
def test_generating_with_a_cache_from_before_is_refused(case: Case, llama: PreTrainedModel) -> None:
    prompt = text(30)
    with torch.no_grad():
        cache = llama(prompt).cache
    ids = torch.cat([prompt, text(5, seed=1)], dim=1)
    with patched(llama, case):
        with pytest.raises(CacheError, match="before the patch"):
            greedy(llama, ids, cache=cache)
        greedy(llama, ids)


# --- the instance's own `generate` --------------------------------------------------------------


def test_what_patch_puts_on_the_instance_is_gone_after(llama: Any) -> None:
    with patched(llama, DYNAMIC):
        assert "generate" in llama.__dict__
    assert "generate" not in llama.__dict__
    with patched(llama, STATIC):
        assert "generate" not in llama.__dict__


def with_own_generate() -> tuple[Any, list[str], Callable[..., Any]]:
    """A model whose `generate` was replaced, as transformers does for `custom_generate`."""
    model: Any = make()
    calls: list[str] = []

    def custom(model: Any, *args: Any, **words: Any) -> Any:
        calls.append("own")
        return type(model).generate(model, *args, **words)

    model.generate = functools.partial(custom, model=model)
    return model, calls, model.generate


def test_an_own_generate_of_the_model_is_still_called() -> None:
    model, calls, _ = with_own_generate()
    with patched(model, DYNAMIC):
        model.generate(inputs=text(10), max_new_tokens=2)
    assert calls == ["own"]


def test_an_own_generate_of_the_model_is_there_after() -> None:
    model, _, own = with_own_generate()
    patched(model, DYNAMIC).revert()
    assert model.generate is own


def test_what_others_put_there_meanwhile_stays() -> None:
    model: Any = make()
    handle = patched(model, DYNAMIC)
    before = model.generate
    model.generate = lambda *args, **words: before(*args, **words)
    later = model.generate
    handle.revert()
    assert model.generate is later
