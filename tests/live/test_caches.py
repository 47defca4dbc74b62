"""Every kind of cache, cut, copied, emptied and filled again, past changes of the frequencies."""

from typing import Any

import pytest
import torch
from transformers import Cache, DynamicCache, PreTrainedModel, QuantizedCache

from ropepatch.errors import CacheError
from tests.live.subjects import (
    ALL,
    DYNAMIC,
    FOLLOWING,
    WINDOW,
    Case,
    cache_for,
    close,
    keys_of,
    make,
    patched,
    read,
    read_on,
    text,
)

KINDS = pytest.mark.parametrize("kind", ["dynamic", "static"])
WINDOWED = pytest.mark.parametrize("family", ["mistral", "gemma3"])


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    return {family: make(family) for family in ("llama", "mistral", "gemma3")}


@pytest.fixture
def llama(models: dict[str, PreTrainedModel]) -> PreTrainedModel:
    return models["llama"]


# --- kinds --------------------------------------------------------------------------------------


@ALL
@KINDS
@pytest.mark.parametrize("size", [1, 13])
def test_a_cache_of_any_kind_gives_the_logits_of_one_pass(
    case: Case, kind: str, size: int, llama: PreTrainedModel
) -> None:
    ids = text(110)
    with patched(llama, case):
        found, cache = read_on(llama, ids, size, cache_for(llama, kind))
        close(found, read(llama, ids, use_cache=False))
        assert int(cache.get_seq_length()) == 110


@FOLLOWING
@KINDS
@WINDOWED
@pytest.mark.parametrize("size", [1, 50])
def test_windows_that_turn_are_turned_again(
    case: Case, kind: str, family: str, size: int, models: dict[str, PreTrainedModel]
) -> None:
    model, ids = models[family], text(90)
    with patched(model, case, layers="all"):
        found, cache = read_on(model, ids, size, cache_for(model, kind))
        close(found, read(model, ids, use_cache=False))
        assert keys_of(cache, 0).shape[-2] <= WINDOW


@WINDOWED
def test_windows_under_one_regime_are_the_stock_models(
    family: str, models: dict[str, PreTrainedModel]
) -> None:
    """A hand-made model of other frequencies, so that the turned windows have a witness."""
    model, ids = models[family], text(150)
    with patched(model, ("pi", {"factor": 2.0}), layers="all"):
        found, _ = read_on(model, ids, 13)
    stock: Any = make(family)
    for name, table in stock.model.rotary_emb.named_buffers():
        if name.endswith("inv_freq"):
            table.mul_(0.5)
    close(found, read(stock, ids))


def test_only_the_layers_named_are_turned(models: dict[str, PreTrainedModel]) -> None:
    """The sliding layer of gemma3 keeps the keys of the plain model, bit for bit."""
    model, ids = models["gemma3"], text(150)
    _, plain = read_on(model, ids, 13)
    with patched(model, DYNAMIC):
        _, cache = read_on(model, ids, 13)
    assert torch.equal(keys_of(cache, 0), keys_of(plain, 0))
    assert not torch.allclose(
        keys_of(cache, 1),
        keys_of(plain, 1),
        atol=0.05,
    )


def test_a_static_cache_keeps_its_very_tensors(llama: PreTrainedModel) -> None:
    """A compiled graph may hold on to them."""
    cache, ids = cache_for(llama, "static"), text(150)
    with patched(llama, DYNAMIC):
        _, cache = read_on(llama, ids[:, :10], 10, cache)
        places = [keys_of(cache, layer).data_ptr() for layer in range(2)]
        read_on(llama, ids[:, 10:], 20, cache)
        assert [keys_of(cache, layer).data_ptr() for layer in range(2)] == places


@pytest.mark.gpu
@FOLLOWING
def test_an_offloaded_cache_follows(case: Case) -> None:
    model: Any = make()
    model, ids = model.to("cuda"), text(150).to("cuda")
    cache = DynamicCache(config=model.config, offloading=True)
    with patched(model, case):
        found, _ = read_on(model, ids, 7, cache)
        torch.testing.assert_close(found, read(model, ids), rtol=0, atol=1e-3)


# --- caches that cannot be turned ---------------------------------------------------------------


def quantized(model: Any, backend: str) -> Cache:
    """Of four bits and a rest of 32 tokens in full, or of eight bits and no rest."""
    if backend == "fp8":
        return QuantizedCache(backend=backend, config=model.config)
    pytest.importorskip("optimum.quanto")
    return QuantizedCache(
        backend=backend, config=model.config, nbits=4, q_group_size=64, residual_length=32
    )


QUANTO = pytest.param("quanto", marks=pytest.mark.slow)  # it builds its kernels when first used
BACKENDS = pytest.mark.parametrize("backend", ["fp8", QUANTO])


@BACKENDS
@FOLLOWING
@pytest.mark.parametrize("first", [40, 60, 64])
def test_a_quantized_cache_is_refused_where_it_would_have_to_be_turned(
    case: Case, first: int, backend: str, llama: PreTrainedModel
) -> None:
    """Whether or not some keys still lie there in full, as after 60 tokens and 4 more."""
    ids = text(150)
    with patched(llama, case):
        _, cache = read_on(llama, ids[:, :first], first, quantized(llama, backend))
        if first == 60:
            _, cache = read_on(llama, ids[:, 60:64], 2, cache)
        with pytest.raises(CacheError, match=r"QuantizedLayer.*pinned"):
            read_on(llama, ids[:, 64:] if first > 40 else ids[:, 40:], 150, cache)


@BACKENDS
@ALL
def test_a_quantized_cache_is_read_under_a_pinned_length(
    case: Case, backend: str, llama: PreTrainedModel
) -> None:
    ids = text(150)
    with patched(llama, case) as handle, handle.pinned(150):
        found, _ = read_on(llama, ids, 30, quantized(llama, backend))
        near = (found - read(llama, ids)).abs().mean()
    assert near < 1.0  # few bits: near, not equal
    assert torch.isfinite(found).all()
