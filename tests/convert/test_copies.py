"""Copies of converted models, and models within others."""

import copy
import pickle
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import ropepatch
from ropepatch.errors import UnsupportedModelError
from tests.live.subjects import close, make, read, text, untouched

IDS = text(100)
WAYS: list[dict[str, Any]] = [
    {"to": "alibi"},
    {"to": "alibi", "layers": [0], "kernel": "mask"},
    {"to": "nope"},
]

every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))


@every_way
def test_a_copy_goes_its_own_way(way: dict[str, Any]) -> None:
    model: Any = make()
    base = read(model, IDS)
    handle = ropepatch.convert(model, **way)
    found = read(model, IDS)
    twin = copy.deepcopy(model)
    assert torch.equal(read(twin, IDS), found)
    ropepatch.revert(twin)
    assert torch.equal(read(twin, IDS), base)
    assert handle.active
    assert torch.equal(read(model, IDS), found)
    other = copy.deepcopy(model)
    handle.revert()
    assert torch.equal(read(model, IDS), base)
    assert torch.equal(read(other, IDS), found)
    with torch.no_grad():
        other.lm_head.weight.zero_()
    assert torch.equal(read(model, IDS), base)


def test_a_pickled_model_comes_back_converted() -> None:
    model = make()
    with ropepatch.convert(model, to="alibi"):
        found = read(model, IDS)
        twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(read(twin, IDS), found)


class Holder(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.module = inner

    def forward(self, *args: Any, **words: Any) -> Any:
        return self.module(*args, **words)


@pytest.mark.parametrize("wrap", [Holder, torch.nn.DataParallel])
def test_a_model_within_another_module(wrap: Any) -> None:
    model = make()
    outer = wrap(model)
    with untouched(model):
        with ropepatch.convert(outer, to="alibi") as handle:
            assert handle.model is model
            assert ropepatch.convert(model, to="alibi") is handle
            found = read(outer, IDS)
        with ropepatch.convert(model, to="alibi"):
            close(read(model, IDS), found, 0)


def test_a_class_of_ones_own_is_refused() -> None:
    class Mine(LlamaForCausalLM):
        pass

    config: Any = make().config
    model: Any = Mine(config)
    model.eval()
    with untouched(model), pytest.raises(UnsupportedModelError, match="Mine is a class of its own"):
        ropepatch.convert(model, to="alibi")
