"""Extended folders, loaded by plain transformers, against logits that ropepatch had no part in."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from ropepatch import Recipe, extend, restore
from tests import tiny

DATA = Path(__file__).parents[1] / "data"
REFERENCE: dict[str, Any] = json.loads((DATA / "logits.json").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = REFERENCE["cases"]
NAMES = {
    "linear": "pi",
    "dynamic": "dynamic-ntk",
    "ntk_by_parts_paper": "ntk-by-parts",
    "proportional": "p-rope",
}
"""Ours, where the reference has another word."""
RENAMED = {"dynamic": {"factor": "ntk_factor"}, "proportional": {"partial_rotary_factor": "keep"}}
NOT_PARAMETERS = ("rope_type", "rope_theta", "original_max_position_embeddings")


def load(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    return model


def logits(model: PreTrainedModel, count: int) -> torch.Tensor:
    """(count, vocabulary), for the first ids of the reference's text."""
    chance = np.random.default_rng(REFERENCE["input_seed"])
    ids = torch.from_numpy(chance.integers(0, REFERENCE["vocab"], REFERENCE["seq_len"]))[None]
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids[:, :count], use_cache=False).logits[0]
    return found


def recipe_of(case: dict[str, Any]) -> Recipe:
    """What the reference was asked for, in our words."""
    renamed = RENAMED.get(case["method"], {})
    words = {
        renamed.get(key, key): value
        for key, value in case["params"].items()
        if key not in NOT_PARAMETERS
    }
    if case["method"] == "dynamic":
        words["factor"] = 4.0  # how far it is meant to reach; transformers has no word for it
    return Recipe.named(NAMES.get(case["method"], case["method"]), **words)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reference's seeded models, saved by transformers."""
    root = tmp_path_factory.mktemp("reference")
    for name, words in REFERENCE["models"].items():
        config = getattr(transformers, words["config_class"])(**words["config"])
        tiny.build(config, words["seed"]).save_pretrained(root / name)
    return {name: root / name for name in REFERENCE["models"]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_saved_folder_gives_the_reference(
    case: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = folders[case["model"]]
    if case["method"] != "default":
        folder = tmp_path / "extended"
        extend(folders[case["model"]], recipe_of(case), folder, verify=False)
    found = logits(load(folder), case["n_tokens"])[case["positions"]].numpy()
    with np.load(DATA / "logits.npz") as wanted:
        np.testing.assert_allclose(found, wanted[case["id"]], rtol=0, atol=case["atol"])


def test_every_reference_model_and_method_has_cases() -> None:
    assert {case["model"] for case in CASES} == set(REFERENCE["models"])
    for name in REFERENCE["models"]:
        methods = {recipe_of(c).method for c in CASES if c["model"] == name and c["params"]}
        assert methods == {
            "yarn",
            "pi",
            "ntk",
            "dynamic-ntk",
            "ntk-by-parts",
            "llama3",
            "longrope",
            "p-rope",
        }


@pytest.mark.parametrize("name", REFERENCE["models"])
def test_saving_the_loaded_model_again_changes_nothing(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    extend(folders[name], Recipe.named("yarn", factor=4), tmp_path / "extended", verify=False)
    model = load(tmp_path / "extended")
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(model, 1024), logits(load(tmp_path / "again"), 1024))


@pytest.mark.parametrize("name", REFERENCE["models"])
def test_restoring_gives_the_original_logits_to_the_bit(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    extended = tmp_path / "extended"
    extend(folders[name], Recipe.named("yarn", factor=4), extended, verify=False)
    original = logits(load(folders[name]), 1024)
    assert not torch.allclose(original, logits(load(extended), 1024), atol=0.1)
    restore(extended)
    assert torch.equal(original, logits(load(extended), 1024))


@pytest.mark.parametrize("dialect", ["v4", "v5", "both"])
def test_dialects_mean_the_same_to_transformers(
    dialect: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    extend(
        folders["llama"],
        Recipe.named("yarn", factor=4),
        tmp_path / "extended",
        dialect=dialect,
        verify=False,
    )
    found = logits(load(tmp_path / "extended"), 1024)[[0, 17, 511, 1023]].numpy()
    with np.load(DATA / "logits.npz") as wanted:
        np.testing.assert_allclose(found, wanted["llama/yarn_f4"], rtol=0, atol=2e-3)


def test_sharded_and_pickled_weights_extend_alike(
    llama_folder: Path, sharded_folder: Path, pickled_folder: Path, tmp_path: Path
) -> None:
    found = []
    for folder in (llama_folder, sharded_folder, pickled_folder):
        target = tmp_path / folder.name
        extend(folder, Recipe.named("yarn", factor=4), target, verify=False)
        found.append(logits(load(target), 1024))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
