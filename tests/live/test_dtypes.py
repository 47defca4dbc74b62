"""Casts and moves of a patched model never reach its frequencies or its state dict."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from ropepatch import patch_of
from tests.live.subjects import (
    ALL,
    DYNAMIC,
    FIRST,
    STATIC,
    Case,
    bits,
    config_of,
    in_chunks,
    make,
    name_of,
    patched,
    read,
    text,
)

HALF = pytest.param(torch.float16, marks=pytest.mark.slow)
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, HALF], ids=str)
LONG = torch.arange(0, 4096, 31)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("plain")
    make().save_pretrained(found)
    return found


def turning(model: Any, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Cos and sin at positions where blurred frequencies would show."""
    found: tuple[torch.Tensor, ...] = model.model.rotary_emb(torch.zeros(1, 1, 1).to(dtype), LONG)
    return found


def same(one: tuple[torch.Tensor, ...], two: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_cast_blurs_the_stock_module() -> None:
    """What the tests below would not show otherwise."""
    model: Any = make()
    before = turning(model)
    assert not same(turning(model.to(torch.bfloat16)), before)


@DTYPES
@pytest.mark.parametrize("case", FIRST, ids=name_of)
def test_casting_after_the_patch_leaves_the_frequencies(case: Case, dtype: torch.dtype) -> None:
    model: Any = make()
    with patched(model, case):
        before = turning(model)
        weights = list(model.state_dict())
        cast = model.to(dtype)
        assert same(turning(model), before)
        assert model.model.rotary_emb.inv_freq.dtype == torch.float32
        assert read(cast, text(150)).dtype == dtype
        assert list(model.state_dict()) == weights


@pytest.mark.parametrize("way", ["half", "bfloat16", "to", "double", "double and back"])
@ALL
def test_every_way_of_casting(case: Case, way: str) -> None:
    model: Any = make()
    with patched(model, case):
        before = turning(model)
        if way == "to":
            model.to(device="cpu", dtype=torch.bfloat16)
        elif way == "double and back":
            model.double().float()
        else:
            getattr(model, way)()
        assert same(turning(model), before)
        model.describe = None  # any attribute of the user's


@DTYPES
@pytest.mark.parametrize("case", FIRST, ids=name_of)
def test_a_model_in_half_precision_turns_by_the_same_numbers(
    case: Case, dtype: torch.dtype, folder: Path
) -> None:
    with patched(make(), case) as handle:
        wanted, cast = turning(handle.model), turning(handle.model, dtype)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with patched(loaded, case):
        assert same(turning(loaded), wanted)
        assert same(turning(loaded, dtype), cast)
        assert cast[0].dtype == dtype
    blurred: Any = make().to(dtype)  # type: ignore[arg-type]
    with patched(blurred, case):
        for found, want in zip(turning(blurred), wanted, strict=True):
            torch.testing.assert_close(found, want, rtol=0, atol=2e-4)


@ALL
def test_half_precision_reads_in_chunks_as_in_one_pass(case: Case, folder: Path) -> None:
    """Keys are turned again in float32 and rounded once more: near the stock model's own noise."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    ids = text(150)
    own = (in_chunks(model, ids, 7) - read(model, ids)).abs().mean()
    with patched(model, case):
        found = (in_chunks(model, ids, 7) - read(model, ids)).abs().mean()
    assert found < 3 * own + 0.01


@ALL
def test_a_cast_model_reverts_to_its_very_module(case: Case) -> None:
    model: Any = make()
    stock = model.model.rotary_emb
    handle = patched(model, case)
    model.to(torch.bfloat16)
    handle.revert()
    assert model.model.rotary_emb is stock
    assert read(model, text(60)).dtype == torch.bfloat16


def test_the_state_dict_is_the_same_and_loads_both_ways() -> None:
    model, other = make(), make(seed=5)
    plain = bits(model)
    with patched(model, DYNAMIC):
        assert bits(model) == plain
        other.load_state_dict(model.state_dict())
        model.load_state_dict(other.state_dict())
    assert bits(other) == plain
    with patched(other, STATIC):
        assert [name for name, _ in other.named_buffers()] == []
        assert [n for n, _ in other.named_parameters()] == [n for n, _ in model.named_parameters()]


# --- meta ---------------------------------------------------------------------------------------


def on_meta() -> Any:
    config: Any = config_of("llama")
    with torch.device("meta"):
        return LlamaForCausalLM(config)


def filled(model: Any) -> PreTrainedModel:
    model.to_empty(device="cpu")
    model.load_state_dict(make().state_dict())
    found: PreTrainedModel = model.eval()
    return found


@ALL
def test_a_model_without_weights_is_patched_and_filled_later(case: Case) -> None:
    ids = text(150)
    with patched(make(), case) as handle:
        wanted = read(handle.model, ids)
    model = on_meta()
    handle = patched(model, case)
    handle.describe()
    assert all(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(read(filled(model), ids), wanted, rtol=0, atol=1e-4)
    assert patch_of(model) is handle


@ALL
def test_a_patch_on_a_model_without_weights_reverts(case: Case) -> None:
    model = on_meta()
    stock = model.model.rotary_emb
    patched(model, case).revert()
    assert model.model.rotary_emb is stock
    assert patch_of(model) is None


@ALL
def test_a_patch_on_a_model_filled_later_reverts(case: Case) -> None:
    model = on_meta()
    stock = model.model.rotary_emb
    handle = patched(model, case)
    filled(model)
    handle.revert()
    assert model.model.rotary_emb is stock
    assert patch_of(model) is None
    assert not handle.active


@ALL
def test_a_replacement_on_a_model_without_weights(case: Case) -> None:
    model = on_meta()
    patched(model, ("pi", {"factor": 2.0}))
    handle = patched(model, case, replace=True)
    assert patch_of(model) is handle


# --- devices ------------------------------------------------------------------------------------


@pytest.mark.gpu
@ALL
def test_tables_follow_to_the_device_and_back(case: Case) -> None:
    model: Any = make()
    ids = text(150)
    handle = patched(model, case)
    wanted = read(model, ids)
    model.to("cuda")
    found = in_chunks(model, ids.to("cuda"), 20).cpu()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-2)
    model.cpu()
    assert torch.equal(read(model, ids), wanted)
    model.to("cuda")
    handle.revert()
    assert model.model.rotary_emb.inv_freq.is_cuda
    assert copy.deepcopy(model).device.type == "cuda"
