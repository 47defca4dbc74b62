"""What computes the biases: chosen, switched, and guarded against being lost."""

from typing import Any

import pytest
import torch
from transformers.utils.import_utils import is_flash_attn_2_available

import ropepatch
from ropepatch.errors import RecipeError
from ropepatch.runtime.attention import STATE, Alibi, attention
from tests.convert.definition import SLOPES, attend, every_layer, logits_by_definition
from tests.live.subjects import close, make, read, text, untouched

IDS = text(150)


@pytest.mark.parametrize(("asked", "kernel"), [("eager", "mask"), ("sdpa", "channels")])
def test_the_kernel_goes_by_the_attention_that_the_model_ran(asked: str, kernel: str) -> None:
    model: Any = make()
    model.set_attn_implementation(asked)
    with untouched(model), ropepatch.convert(model, to="alibi") as handle:
        assert handle.kernel == handle.describe().kernel == kernel
    assert model.config._attn_implementation == asked


@pytest.mark.parametrize("word", ["eager", "sdpa", "mask", "channels"])
def test_kernels_in_either_vocabulary(word: Any) -> None:
    kernel = {"eager": "mask", "sdpa": "channels"}.get(word, word)
    with ropepatch.convert(make(), to="alibi", kernel=word) as handle:
        assert handle.kernel == kernel


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_switching_the_implementation_keeps_the_biases(family: str) -> None:
    model: Any = make(family)
    wanted = logits_by_definition(model, IDS, every_layer(model))
    with untouched(model):
        with ropepatch.convert(model, to="alibi") as handle:
            seen = []
            for word in ("eager", "sdpa", "eager", "channels", "mask"):
                model.set_attn_implementation(word)
                seen.append(handle.kernel)
                close(read(model, IDS), wanted)
        assert seen == ["mask", "channels", "mask", "channels", "mask"]


def test_switching_within_a_mixture_keeps_both() -> None:
    model: Any = make(num_hidden_layers=4)
    with ropepatch.convert(model, to="alibi", layers=[1, 2]):
        wanted = read(model, IDS)
        for word in ("eager", "sdpa"):
            model.set_attn_implementation(word)
            close(read(model, IDS), wanted, 5e-5)


@pytest.mark.parametrize("way", ["eager", "sdpa"])
def test_a_model_without_an_encoding_switches_as_ever(way: str) -> None:
    model: Any = make()
    with ropepatch.convert(model, to="nope"):
        wanted = read(model, IDS)
        model.set_attn_implementation(way)
        assert model.config._attn_implementation == way
        close(read(model, IDS), wanted, 5e-5)


@pytest.mark.parametrize("word", ["sdp", "paged|sdpa", "", "flexible"])
def test_an_unknown_implementation_is_refused(word: str) -> None:
    model: Any = make()
    with ropepatch.convert(model, to="alibi") as handle:
        wanted = read(model, IDS)
        with pytest.raises(ValueError, match="channels, mask, flex, flash"):
            model.set_attn_implementation(word)
        assert handle.kernel == "channels"
        assert torch.equal(read(model, IDS), wanted)


@pytest.mark.parametrize("kernel", ["sdp", "", 3, None])
def test_an_unknown_kernel_is_refused(kernel: Any) -> None:
    model = make()
    with untouched(model), pytest.raises(RecipeError, match="auto, channels, mask, flex, flash"):
        ropepatch.convert(model, to="alibi", kernel=kernel)


@pytest.mark.skipif(is_flash_attn_2_available(), reason="flash-attn is there")
@pytest.mark.parametrize("word", ["flash", "flash_attention_2"])
def test_a_kernel_that_is_not_installed_is_refused(word: Any) -> None:
    model = make()
    with untouched(model), pytest.raises(RecipeError, match="flash-attn"):
        ropepatch.convert(model, to="alibi", kernel=word)


@pytest.mark.parametrize("word", ["sdpa", "eager"])
@pytest.mark.parametrize("layers", ["auto", [1]])
def test_losing_the_biases_is_loud(word: str, layers: Any) -> None:
    """transformers itself would read on without them."""
    model: Any = make()
    with ropepatch.convert(model, to="alibi", layers=layers):
        before = model.config._attn_implementation_internal
        model.config._attn_implementation = word
        with pytest.raises(RuntimeError, match="set_attn_implementation"):
            read(model, IDS)
        model.config._attn_implementation = before
        read(model, IDS)


# --- the function itself ------------------------------------------------------------------------


def holder(heads: list[int], kernel: str = "channels") -> Any:
    module: Any = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, 1
    state = Alibi(heads, 8.0, 1.0)
    state.kernel = kernel
    module.add_module(STATE, state)
    return module.eval()


def drawn(heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    one, two, three = (torch.randn(1, heads, 40, 16, generator=chance) for _ in range(3))
    return one, two, three


@pytest.mark.parametrize("kernel", ["channels", "mask"])
def test_a_part_of_the_heads_is_refused(kernel: str) -> None:
    """As under tensor parallelism, where slopes by number of heads would be others."""
    module = holder([8], kernel)
    module.config = None
    with pytest.raises(RuntimeError, match=r"4 of 8 heads.*tensor parallelism"):
        attention(module, *drawn(4), None, scaling=0.25)


def test_layers_of_several_counts_of_heads() -> None:
    """Some families have them; each count has slopes of its own."""
    module = holder([4, 8])
    for heads in (4, 8, 4):
        given = drawn(heads)
        found, _ = attention(module, *given, None, scaling=0.25)
        wanted = attend(*given, torch.tensor(SLOPES[heads]), 0.25)
        close(found.double(), wanted, 1e-5)


def test_slopes_follow_the_dtype() -> None:
    module = holder([4])
    for dtype, atol in ((torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.05)):
        query, key, value = (part.to(dtype) for part in drawn(4))
        found, _ = attention(module, query, key, value, None, scaling=0.25)
        assert found.dtype == dtype
        wanted = attend(query, key, value, torch.tensor(SLOPES[4], dtype=torch.float64), 0.25)
        close(found.double(), wanted, atol)


def test_the_scale_is_that_of_the_head_where_none_is_given() -> None:
    module, given = holder([4]), drawn(4)
    found, _ = attention(module, *given, None)
    close(found.double(), attend(*given, torch.tensor(SLOPES[4]), 0.25), 1e-5)
