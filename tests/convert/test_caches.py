"""Converted models in one pass, in pieces, in batches, and while they generate."""

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

import ropepatch
from ropepatch.errors import CacheError
from tests.families.small import build
from tests.live.subjects import cache_for, close, left_padded, make, read, read_on, text

FAMILIES = ("llama", "mistral", "gemma3_text", "gemma2", "qwen3", "phi3", "gpt_oss")
IDS = text(110)
CLOSE = 5e-5
"""Three times what was measured, at logits of up to 33."""

every_family = pytest.mark.parametrize("family", FAMILIES)
kernels = pytest.mark.parametrize("kernel", ["channels", "mask"])
both = pytest.mark.parametrize("to", ["alibi", "nope"])


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    return {family: build(family) for family in FAMILIES}


@every_family
@kernels
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("size", [1, 13, 110])
def test_a_cache_of_any_kind_gives_the_logits_of_one_pass(
    family: str, kernel: Any, kind: str, size: int, models: dict[str, PreTrainedModel]
) -> None:
    """Windows of 64 are crossed, and a static cache has room for more than it holds."""
    model = models[family]
    with ropepatch.convert(model, to="alibi", kernel=kernel):
        found, cache = read_on(model, IDS, size, cache_for(model, kind))
        close(found, read(model, IDS, use_cache=False), CLOSE)
        assert int(cache.get_seq_length()) == 110


@every_family
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_without_an_encoding_a_cache_gives_the_logits_of_one_pass(
    family: str, kind: str, models: dict[str, PreTrainedModel]
) -> None:
    model = models[family]
    with ropepatch.convert(model, to="nope"):
        found, _ = read_on(model, IDS, 13, cache_for(model, kind))
        close(found, read(model, IDS, use_cache=False), CLOSE)


@every_family
@kernels
def test_texts_padded_on_the_left_are_the_texts_alone(
    family: str, kernel: Any, models: dict[str, PreTrainedModel]
) -> None:
    model, texts = models[family], [text(n, seed=n)[0] for n in (30, 90, 71)]
    batch: dict[str, Any] = left_padded(texts, 90)
    ids = batch.pop("ids")
    with ropepatch.convert(model, to="alibi", kernel=kernel):
        whole = read(model, ids, **batch)
        pieces, _ = read_on(model, ids, 17, **batch)
        for row, one in enumerate(texts):
            alone = read(model, one[None])[0]
            close(whole[row, -len(one) :], alone, CLOSE)
            close(pieces[row, -len(one) :], alone, CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
@both
def test_padding_of_either_side_without_places(side: str, to: str) -> None:
    """A training batch has a mask and no position ids."""
    model, one = make(num_attention_heads=4), text(40)
    ids, mask = text(60), torch.ones(1, 60, dtype=torch.long)
    span = slice(20, None) if side == "left" else slice(None, 40)
    mask[:] = 0
    ids[:, span], mask[:, span] = one, 1
    with ropepatch.convert(model, to=to):
        close(read(model, ids, attention_mask=mask)[:, span], read(model, one), CLOSE)


# --- generation ---------------------------------------------------------------------------------


def greedy(model: Any, ids: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        ids = torch.cat([ids, read(model, ids, use_cache=False)[:, -1:].argmax(-1)], 1)
    return ids


def generated(model: Any, ids: torch.Tensor, **words: Any) -> torch.Tensor:
    words = {"attention_mask": torch.ones_like(ids), "eos_token_id": None, **words}
    found: torch.Tensor = model.generate(ids, max_new_tokens=20, do_sample=False, **words)
    return found


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("kernel", ["channels", "mask"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_generating_greedily_is_reading_anew_for_each_token(
    family: str, kernel: Any, cache: str | None, models: dict[str, PreTrainedModel]
) -> None:
    model, ids = models[family], text(70)
    words = {} if cache is None else {"cache_implementation": cache, "disable_compile": True}
    with ropepatch.convert(model, to="alibi", kernel=kernel):
        assert torch.equal(generated(model, ids, **words), greedy(model, ids, 20))


@both
def test_beams_are_kept_apart(to: str) -> None:
    model, ids = make(num_attention_heads=4), text(50, rows=2)
    with ropepatch.convert(model, to=to):
        found = generated(model, ids, num_beams=3)
        assert torch.equal(found, generated(model, ids, num_beams=3, use_cache=False))
        assert found.shape == (2, 70)


@both
def test_a_batch_of_prompts_goes_on_as_each_alone(to: str) -> None:
    model, texts = make(num_attention_heads=4), [text(n, seed=n)[0] for n in (12, 40)]
    batch = left_padded(texts, 40)
    with ropepatch.convert(model, to=to):
        found = generated(model, batch["ids"], attention_mask=batch["attention_mask"])
        for row, one in enumerate(texts):
            assert torch.equal(found[row, 40:], generated(model, one[None])[0, len(one) :])


# --- caches of another model's making -----------------------------------------------------------


@both
def test_a_cache_from_before_is_refused(to: str) -> None:
    model = make()
    _, cache = read_on(model, IDS[:, :40], 40)
    with ropepatch.convert(model, to=to), pytest.raises(CacheError, match="empty cache"):
        read_on(model, IDS[:, 40:], 70, cache)


def test_a_cache_of_another_conversion_is_refused() -> None:
    model = make()
    with ropepatch.convert(model, to="alibi"):
        _, cache = read_on(model, IDS[:, :40], 40)
    other = ropepatch.convert(model, to="alibi", layers=[0])
    with other, pytest.raises(CacheError, match="empty cache"):
        read_on(model, IDS[:, 40:], 70, cache)


@both
def test_a_cache_goes_on_where_the_same_conversion_is_made_again(to: str) -> None:
    model = make()
    with ropepatch.convert(model, to=to):
        first, cache = read_on(model, IDS[:, :40], 40)
    with ropepatch.convert(model, to=to):
        rest, _ = read_on(model, IDS[:, 40:], 70, cache)
        close(torch.cat([first, rest], 1), read(model, IDS), CLOSE)


def test_a_copied_cache_branches() -> None:
    model, other = make(), text(70, seed=5)
    with ropepatch.convert(model, to="alibi"):
        _, cache = read_on(model, IDS[:, :40], 40, DynamicCache(config=model.config))
        twin = copy.deepcopy(cache)
        one, _ = read_on(model, IDS[:, 40:], 70, cache)
        two, _ = read_on(model, other, 70, twin)
        close(one, read(model, IDS)[:, 40:], CLOSE)
        close(two, read(model, torch.cat([IDS[:, :40], other], 1))[:, 40:], CLOSE)
