"""Turning cached keys again is right, by ways that share no code with it."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StaticCache

from ropepatch import Frequencies
from tests.examples import RISING
from tests.live.by_hand import GEOMETRY, frequencies_at, logits_by_hand, turn
from tests.live.subjects import (
    CASES,
    FAMILIES,
    FIRST,
    REACHING,
    TRAINED,
    Case,
    in_chunks,
    keys_of,
    make,
    name_of,
    patched,
    read,
    read_on,
    text,
)

COUNT = 110
"""Tokens: past the ends of three regimes, 64, 80 and 100."""


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    return {family: make(family) for family in FAMILIES}


def test_hand_made_llama_is_the_model() -> None:
    model = make()
    ids = text(COUNT)
    plain = Frequencies(GEOMETRY.inverse_frequencies(), 1.0)
    wanted = logits_by_hand(model, ids[0].tolist(), lambda place: plain)
    np.testing.assert_allclose(read(model, ids)[0].numpy(), wanted, rtol=0, atol=2e-4)


def check_by_hand(model: PreTrainedModel, case: Case, *, exact: bool) -> None:
    ids = text(COUNT)
    wanted = logits_by_hand(
        model, ids[0].tolist(), lambda place: frequencies_at(case, place, exact=exact)
    )
    with patched(model, case, short_exact=exact):
        for found in (read(model, ids), in_chunks(model, ids, 7)):
            np.testing.assert_allclose(found[0].numpy(), wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_logits_equal_those_by_hand(case: Case, models: dict[str, PreTrainedModel]) -> None:
    """In float64, layer upon layer: every key before a token turned to that token's regime."""
    check_by_hand(models["llama"], case, exact=False)


@pytest.mark.parametrize("case", REACHING, ids=name_of)
def test_short_exact_logits_equal_those_by_hand(
    case: Case, models: dict[str, PreTrainedModel]
) -> None:
    check_by_hand(models["llama"], case, exact=True)


@pytest.mark.parametrize("case", [c for c in CASES if c not in REACHING], ids=name_of)
def test_short_exact_of_a_method_that_reaches_no_farther(
    case: Case, models: dict[str, PreTrainedModel]
) -> None:
    """Beyond the trained length it is the method's all the same."""
    check_by_hand(models["llama"], case, exact=True)


def test_longrope_of_factor_one_switches_all_the_same(
    models: dict[str, PreTrainedModel],
) -> None:
    """The long set beyond the trained length, as transformers has it."""
    short = [1 + i / 64 for i in range(32)]
    words = {"factor": 1.0, "long_factor": RISING, "short_factor": short}
    check_by_hand(models["llama"], ("longrope", words), exact=False)


def test_in_float64_only_the_tables_are_rounded() -> None:
    """What turning again costs: less than a float32 forward's own rounding."""
    model = make().double()
    ids = text(COUNT)
    case: Case = ("dynamic-ntk", {"factor": 4.0})
    wanted = logits_by_hand(model, ids[0].tolist(), lambda place: frequencies_at(case, place))
    with patched(model, case):
        whole, parts = read(model, ids), in_chunks(model, ids, 1)
    np.testing.assert_allclose(whole[0].numpy(), wanted, rtol=0, atol=1e-4)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", FIRST, ids=name_of)
def test_first_layer_keys_lie_as_if_read_under_the_last_regime(
    case: Case, family: str, models: dict[str, PreTrainedModel]
) -> None:
    """They come from the embeddings alone, so that nothing but the turning can differ."""
    model, ids = models[family], text(COUNT)
    layer = 1 if family == "gemma3" else 0
    if family == "gemma3":  # its second layer turns; let the first one pass its input on
        model = make("gemma3")
        silence(model)
    with patched(model, case, short_exact=True) as handle:
        regime = handle.follower.regimes.at(COUNT)
        _, cache = read_on(model, ids, 9)
        with handle.pinned(regime):
            _, fresh = read_on(model, ids, COUNT)
    torch.testing.assert_close(keys_of(cache, layer), keys_of(fresh, layer), rtol=0, atol=2e-5)


def silence(model: Any) -> None:
    """Let the first layer add nothing."""
    with torch.no_grad():
        for norm in ("post_attention_layernorm", "post_feedforward_layernorm"):
            getattr(model.model.layers[0], norm).weight.fill_(-1.0)


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_first_layer_keys_are_those_by_hand(
    kind: type[Any], models: dict[str, PreTrainedModel]
) -> None:
    model: Any = models["llama"]
    case: Case = ("dynamic-yarn", {"factor": 4.0})
    ids = text(COUNT)
    words = {"max_cache_len": 128} if kind is StaticCache else {}
    with patched(model, case):
        _, cache = read_on(model, ids, 11, kind(config=model.config, **words))
    layer = model.model.layers[0]
    with torch.no_grad():
        before = layer.self_attn.k_proj(layer.input_layernorm(model.model.embed_tokens(ids[0])))
    wanted = turn(
        before.double().numpy()[:, None],
        np.arange(COUNT, dtype=np.float64),
        frequencies_at(case, COUNT - 1),
    )
    found = keys_of(cache, 0)[0].transpose(0, 1)
    np.testing.assert_allclose(found[:COUNT].numpy(), wanted, rtol=0, atol=1e-4)
    assert not found[COUNT:].any()  # slots that were never written stay empty


@pytest.mark.parametrize("growth", [1.001, 1.01])
def test_many_turns_do_not_add_up(growth: float, models: dict[str, PreTrainedModel]) -> None:
    model, ids = models["llama"], text(COUNT)
    with patched(model, ("dynamic-ntk", {"factor": 4.0}), growth=growth) as handle:
        assert len(handle.follower.regimes.ends(COUNT)) > 40
        _, cache = read_on(model, ids, 1)
        with handle.pinned(handle.follower.regimes.at(COUNT)):
            _, fresh = read_on(model, ids, COUNT)
    torch.testing.assert_close(keys_of(cache, 0), keys_of(fresh, 0), rtol=0, atol=1e-4)


def test_changes_fall_where_the_growth_says(models: dict[str, PreTrainedModel]) -> None:
    with patched(models["llama"], ("dynamic-ntk", {"factor": 2.0})) as handle:
        assert handle.follower.regimes.ends(300) == [64, 80, 100, 125, 128, 160, 200, 250, 313]
        assert handle.follower.regimes.at(TRAINED) == TRAINED
        assert handle.follower.regimes.at(TRAINED + 1) == 80
    with patched(models["llama"], ("dynamic-ntk", {"factor": 2.0}), growth=2.0) as handle:
        assert handle.follower.regimes.ends(300) == [64, 128, 256, 512]


def test_turned_keys_keep_their_length(models: dict[str, PreTrainedModel]) -> None:
    """Up to the attention factor, which is one here."""
    model, ids = models["llama"], text(COUNT)
    with patched(model, ("dynamic-ntk", {"factor": 4.0})):
        _, cache = read_on(model, ids, 5)
    _, plain = read_on(model, ids, COUNT)
    torch.testing.assert_close(
        keys_of(cache, 0).norm(dim=-1), keys_of(plain, 0).norm(dim=-1), rtol=1e-5, atol=0
    )
