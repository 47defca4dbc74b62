"""Each token is read under the frequencies of its own place, however the text arrives."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ropepatch.errors import CacheError
from tests.live.subjects import (
    CASES,
    DYNAMIC,
    FAMILIES,
    FIRST,
    FOLLOWING,
    GROWING,
    LENGTH,
    NOISE,
    TRAINED,
    Case,
    close,
    in_chunks,
    left_padded,
    make,
    name_of,
    patched,
    read,
    read_on,
    text,
)


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    return {family: make(family) for family in FAMILIES}


@pytest.fixture
def llama(models: dict[str, PreTrainedModel]) -> PreTrainedModel:
    return models["llama"]


@pytest.mark.parametrize("family", FAMILIES)
def test_stock_models_show_this_noise(family: str, models: dict[str, PreTrainedModel]) -> None:
    model, ids = models[family], text()
    for size in (1, 7):
        close(in_chunks(model, ids, size), read(model, ids), NOISE / 2)


def check_prefixes(model: PreTrainedModel, case: Case, *sizes: int, **words: Any) -> None:
    ids = text(130)
    with patched(model, case, **words):
        whole = read(model, ids)
        for size in sizes:
            close(in_chunks(model, ids, size), whole)
        close(read(model, ids, use_cache=False), whole)
        padded = read(model, **left_padded([ids[0]], 150), use_cache=False)
        close(padded[:, 20:], whole)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_short_exact_agrees(case: Case, llama: PreTrainedModel) -> None:
    check_prefixes(llama, case, 7, 64, short_exact=True)


@pytest.mark.parametrize("case", FIRST, ids=name_of)
def test_one_pass_and_chunks_agree(case: Case, llama: PreTrainedModel) -> None:
    check_prefixes(llama, case, 7, 64)


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
@pytest.mark.parametrize("case", FIRST, ids=name_of)
def test_other_families_agree(case: Case, family: str, models: dict[str, PreTrainedModel]) -> None:
    check_prefixes(models[family], case, 7, short_exact=True)


@FOLLOWING
def test_one_token_at_a_time_agrees(case: Case, llama: PreTrainedModel) -> None:
    check_prefixes(llama, case, 1)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True], ids=["scaled", "short_exact"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_size_of_chunk_agrees(
    case: Case, family: str, exact: bool, models: dict[str, PreTrainedModel]
) -> None:
    check_prefixes(models[family], case, 1, 7, 64, short_exact=exact)


@FOLLOWING
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_batch_equal_each_row_alone(
    case: Case, family: str, models: dict[str, PreTrainedModel]
) -> None:
    model = models[family]
    texts = [text(count, seed=count)[0] for count in (150, 110, 64, 20)]
    batch = left_padded(texts, 150)
    with patched(model, case):
        alone = [read(model, one[None])[0] for one in texts]
        for whole in (
            read(model, **batch),
            in_chunks(model, size=7, **batch),
            in_chunks(model, size=64, **batch),
        ):
            for row, one in zip(whole, alone, strict=True):
                close(row[150 - len(one) :], one)


def test_right_padding_changes_no_real_token(llama: PreTrainedModel) -> None:
    ids = text(100)
    mask = torch.cat([torch.ones(1, 100), torch.zeros(1, 60)], dim=1).long()
    with patched(llama, DYNAMIC):
        padded = read(llama, torch.cat([ids, torch.zeros(1, 60).long()], 1), attention_mask=mask)
        close(padded[:, :100], read(llama, ids))


@FOLLOWING
@pytest.mark.parametrize("cut", [1, 63, 64, 65, 79, 80, 81, 99, 100, 101])
def test_a_cut_at_any_place_changes_nothing(case: Case, cut: int, llama: PreTrainedModel) -> None:
    """64, 80 and 100 tokens are the ends of the first regimes."""
    ids = text(130)
    with patched(llama, case):
        first, cache = read_on(llama, ids[:, :cut], cut)
        second, _ = read_on(llama, ids[:, cut:], 130, cache)
        close(torch.cat([first, second], dim=1), read(llama, ids))


@pytest.mark.parametrize("method", GROWING)
@pytest.mark.parametrize("growth", [1.05, 2.0, 100.0])
def test_any_growth_is_consistent(method: str, growth: float, llama: PreTrainedModel) -> None:
    ids = text(150)
    with patched(llama, (method, {"factor": 4.0}), growth=growth):
        whole = read(llama, ids)
        close(in_chunks(llama, ids, 7), whole)
        close(in_chunks(llama, ids, 50), whole)


@FOLLOWING
def test_a_shorter_text_is_a_prefix_of_a_longer_one(case: Case, llama: PreTrainedModel) -> None:
    """Nothing looks ahead: what a token is read under does not depend on what follows it."""
    ids = text()
    with patched(llama, case):
        whole = read(llama, ids)
        for count in (30, 64, 65, 81, 130):
            close(read(llama, ids[:, :count]), whole[:, :count])


@FOLLOWING
def test_earlier_inputs_leave_no_trace(case: Case, llama: PreTrainedModel) -> None:
    short, long = text(60), text()
    with patched(llama, case):
        before = read(llama, short)
        after_nothing = read(llama, long)
        read(llama, text(1000))
        assert torch.equal(read(llama, short), before)
        assert torch.equal(read(llama, long), after_nothing)


@FOLLOWING
def test_embeddings_tuples_and_hidden_states_are_joined(case: Case, llama: Any) -> None:
    ids = text(150)
    embedded = llama.get_input_embeddings()(ids).detach()
    with patched(llama, case), torch.no_grad():
        whole = read(llama, ids)
        assert torch.equal(llama(inputs_embeds=embedded).logits, whole)
        assert torch.equal(llama(ids, return_dict=False)[0], whole)
        assert torch.equal(llama(ids, logits_to_keep=3).logits, whole[:, -3:])
        inner = llama.model(ids, output_hidden_states=True)
        assert [tuple(h.shape) for h in inner.hidden_states] == [(1, 150, 64)] * 3
        close(llama.lm_head(inner.hidden_states[-1]), whole)
        assert torch.equal(inner.hidden_states[0], embedded)
        loss = llama(ids, labels=ids).loss
    wanted = torch.nn.functional.cross_entropy(whole[0, :-1], ids[0, 1:])
    torch.testing.assert_close(loss, wanted)


@FOLLOWING
def test_without_a_cache_asked_for_none_is_given(case: Case, llama: Any) -> None:
    ids = text(150)
    with patched(llama, case), torch.no_grad():
        assert llama(ids, use_cache=False).cache is None
        assert len(llama(ids, use_cache=False, return_dict=False)) == 1
        assert llama(ids, use_cache=True).cache.get_seq_length() == 150


@FOLLOWING
def test_what_cannot_be_joined_is_refused(case: Case) -> None:
    model: Any = make(attn_implementation="eager")
    with patched(model, case) as handle, torch.no_grad():
        with pytest.raises(CacheError, match="attentions cannot be joined"):
            model(text(150), output_attentions=True)
        assert model(text(60), output_attentions=True).attentions[0].shape[-1] == 60
        with handle.pinned(150):
            assert model(text(150), output_attentions=True).attentions[0].shape[-1] == 150


@FOLLOWING
def test_packed_texts_that_cross_are_refused(case: Case, llama: Any) -> None:
    places = torch.cat([torch.arange(100), torch.arange(50)])[None]
    with patched(llama, case) as handle, torch.no_grad():
        with pytest.raises(CacheError, match="packed"):
            llama(text(150), position_ids=places)
        short = torch.cat([torch.arange(60), torch.arange(50)])[None]
        packed = llama(text(110), position_ids=short).logits
        with handle.pinned(100):
            llama(text(150), position_ids=places)
    base = llama(text(110), position_ids=short).logits
    assert torch.equal(packed, base)  # below the trained length, as before


@FOLLOWING
def test_a_four_dimensional_mask_is_cut(case: Case, llama: Any) -> None:
    ids = text(150)
    mask = torch.full((1, 1, 150, 150), torch.finfo(torch.float32).min).triu(1)
    with patched(llama, case):
        close(read(llama, ids, attention_mask=mask), read(llama, ids))


def test_the_trained_length_is_the_last_token_of_the_first_regime(llama: Any) -> None:
    base = read(llama, text())
    with patched(llama, DYNAMIC):
        whole = read(llama, text())
    assert torch.equal(whole[:, :TRAINED], base[:, :TRAINED])
    assert not torch.allclose(whole[:, TRAINED:LENGTH], base[:, TRAINED:LENGTH], atol=0.05)
