"""`torch.compile` over patched models."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, StaticCache

from tests.live.subjects import (
    DYNAMIC,
    FIRST,
    GROWING,
    Case,
    in_chunks,
    make,
    name_of,
    patched,
    read,
    text,
)

STATIC = [case for case in FIRST if case[0] not in (*GROWING, "longrope")]
IDS = text(150)

pytestmark = pytest.mark.filterwarnings("ignore")  # what torch says while it compiles


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return make()


def compiled(model: Any, backend: str = "eager", *, fullgraph: bool = True) -> Any:
    return torch.compile(model, fullgraph=fullgraph, backend=backend)


def check_compiled(model: PreTrainedModel, case: Case, backend: str) -> None:
    """Once around: patched, reverted, patched otherwise through the compiled model."""
    base = read(model, IDS)
    with patched(model, case):
        wanted = read(model, IDS)
        fast = compiled(model, backend)
        torch.testing.assert_close(read(fast, IDS), wanted, rtol=0, atol=1e-4)
    torch.testing.assert_close(read(fast, IDS), base, rtol=0, atol=1e-4)
    with patched(fast, ("pi", {"factor": 3.0})) as handle:
        assert handle.model is model
        torch.testing.assert_close(read(fast, IDS), read(model, IDS), rtol=0, atol=1e-4)
    torch.testing.assert_close(read(fast, IDS), base, rtol=0, atol=1e-4)


def test_a_compiled_model_follows_patch_and_revert() -> None:
    model = make(num_hidden_layers=1)
    base = read(model, IDS)
    with patched(model, ("yarn", {"factor": 4.0})):
        wanted = read(model, IDS)
        fast = compiled(model)
        assert torch.equal(read(fast, IDS), wanted)
    assert torch.equal(read(fast, IDS), base)


@pytest.mark.slow
@pytest.mark.parametrize("case", STATIC, ids=name_of)
def test_static_methods_compile_whole(case: Case, llama: PreTrainedModel) -> None:
    with patched(llama, case):
        wanted = read(llama, IDS)
        assert torch.equal(read(compiled(llama), IDS), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_compiled_once_around(family: str) -> None:
    check_compiled(make(family), ("yarn", {"factor": 4.0}), "eager")


@pytest.mark.slow
def test_compiled_to_machine_code_once_around(llama: PreTrainedModel) -> None:
    check_compiled(llama, ("yarn", {"factor": 4.0}), "inductor")


@pytest.mark.slow
def test_compiled_decoding_in_a_static_cache(llama: PreTrainedModel) -> None:
    cache = StaticCache(config=llama.config, max_cache_len=128)
    with patched(llama, ("yarn", {"factor": 4.0})), torch.no_grad():
        wanted = read(llama, IDS[:, :70])
        llama(input_ids=IDS[:, :60], cache=cache)
        fast = compiled(llama)
        for place in range(60, 70):
            found = fast(input_ids=IDS[:, place : place + 1], cache=cache).logits
            torch.testing.assert_close(found[:, 0], wanted[:, place], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_cache_made_in_a_compiled_graph_goes_on_outside(llama: PreTrainedModel) -> None:
    with patched(llama, ("yarn", {"factor": 4.0})), torch.no_grad():
        cache = compiled(llama)(input_ids=IDS[:, :60], use_cache=True).cache
        found = llama(input_ids=IDS[:, 60:], cache=cache).logits
        torch.testing.assert_close(found, read(llama, IDS)[:, 60:], rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", [DYNAMIC, ("yarn", {"factor": 4.0, "short_exact": True})])
def test_methods_that_follow_the_length_compile_around_the_follower(
    case: Case, llama: PreTrainedModel
) -> None:
    with patched(llama, case):
        wanted = read(llama, IDS)
        fast = compiled(llama, fullgraph=False)
        torch.testing.assert_close(read(fast, IDS), wanted, rtol=0, atol=1e-4)
        torch.testing.assert_close(in_chunks(fast, IDS, 40), wanted, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_compiling_one_module_of_a_patched_model(llama: Any) -> None:
    with patched(llama, DYNAMIC):
        wanted = read(llama, IDS)
        whole = llama.model.layers[0].mlp
        llama.model.layers[0].mlp = compiled(whole)
        torch.testing.assert_close(read(llama, IDS), wanted, rtol=0, atol=1e-4)
        llama.model.layers[0].mlp = whole
