"""A converted model against logits that ropepatch had no part in."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

import ropepatch
from tests import tiny
from tests.convert.definition import DATA
from tests.live.subjects import read

WANTED: dict[str, Any] = json.loads((DATA / "alibi_logits.json").read_text("utf-8"))


@pytest.fixture
def model() -> PreTrainedModel:
    words = WANTED["model"]
    config = getattr(transformers, words["config_class"])(**words["config"])
    return tiny.build(config, words["seed"])


def ids() -> torch.Tensor:
    chance = np.random.default_rng(WANTED["input_seed"])
    found = chance.integers(0, WANTED["vocab"], WANTED["seq_len"])
    return torch.from_numpy(found)[None, : WANTED["n_tokens"]]


@pytest.mark.parametrize("kernel", ["channels", "mask", "auto"])
def test_logits_are_the_references(kernel: Any, model: PreTrainedModel) -> None:
    plain = read(model, ids(), use_cache=False)[0, WANTED["positions"]].numpy()
    with ropepatch.convert(model, to="alibi", kernel=kernel):
        found = read(model, ids(), use_cache=False)[0, WANTED["positions"]].numpy()
    np.testing.assert_allclose(found, WANTED["logits"], rtol=0, atol=WANTED["atol"])
    assert np.abs(plain - found).max() > 1


def test_token_by_token_gives_the_reference_too(model: PreTrainedModel) -> None:
    with ropepatch.convert(model, to="alibi"), torch.no_grad():
        cache = model(input_ids=ids()[:, :-1], use_cache=True).cache
        found = model(input_ids=ids()[:, -1:], cache=cache).logits[0, -1].numpy()
    assert WANTED["positions"][-1] == WANTED["n_tokens"] - 1
    np.testing.assert_allclose(found, WANTED["logits"][-1], rtol=0, atol=WANTED["atol"])
