"""`short_exact`: up to the trained length bit for bit the model from before."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import ropepatch
from tests.live.subjects import (
    CASES,
    FIRST,
    GROWING,
    REACHING,
    TRAINED,
    Case,
    in_chunks,
    make,
    name_of,
    patched,
    read,
    text,
)

EVERY = pytest.mark.parametrize("case", CASES, ids=name_of)
HALF = pytest.param(torch.float16, marks=pytest.mark.slow)
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, HALF], ids=str)


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    model = make()
    own: Any = model.generation_config
    own.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def folder(llama: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("plain")
    llama.save_pretrained(found)
    return found


def loaded(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.eval()
    return model


@EVERY
def test_one_pass_is_the_same_to_the_bit(case: Case, llama: PreTrainedModel) -> None:
    for count in (30, TRAINED):
        ids = text(count, rows=2)
        base = read(llama, ids)
        with patched(llama, case, short_exact=True):
            assert torch.equal(read(llama, ids), base)
            assert torch.equal(read(llama, ids, use_cache=False), base)


@EVERY
def test_the_start_of_a_longer_text_is_the_same_to_the_bit(
    case: Case, llama: PreTrainedModel
) -> None:
    ids = text(150)
    base = read(llama, ids[:, :TRAINED])
    with patched(llama, case, short_exact=True):
        assert torch.equal(read(llama, ids)[:, :TRAINED], base)


@EVERY
def test_chunks_are_the_same_to_the_bit(case: Case, llama: PreTrainedModel) -> None:
    ids = text(TRAINED)
    base = in_chunks(llama, ids, 9)
    with patched(llama, case, short_exact=True):
        assert torch.equal(in_chunks(llama, ids, 9), base)


@pytest.mark.parametrize("case", FIRST, ids=name_of)
def test_generate_is_the_same_up_to_the_trained_length(case: Case, llama: Any) -> None:
    ids = text(44)
    words = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 20}
    words |= {"output_logits": True, "return_dict_in_generate": True}
    base = llama.generate(ids, **words)
    with patched(llama, case, short_exact=True):
        found = llama.generate(ids, **words)
    assert torch.equal(found.sequences, base.sequences)
    for ours, theirs in zip(found.logits, base.logits, strict=True):
        assert torch.equal(ours, theirs)


@DTYPES
@pytest.mark.parametrize("case", FIRST, ids=name_of)
def test_a_model_loaded_in_half_precision_is_the_same_to_the_bit(
    case: Case, dtype: torch.dtype, folder: Path
) -> None:
    model, ids = loaded(folder, dtype), text(TRAINED)
    base, parts = read(model, ids), in_chunks(model, ids, 9)
    with patched(model, case, short_exact=True):
        assert torch.equal(read(model, ids), base)
        assert torch.equal(in_chunks(model, ids, 9), parts)
        assert torch.equal(read(model, text(150))[:, :TRAINED], base)
    assert torch.equal(read(model, ids), base)


@DTYPES
def test_a_model_cast_before_the_patch_gets_its_frequencies_back(
    dtype: torch.dtype, folder: Path
) -> None:
    """`.to(bfloat16)` blurs the stock table; within the patch the model reads as if loaded so."""
    model: Any = loaded(folder, torch.float32).to(dtype)  # type: ignore[arg-type]
    ids = text(TRAINED)
    assert model.model.rotary_emb.inv_freq.dtype == dtype
    with patched(model, ("yarn", {"factor": 4.0}), short_exact=True):
        torch.testing.assert_close(read(model, ids), read(loaded(folder, dtype), ids))
    assert model.model.rotary_emb.inv_freq.dtype == dtype


@pytest.mark.parametrize("case", [c for c in REACHING if c[0] not in GROWING], ids=name_of)
def test_beyond_it_the_first_tokens_read_as_the_method_alone_reads_them(
    case: Case, llama: PreTrainedModel
) -> None:
    """A text whose first 64 tokens nobody attends to is read under the scaled frequencies."""
    ids = text(110)
    mask = torch.full((1, 1, 110, 110), torch.finfo(torch.float32).min).triu(1)
    mask[..., TRAINED:, :TRAINED] = torch.finfo(torch.float32).min
    length = ropepatch.patch(make(), case[0], **case[1]).target_length
    with patched(llama, case) as handle, handle.pinned(length):
        scaled = read(llama, ids, attention_mask=mask)
    with patched(llama, case, short_exact=True):
        found = read(llama, ids, attention_mask=mask)
    torch.testing.assert_close(found[:, TRAINED:], scaled[:, TRAINED:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", REACHING, ids=name_of)
def test_pinned_beyond_it_is_the_scaled_method(case: Case, llama: PreTrainedModel) -> None:
    ids = text(150)
    with patched(llama, case) as handle, handle.pinned(150):
        wanted = read(llama, ids)
    with patched(llama, case, short_exact=True) as handle, handle.pinned(150):
        assert torch.equal(read(llama, ids), wanted)


@pytest.mark.parametrize("case", REACHING, ids=name_of)
def test_pinned_below_it_is_the_model_from_before(case: Case, llama: PreTrainedModel) -> None:
    ids = text(150)
    base = read(llama, ids)
    with patched(llama, case, short_exact=True) as handle, handle.pinned(TRAINED):
        assert torch.equal(read(llama, ids), base)


def test_a_told_trained_length_is_where_it_ends(llama: PreTrainedModel) -> None:
    ids = text(100)
    base = read(llama, ids)
    with patched(llama, ("yarn", {"factor": 4.0}), short_exact=True, trained_length=40) as handle:
        assert (handle.trained_length, handle.target_length) == (40, 160)
        found = read(llama, ids)
    assert torch.equal(found[:, :40], read(llama, ids[:, :40]))
    assert not torch.allclose(found[:, 40:64], base[:, 40:64], atol=0.05)
