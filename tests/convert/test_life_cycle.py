"""Converted, replaced, copied and reverted: what is left, and what is refused."""

import copy
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import ropepatch
from ropepatch import Conversion, ConversionRecipe
from ropepatch.errors import PatchConflictError, RecipeError
from ropepatch.model import conversions
from tests.live.subjects import bits, make, read, text, traces, untouched

IDS = text(100)
WAYS: list[dict[str, Any]] = [
    {"to": "alibi"},
    {"to": "alibi", "factor": 4.0},
    {"to": "alibi", "layers": [0], "kernel": "mask"},
    {"to": "nope"},
    {"to": "nope", "layers": [1]},
]

every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))


@pytest.fixture(params=["llama", "qwen3", "gemma3"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return make(request.param)


# --- undone -------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("how", ["handle", "function", "block"])
def test_once_around(way: dict[str, Any], how: str, model: Any) -> None:
    weights, plain, kind, config = bits(model), type(model), type(model.config), model.config
    with untouched(model, 100):
        base = read(model, IDS)
        handle = ropepatch.convert(model, **way)
        assert handle.active
        assert type(model) is not plain
        assert isinstance(model, plain)
        assert type(model.config) is not kind
        assert (read(model, IDS) - base).abs().max() > 0.01
        assert bits(model) == weights  # no buffer and no parameter more
        if how == "handle":
            handle.revert()
            handle.revert()
        elif how == "function":
            ropepatch.revert(model)
        else:
            with handle as same:
                assert same is handle
        assert not handle.active
        assert "reverted" in repr(handle)
    assert (type(model), type(model.config), model.config) == (plain, kind, config)
    assert bits(model) == weights


def test_a_block_that_fails_reverts_too() -> None:
    model = make()
    with untouched(model):
        handle = ropepatch.convert(model, to="alibi")
        with pytest.raises(KeyError, match="mine"), handle:
            raise KeyError("mine")


def test_a_reverted_handle_neither_describes_nor_opens() -> None:
    handle = ropepatch.convert(make(), to="alibi")
    handle.revert()
    with pytest.raises(PatchConflictError, match="reverted"):
        handle.describe()
    with pytest.raises(PatchConflictError, match="reverted"), handle:
        pass


def test_nothing_to_revert_is_said() -> None:
    with pytest.raises(PatchConflictError, match="no patch and no conversion"):
        ropepatch.revert(make())


def test_revert_takes_out_a_patch_as_well() -> None:
    model = make()
    with untouched(model):
        ropepatch.patch(model, "yarn", factor=4)
        ropepatch.revert(model)


def test_what_others_set_in_the_config_meanwhile_stays() -> None:
    model: Any = make()
    config = model.config
    with ropepatch.convert(model, to="alibi", factor=2):
        model.config.use_cache = False
        model.config.note = "mine"
    assert model.config is config
    assert (config.use_cache, config.note) == (False, "mine")
    assert not hasattr(config, "ropepatch")


# --- again --------------------------------------------------------------------------------------


@every_way
def test_the_same_again_is_the_same_handle(way: dict[str, Any]) -> None:
    model = make()
    handle = ropepatch.convert(model, **way)
    assert ropepatch.convert(model, **way) is handle
    words = {k: v for k, v in way.items() if k != "kernel"}
    recipe = ConversionRecipe.from_words(words)
    assert ropepatch.convert(model, recipe) is handle
    assert ropepatch.convert(model, recipe, replace=True) is handle


def test_another_is_refused_unless_it_replaces(model: PreTrainedModel) -> None:
    before, base = traces(model), read(model, IDS)
    with ropepatch.convert(copy.deepcopy(model), to="nope") as other:
        wanted = read(other.model, IDS)
    handle = ropepatch.convert(model, to="alibi")
    found, during = read(model, IDS), traces(model)
    for words in ({"to": "nope"}, {"to": "alibi", "factor": 2.0}, {"to": "alibi", "layers": 0}):
        with pytest.raises(PatchConflictError, match="replace=True"):
            ropepatch.convert(model, **words)
    assert traces(model) == during
    assert torch.equal(read(model, IDS), found)
    new = ropepatch.convert(model, to="nope", replace=True)
    assert (handle.active, new.active) == (False, True)
    handle.revert()  # of one that is gone: nothing
    assert torch.equal(read(model, IDS), wanted)
    new.revert()
    assert traces(model) == before
    assert torch.equal(read(model, IDS), base)


def test_a_kernel_can_be_asked_for_anew() -> None:
    model = make()
    first = ropepatch.convert(model, to="alibi")
    with pytest.raises(PatchConflictError, match="replace=True"):
        ropepatch.convert(model, to="alibi", kernel="mask")
    second = ropepatch.convert(model, to="alibi", kernel="mask", replace=True)
    assert (first.active, second.active, second.kernel) == (False, True, "mask")


def test_replacing_counts_from_the_trained_length() -> None:
    model: Any = make()
    ropepatch.convert(model, to="alibi", factor=8)
    ropepatch.convert(model, to="alibi", factor=2, replace=True)
    assert model.config.max_position_embeddings == 128


@pytest.mark.parametrize("when", ["planned", "prepared", "applied"])
def test_a_replacement_that_fails_leaves_the_old_one(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    base, before = read(model, IDS), traces(model)
    handle = ropepatch.convert(model, to="alibi")
    found, during = read(model, IDS), traces(model)
    words: dict[str, Any] = {"to": "nope"}
    wanted: Any = RuntimeError
    if when == "planned":
        words, wanted = {"to": "nope", "layers": [99]}, RecipeError
    else:
        place = "ConfigSwap" if when == "prepared" else "raised_generation"
        original = getattr(conversions, place)
        calls: list[int] = []

        def fails_once(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                raise RuntimeError("mine")
            return original(*args, **kwargs)

        monkeypatch.setattr(conversions, place, fails_once)
    with pytest.raises(wanted):
        ropepatch.convert(model, **words, replace=True)
    assert handle.active
    assert torch.equal(read(model, IDS), found)
    assert traces(model).keys() == during.keys()
    assert ropepatch.convert(model, to="alibi") is handle
    handle.revert()
    assert traces(model) == before
    assert torch.equal(read(model, IDS), base)


@pytest.mark.parametrize("place", ["ConfigSwap", "Installed", "raised_generation"])
def test_a_conversion_that_fails_leaves_nothing(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()

    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError("mine")

    with untouched(model), monkeypatch.context() as patching:
        patching.setattr(conversions, place, fails)
        with pytest.raises(MemoryError, match="mine"):
            ropepatch.convert(model, to="alibi")


# --- beside patches -----------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["alibi", "nope"])
@pytest.mark.parametrize("replace", [False, True])
def test_a_patched_model_is_not_converted(to: str, replace: bool) -> None:
    model = make()
    with ropepatch.patch(model, "yarn", factor=4) as patch:
        found = read(model, IDS)
        with pytest.raises(PatchConflictError, match="patch"):
            ropepatch.convert(model, to=to, replace=replace)
        assert patch.active
        assert torch.equal(read(model, IDS), found)


@pytest.mark.parametrize("way", [{"to": "alibi"}, {"to": "nope", "layers": [0]}])
@pytest.mark.parametrize("replace", [False, True])
def test_a_converted_model_is_not_patched(way: dict[str, Any], replace: bool) -> None:
    model = make()
    with ropepatch.convert(model, **way) as handle:
        found = read(model, IDS)
        with pytest.raises(ropepatch.RopepatchError, match="convert"):
            ropepatch.patch(model, "yarn", factor=4, replace=replace)
        assert handle.active
        assert torch.equal(read(model, IDS), found)


# --- the handle ---------------------------------------------------------------------------------


def test_the_handle_says_what_it_is() -> None:
    handle: Conversion = ropepatch.convert(make(), to="alibi")
    assert repr(handle) == "<Conversion of LlamaForCausalLM to alibi>"
    assert any("training" in line for line in handle.advice)
    assert handle.describe().to_dict()["model_class"] == type(handle.model).__name__
