"""Patch, conflict, replace, save, load and revert: once around, for every method."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import ropepatch
from ropepatch import patch_of
from ropepatch.errors import PatchConflictError
from tests.live.subjects import (
    CASES,
    FAMILIES,
    FIRST,
    LENGTH,
    TRAINED,
    Case,
    bits,
    make,
    name_of,
    patched,
    pin_of,
    read,
    text,
    traces,
)
from tests.tiny import read_json

OTHER: Case = ("yarn", {"factor": 3.0})


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return make(request.param)


REST = [pytest.param(case, marks=pytest.mark.slow) for case in CASES if case not in FIRST]


def plain(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    return model


def saved(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def words_of(model: PreTrainedModel) -> dict[str, Any]:
    """The config, without the folder it came from."""
    return {k: v for k, v in model.config.to_dict().items() if k != "_name_or_path"}


@pytest.mark.parametrize("case", [*FIRST, *REST], ids=name_of)
def test_once_around(case: Case, model: PreTrainedModel, tmp_path: Path) -> None:
    ids = text()
    original = saved(model, tmp_path / "original")  # it fills in the architecture
    base, before, weights = read(model, ids), traces(model), bits(model)

    handle = patched(model, case)
    changed = read(model, ids)
    assert not torch.allclose(changed, base, rtol=0, atol=1e-3)
    assert bits(model) == weights
    assert patched(model, case) is handle is patch_of(model)

    with pytest.raises(PatchConflictError, match="replace=True"):
        patched(model, OTHER)
    assert torch.equal(read(model, ids), changed)
    assert patch_of(model) is handle

    other = patched(model, OTHER, replace=True)
    assert not handle.active
    assert patch_of(model) is other
    handle.revert()  # of a patch that is gone: nothing
    assert not torch.allclose(read(model, ids), changed, rtol=0, atol=1e-3)
    handle = patched(model, case, replace=True)
    assert torch.equal(read(model, ids), changed)
    assert bits(model) == weights

    folder = saved(model, tmp_path / "saved")
    if handle.live_only is None:
        with pin_of(handle, LENGTH):
            wanted = read(model, ids)
        # transformers makes its tables in float32, so the last bits differ
        torch.testing.assert_close(read(plain(folder), ids), wanted, rtol=0, atol=3e-4)
    else:
        with pytest.raises(KeyError, match=r"ropepatch\.load"):
            plain(folder)
    loaded = ropepatch.load(folder, dtype=torch.float32).eval()
    assert torch.equal(read(loaded, ids), changed)
    assert words_of(loaded) == words_of(model)

    handle.revert()
    handle.revert()
    assert not handle.active
    assert patch_of(model) is None
    assert traces(model) == before
    assert torch.equal(read(model, ids), base)
    assert bits(model) == weights
    again = saved(model, tmp_path / "again")
    assert read_json(again / "config.json") == read_json(original / "config.json")


@pytest.mark.parametrize("case", FIRST, ids=name_of)
def test_short_exact_once_around(case: Case, model: PreTrainedModel, tmp_path: Path) -> None:
    ids = text()
    saved(model, tmp_path / "original")
    base, before = read(model, ids), traces(model)
    with patched(model, case, short_exact=True) as handle:
        changed = read(model, ids)
        assert torch.equal(changed[:, :TRAINED], base[:, :TRAINED])
        assert not torch.allclose(changed[:, TRAINED:], base[:, TRAINED:], rtol=0, atol=1e-3)
        assert handle.live_only is not None
        folder = saved(model, tmp_path / "saved")
    assert traces(model) == before
    assert torch.equal(read(model, ids), base)
    with pytest.raises(KeyError, match=r"ropepatch\.load"):
        plain(folder)
    loaded = ropepatch.load(folder, dtype=torch.float32).eval()
    assert torch.equal(read(loaded, ids), changed)
    again = patch_of(loaded)
    assert again is not None
    assert again.recipe == handle.recipe


def test_what_was_saved_while_patched_and_what_was_saved_after_differ(tmp_path: Path) -> None:
    model = make()
    saved(model, tmp_path / "before")
    with patched(model, OTHER):
        saved(model, tmp_path / "patched")
    saved(model, tmp_path / "after")
    before, during, after = (
        read_json(tmp_path / name / "config.json") for name in ("before", "patched", "after")
    )
    assert after == before
    assert during["rope_parameters"]["rope_type"] == "yarn"
    assert during["max_position_embeddings"] == 3 * TRAINED
    assert during["ropepatch"]["recipe"] == {"method": "yarn", "factor": 3.0}


def test_a_loaded_patch_reverts_to_the_plain_model(tmp_path: Path) -> None:
    model, ids = make(), text()
    base = read(model, ids)
    with patched(model, ("dynamic-yarn", {"factor": 4.0})):
        saved(model, tmp_path / "saved")
    loaded = ropepatch.load(tmp_path / "saved", dtype=torch.float32).eval()
    handle: Any = patch_of(loaded)
    handle.revert()
    assert torch.equal(read(loaded, ids), base)
    assert words_of(loaded) == words_of(model)


def test_reverting_leaves_the_very_objects() -> None:
    model: Any = make("gemma3")
    rotary, config = model.model.rotary_emb, model.config
    block = config.rope_parameters
    tables = dict(rotary.named_buffers())
    handle = patched(model, OTHER)
    assert model.model.rotary_emb is not rotary
    handle.revert()
    assert model.model.rotary_emb is rotary
    assert model.config is config is model.model.config
    assert config.rope_parameters is block
    assert all(table is tables[name] for name, table in rotary.named_buffers())
    assert list(model.state_dict()) == list(make("gemma3").state_dict())


def test_reverting_restores_even_where_training_mode_changed_meanwhile() -> None:
    model: Any = make()
    handle = patched(model, OTHER)
    model.train()
    handle.revert()
    assert all(module.training for module in model.modules())


def test_replacing_counts_from_the_trained_length() -> None:
    model, ids = make(), text()
    patched(model, ("pi", {"factor": 8.0}))
    handle = patched(model, ("pi", {"factor": 2.0}), replace=True)
    assert (handle.trained_length, handle.target_length) == (TRAINED, 2 * TRAINED)
    with patched(make(), ("pi", {"factor": 2.0})) as fresh:
        assert torch.equal(read(model, ids), read(fresh.model, ids))


@pytest.mark.parametrize("case", [OTHER, ("dynamic-ntk", {"factor": 4.0})], ids=name_of)
def test_a_generation_config_that_speaks_of_the_length_comes_back(case: Case) -> None:
    model: Any = make()
    model.generation_config.max_length = TRAINED
    before = traces(model)
    with patched(model, case):
        pass
    assert traces(model) == before


def test_what_others_set_in_the_config_meanwhile_stays() -> None:
    model: Any = make()
    config = model.config
    with patched(model, OTHER):
        model.config.use_cache = False
        model.config.note = "mine"
    assert model.config is config
    assert (config.use_cache, config.note) == (False, "mine")
    assert config.max_position_embeddings == TRAINED
    assert config.rope_parameters["rope_type"] == "default"
