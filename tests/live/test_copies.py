"""Copies, two models at once, threads and failures: patches do not meet and do not break."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ropepatch import patch_of
from tests.live.subjects import (
    ALL,
    DYNAMIC,
    ONCE,
    STATIC,
    Case,
    config_of,
    in_chunks,
    make,
    patched,
    read,
    text,
    traces,
)


def by_torch(model: PreTrainedModel) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[PreTrainedModel], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": by_torch,
}


@ALL
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_a_patched_model_has_a_patch_of_its_own(case: Case, way: str) -> None:
    model, ids = make(), text(150)
    base, before = read(model, ids), traces(model)["config"][1]
    handle = patched(model, case)
    wanted = read(model, ids)
    twin = COPIES[way](model)
    other: Any = patch_of(twin)
    assert other is not handle
    assert other.model is twin
    assert torch.equal(read(twin, ids), wanted)
    torch.testing.assert_close(in_chunks(twin, ids, 20), wanted, rtol=0, atol=1e-4)
    assert twin.generate(ids, max_new_tokens=2).shape == (1, 152)
    assert patched(twin, case) is other

    other.revert()
    assert torch.equal(read(twin, ids), base)
    assert twin.config.to_dict() == before
    assert "generate" not in twin.__dict__
    assert torch.equal(read(model, ids), wanted)
    assert handle.active
    assert patch_of(model) is handle

    handle.revert()
    assert torch.equal(read(model, ids), base)
    assert traces(model)["config"][1] == before


def test_a_copy_outlives_the_patch_of_its_original() -> None:
    model, ids = make(), text(150)
    handle = patched(model, DYNAMIC)
    wanted = read(model, ids)
    twin = copy.deepcopy(model)
    handle.revert()
    assert torch.equal(read(twin, ids), wanted)


def test_a_handle_copied_with_its_model_belongs_to_the_copy() -> None:
    model = make()
    handle = patched(model, DYNAMIC)
    twin, other = copy.deepcopy((model, handle))
    assert patch_of(twin) is other
    with other.pinned(100):
        assert other.follower.pin() == 100
        assert handle.follower.pin() is None


# --- two models ---------------------------------------------------------------------------------


@ALL
def test_of_two_models_only_the_patched_one_changes(case: Case) -> None:
    one, two, ids = make(), make(), text(150)
    base, before = read(two, ids), traces(two)
    with patched(one, case):
        assert torch.equal(read(two, ids), base)
        assert traces(two) == before
        assert patch_of(two) is None
    assert type(one) is type(two)
    assert "generate" not in one.__dict__


@pytest.mark.parametrize("kind", ["class", "auto"])
def test_two_models_made_from_one_config_object_do_not_meet(kind: str) -> None:
    """Both classes and `from_config` keep the very object they are given."""
    config = config_of("llama")
    make_one: Any = AutoModelForCausalLM.from_config if kind == "auto" else type(make())
    one, two = make_one(config), make_one(config)
    before = two.config.to_dict()
    with patched(one, STATIC):
        assert two.config.to_dict() == before
        with patched(two, ("pi", {"factor": 2.0})) as other:
            assert other.recipe.method == "pi"


def test_different_patches_stand_side_by_side() -> None:
    one, two, ids = make(), make(), text(150)
    with patched(one, DYNAMIC):
        wanted = read(one, ids)
    with patched(two, ONCE):
        also = read(two, ids)
        with patched(one, DYNAMIC):
            assert torch.equal(read(one, ids), wanted)
            assert torch.equal(read(two, ids), also)


def test_pinning_one_model_does_not_pin_another_patched_alike() -> None:
    one, two, ids = make(), make(), text(150)
    with patched(one, DYNAMIC) as first, patched(two, DYNAMIC):
        free = read(two, ids)
        with first.pinned(200):
            assert torch.equal(read(two, ids), free)
            assert not torch.equal(read(one, ids), free)
