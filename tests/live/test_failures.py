"""Forwards and replacements that fail leave what was there working."""

from typing import Any

import pytest
import torch

import ropepatch
from ropepatch import Patch, patch_of
from ropepatch.errors import RopepatchError
from tests.live.subjects import (
    ALL,
    DYNAMIC,
    STATIC,
    Case,
    in_chunks,
    make,
    name_of,
    patched,
    read,
    text,
    traces,
)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@ALL
def test_a_forward_that_fails_leaves_nothing_behind(case: Case, error: type[BaseException]) -> None:
    model: Any = make()
    ids, places = text(150), torch.arange(5)[None]

    def fail(module: Any, args: Any) -> None:
        raise error

    with patched(model, case) as handle:
        wanted, table = read(model, ids), model.model.rotary_emb(torch.zeros(1, 1, 1), places)
        for layer in model.model.layers:
            hook = layer.register_forward_pre_hook(fail)
            with pytest.raises(error):
                read(model, ids)
            with pytest.raises(error), handle.pinned(200):
                read(model, ids)
            hook.remove()
        assert torch.equal(read(model, ids), wanted)
        alone = model.model.rotary_emb(torch.zeros(1, 1, 1), places)
        assert torch.equal(alone[0], table[0])
        torch.testing.assert_close(in_chunks(model, ids, 20), wanted, rtol=0, atol=1e-4)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("longrope", {"factor": 4.0, "long_factor": [1.0, 2.0]}),
    ("yarn", {"factor": 2.0, "layers": "convolution"}),
    ("pi", {"factor": 1.0}),
    ("yarn", {"factor": 2.0, "beta": 3}),
    ("yarn", {"to": 10}),
    ("nonsense", {"factor": 2.0}),
]


@ALL
@pytest.mark.parametrize("bad", BAD, ids=name_of)
def test_a_replacement_that_fails_leaves_the_old_patch_working(case: Case, bad: Case) -> None:
    model, ids = make(), text(150)
    handle = patched(model, case)
    wanted, before = read(model, ids), traces(model)
    with pytest.raises(RopepatchError):
        patched(model, bad, replace=True)
    assert handle.active
    assert patch_of(model) is handle
    assert torch.equal(read(model, ids), wanted)
    assert traces(model) == before
    assert handle.describe().recipe["method"] == case[0]


def test_a_replacement_that_fails_late_leaves_the_old_patch_working(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, ids = make(), text(150)
    handle = patched(model, DYNAMIC)
    wanted, before = read(model, ids), traces(model)

    apply = Patch.apply

    def fail(own: Patch) -> Patch:
        if own is not handle:
            raise MemoryError
        return apply(own)

    monkeypatch.setattr(Patch, "apply", fail)
    with pytest.raises(MemoryError):
        patched(model, STATIC, replace=True)
    assert handle.active
    assert patch_of(model) is handle
    assert torch.equal(read(model, ids), wanted)
    assert traces(model) == before
    handle.revert()
    assert torch.equal(read(model, ids), read(make(), ids))


@ALL
def test_the_same_recipe_said_in_another_way_is_the_same_patch(case: Case) -> None:
    model = make()
    method, words = case
    with patched(model, case) as handle:
        recipe = ropepatch.Recipe.named(method, **words)
        assert ropepatch.patch(model, recipe) is handle
        assert ropepatch.patch(model, recipe.to_dict()) is handle
        assert ropepatch.patch(model, handle.recipe, replace=True) is handle
        again = {k: v for k, v in words.items() if k != "factor"}
        assert ropepatch.patch(model, method, words["factor"], **again) is handle


def test_the_model_within_and_the_model_around_it_do_not_stack() -> None:
    """Patched through one, asked for through the other: the same patch, or a refusal."""
    model: Any = make()
    ids = text(150)
    with patched(model.model, STATIC) as handle:
        wanted = read(model, ids)
        try:
            assert patched(model, STATIC) is handle
        except RopepatchError:
            assert torch.equal(read(model, ids), wanted)
        with pytest.raises(RopepatchError):
            patched(model, DYNAMIC)
        assert torch.equal(read(model, ids), wanted)
    assert torch.equal(read(model, ids), read(make(), ids))


def test_a_block_does_not_revert_what_stood_before_it() -> None:
    model: Any = make()
    standing = patched(model, DYNAMIC)
    with patched(model, DYNAMIC) as again:
        assert again is standing
    assert standing.active
    standing.revert()
    with patched(model, DYNAMIC), patched(model, DYNAMIC) as inner:
        assert inner.active
    assert not inner.active


def test_the_text_model_inside_is_the_same_model() -> None:
    model: Any = make()
    handle = patched(model, DYNAMIC)
    assert ropepatch.patch_of(model.model) is handle
    assert patched(model.model, DYNAMIC) is handle
    handle.revert()
    assert ropepatch.patch_of(model.model) is None
