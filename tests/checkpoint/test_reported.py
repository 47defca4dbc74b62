"""Faults that users found, each with the right behaviour."""

import json
from pathlib import Path

import pytest

from ropepatch import Recipe, extend, verify
from ropepatch.config_json.write import write_recipe
from ropepatch.errors import CheckpointError, VerificationError
from ropepatch.recipe_files import read_factors
from tests.tiny import read_json, write_json

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
}
YARN = Recipe.named("yarn", factor=4)


def test_a_link_to_a_model_gets_its_result_beside_the_link(bare: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "mine").symlink_to(bare)
    done = extend(place / "mine", YARN, verify=False)
    assert done.target.parent == place
    assert done.target.name.startswith("mine-yarn-")


def test_a_dry_run_sees_an_output_that_exists(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(CheckpointError, match="exists already"):
        extend(bare, YARN, tmp_path / "there", dry_run=True)


def test_verify_sees_a_length_field_that_was_changed(llama_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    extend(llama_folder, YARN, out, verify=False)
    config = read_json(out / "config.json")
    write_json(out / "config.json", config | {"max_position_embeddings": 256})
    with pytest.raises(VerificationError, match="max_position_embeddings is 256"):
        verify(out)


def test_a_trained_length_that_was_told_is_remembered() -> None:
    told = Recipe.named("pi", factor=2, trained_length=128)
    once = write_recipe(LLAMA, told)
    again = write_recipe(once.after, YARN, replace=True)
    assert again.layout.trained_length == 128
    assert again.target_length == 512
    other = write_recipe(
        once.after, Recipe.named("yarn", factor=4, trained_length=256), replace=True
    )
    assert other.target_length == 1024


def test_a_file_of_factors_may_hold_the_attention_factor(tmp_path: Path) -> None:
    file = tmp_path / "factors.json"
    file.write_text(json.dumps({"long_factor": [2.0] * 16, "attention_factor": 1.3}))
    words = read_factors(file)
    recipe = Recipe.from_dict({"method": "longrope", "factor": 4, **words})
    assert recipe.parameters["attention_factor"] == 1.3


@pytest.mark.parametrize(
    ("words", "said"),
    [({"method": "pi"}, True), ({"method": "pi", "keep": 0.5}, False), ({"method": "ntk"}, False)],
)
def test_advice_on_linear_is_for_what_is_written(words: dict[str, object], said: bool) -> None:
    change = write_recipe(LLAMA, Recipe.from_dict({"factor": 4, **words}))
    assert any("--max-model-len 1024" in note for note in change.advice) is said


def test_the_record_holds_every_position_key_before_and_after(bare: Path, tmp_path: Path) -> None:
    extend(bare, YARN, tmp_path / "out", verify=False)
    config = read_json(tmp_path / "out" / "ropepatch.json")["config"]
    assert (
        config["before"]["max_position_embeddings"] * 4
        == (config["after"]["max_position_embeddings"])
    )
    assert config["before"] != config["after"]
