"""What a run will need."""

from typing import Any

import pytest
import torch

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.memory import Need, cache_bytes, check, fitting_chunk, free_bytes, gib, need
from ropepatch.evaluate.reader import cache_of
from tests.evaluate import parts


def held(cache: Any) -> int:
    """Bytes of all tensors of a cache, where sliding layers keep one token less than they see."""
    return sum(t.numel() * t.element_size() for la in cache.layers for t in (la.keys, la.values))


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mistral", "deepseek", "gemma2"])
@pytest.mark.parametrize("count", [10, 31, 100])
def test_the_bytes_of_a_cache(kind: str, count: int) -> None:
    model = parts.model(kind)
    with torch.inference_mode():
        cache = cache_of(model(input_ids=parts.row(parts.some_ids(count)), use_cache=True))
    found = cache_bytes(model.config, count, 4)
    first = cache.layers[0]
    per_token = sum(t.shape[1] * t.shape[3] * 4 for t in (first.keys, first.values))
    sliding = [la for la in cache.layers if type(la).__name__.endswith("SlidingWindowLayer")]
    spare = per_token * len(sliding) if count >= parts.WINDOW else 0
    assert found == held(cache) + spare
    assert cache_bytes(model.config, count, 2) * 2 == found


def test_the_need_grows_as_it_should() -> None:
    config = parts.config("llama")
    words: dict[str, Any] = {"parameters": 1000, "dtype_bytes": 2, "eager": False}
    found = need(config, length=4096, chunk=256, **words)
    assert found.weights == 2000
    one = cache_bytes(config, 4096, 2)
    assert found.cache == one + one // 2  # a layer is copied to grow
    assert need(config, length=4096, chunk=256, copies=3, **words).cache == 3 * one + one // 2
    assert need(config, length=4096, chunk=8192, **words) == need(
        config, length=4096, chunk=4096, **words
    )
    eager = need(config, length=4096, chunk=256, **{**words, "eager": True})
    assert eager.chunk - found.chunk == 2 * 256 * 4096 * 2 * 4
    assert found.total == found.weights + found.cache + found.chunk


def test_what_does_not_fit_is_refused_with_what_does() -> None:
    config = parts.config("llama")
    words: dict[str, Any] = {"parameters": 10**6, "chunk": 16, "dtype_bytes": 4, "eager": False}
    size = 64 * 1024

    def cost(length: int) -> Need:
        return need(config, length=length, **words)

    found, small = cost(size), cost(16 * 1024)
    check(cost, int(found.total / 0.95) + 1, length=size, dtype_bytes=4)
    free = int(small.total / 0.95) + 1024
    with pytest.raises(EvaluationError) as caught:
        check(cost, free, length=size, dtype_bytes=4)
    said = str(caught.value)
    assert said.startswith(f"65,536 tokens need about {found}, of which")
    assert "up to 16,384 tokens would fit; --dtype bfloat16 takes half of that." in said
    check(cost, free, length=16 * 1024, dtype_bytes=4)
    with pytest.raises(EvaluationError):
        check(cost, free, length=17 * 1024, dtype_bytes=4)
    with pytest.raises(EvaluationError, match="the weights alone do not fit"):
        check(cost, found.weights, length=size, dtype_bytes=4)
    with pytest.raises(EvaluationError, match="no length would fit") as caught:
        check(lambda length: Need(10, 10**6, 10), 100, length=100, dtype_bytes=2)
    assert "bfloat16" not in str(caught.value)


def test_the_largest_chunk_that_fits() -> None:
    assert fitting_chunk(4096, lambda chunk: chunk <= 1000) == 512
    assert fitting_chunk(4096, lambda chunk: True) == 4096
    assert fitting_chunk(4096, lambda chunk: chunk <= 16) == 16
    assert fitting_chunk(4096, lambda chunk: chunk < 16) is None


def test_what_is_free() -> None:
    import psutil

    assert 0 < free_bytes("cpu") <= psutil.virtual_memory().total
    assert gib(3 * 1024**3) == "3.0 GiB"
    assert gib(5 * 1024**2) == "5 MiB"
