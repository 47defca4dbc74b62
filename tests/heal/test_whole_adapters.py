"""Adapters: trained and merged at once, or written alone and merged later."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import ropepatch
from ropepatch.errors import CheckpointError, HealingError
from tests.heal.whole import documents, farthest, healed, left, logits, program, saved, weights_of

LORA = {"lora": 4, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return documents(tmp_path_factory.mktemp("data") / "texts.jsonl")


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, marks=pytest.mark.slow), True],
    ids=["untied", "tied"],
)
def patched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    saved(place / "plain", tie_word_embeddings=request.param)
    ropepatch.extend(place / "plain", {"method": "yarn", "factor": 4}, place / "patched")
    return place / "patched"


@pytest.fixture(scope="module")
def adapter(patched: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    healed(patched, data, folder, LORA, adapter=True)
    return folder


def test_merged_later_is_merged_at_once(
    patched: Path, data: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert left(adapter) == ["adapter_config.json", "adapter_model.safetensors", "ropepatch.json"]
    record = healed(patched, data, tmp_path / "at once", LORA)
    losses = [row["loss"] for row in record["losses"]]
    assert losses[-1] < losses[0] - 0.05
    done = program(capsys, "merge", adapter, "-o", tmp_path / "later", "--json")
    assert done.code == 0, done.err
    assert done.json["logits_error"] < 1e-4
    assert done.json["target"] == str(tmp_path / "later")
    one, other = (ropepatch.load(tmp_path / name) for name in ("at once", "later"))
    assert torch.allclose(logits(one), logits(other), atol=1e-5)
    assert farthest(tmp_path / "at once", tmp_path / "later") < 1e-6
    assert weights_of(tmp_path / "later").keys() == weights_of(patched).keys()
    for name in ("at once", "later"):
        ropepatch.verify(tmp_path / name)
        assert (tmp_path / name / "config.json").read_bytes() == (
            patched / "config.json"
        ).read_bytes()
    written = json.loads((tmp_path / "later" / "ropepatch.json").read_text(encoding="utf-8"))
    assert written["training"]["plan"]["lora"] == 4
    assert len(written["history"]) == 1
    told = program(capsys, "merge", adapter, "-o", tmp_path / "told")
    assert told.code == 0
    assert "merged into" in told.out
    assert left(tmp_path) == ["at once", "later", "told"]


def test_another_base_is_refused(patched: Path, adapter: Path, tmp_path: Path) -> None:
    other = shutil.copytree(patched, tmp_path / "other")
    from safetensors.torch import save_file

    found = {k: v + 0.01 for k, v in weights_of(other).items()}
    save_file(found, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(HealingError, match="was trained on another checkpoint than"):
        ropepatch.merge(adapter, tmp_path / "merged", model=other)
    assert left(tmp_path) == ["other"]


def test_what_is_no_adapter_is_refused(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no adapter"):
        ropepatch.merge(tmp_path, tmp_path / "merged")
    pickled = shutil.copytree(adapter, tmp_path / "pickled")
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="pickled adapters are not read"):
        ropepatch.merge(pickled, tmp_path / "merged")
    (tmp_path / "there").mkdir()
    with pytest.raises(CheckpointError, match="exists already"):
        ropepatch.merge(adapter, tmp_path / "there")
    assert left(tmp_path) == ["pickled", "there"]


def test_an_adapter_that_does_not_fit_is_refused(adapter: Path, tmp_path: Path) -> None:
    small = saved(tmp_path / "small", hidden_size=16)
    bare = shutil.copytree(adapter, tmp_path / "bare", ignore=lambda *_: {"ropepatch.json"})
    with pytest.raises(HealingError, match="does not fit the model"):
        ropepatch.merge(bare, tmp_path / "merged", model=small)
    config = json.loads((bare / "adapter_config.json").read_text(encoding="utf-8"))
    del config["base_model_name_or_path"]
    (bare / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(HealingError, match="name it with --model"):
        ropepatch.merge(bare, tmp_path / "merged")
    assert left(tmp_path) == ["bare", "small"]


@pytest.mark.parametrize("words", [{"train_embeddings": False}, {"train_norms": False}])
def test_only_what_is_asked_is_trained(
    words: dict[str, bool], patched: Path, data: Path, tmp_path: Path
) -> None:
    healed(patched, data, tmp_path / "healed", {**LORA, **words})
    before, after = weights_of(patched), weights_of(tmp_path / "healed")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("q_proj" in name for name in moved)
    assert not any("mlp" in name for name in moved)
    assert any("embed" in name for name in moved) is words.get("train_embeddings", True)
    assert any("norm" in name for name in moved) is words.get("train_norms", True)
