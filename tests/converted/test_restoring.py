"""`restore` after a conversion: exactly the old values, and no file of ours is left."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import ropepatch
from ropepatch import convert_checkpoint, restore
from ropepatch.errors import RopepatchError
from tests import tiny
from tests.converted.folders import MODULE, NATIVE, converted, model_of, read
from tests.tiny import TRAINED, read_json, tree, write_json

CONFIGS: dict[str, dict[str, Any]] = {
    "v4": tiny.V4,
    "v5": tiny.V5,
    "both": tiny.V5 | {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "default"}},
    "silent": {k: v for k, v in tiny.V4.items() if not k.startswith("rope_")},
    "no length": {k: v for k, v in tiny.V5.items() if k != "max_position_embeddings"},
    "gemma3": tiny.GEMMA3,
    "composite": tiny.COMPOSITE,
    "no architectures": {k: v for k, v in tiny.V5.items() if k != "architectures"},
    "own code": tiny.V5 | {"auto_map": {"AutoConfig": "configuration_x.C"}},
    "yarn": tiny.V4
    | {
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": TRAINED,
            "finetuned": True,
        },
        "max_position_embeddings": 2 * TRAINED,
    },
    **{kind: {"model_type": kind, **words} for kind, words in NATIVE.items()},
}
WORDS: dict[str, dict[str, Any]] = {
    "alibi": {"to": "alibi"},
    "longer": {"to": "alibi", "factor": 4.0},
    "mixed": {"to": "alibi", "layers": [1]},
    "nope": {"to": "nope"},
    "some nope": {"to": "nope", "layers": [0]},
}


CASES = [
    *((name, how) for name in CONFIGS if name not in NATIVE for how in WORDS),
    *((name, "longer") for name in NATIVE),
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_config_is_the_original(name: str, how: str, tmp_path: Path) -> None:
    words = WORDS[how]
    folder = tiny.bare_checkpoint(tmp_path / "model", CONFIGS[name])
    target = converted(folder, **words, verify=False)
    assert read_json(target / "config.json") != CONFIGS[name]
    assert restore(target).folder == target
    assert read_json(target / "config.json") == CONFIGS[name]
    assert sorted(p.name for p in target.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_the_whole_folder_is_the_original(
    words: dict[str, Any], llama_folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    convert_checkpoint(llama_folder, words, target, verify=False)
    restore(target)
    assert tree(target).keys() == tree(llama_folder).keys()
    for path in llama_folder.iterdir():
        if path.suffix == ".json":
            assert read_json(target / path.name) == read_json(path)
        else:
            assert (target / path.name).read_bytes() == path.read_bytes()


def test_what_was_put_back_is_named(llama_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    convert_checkpoint(llama_folder, {"to": "alibi", "factor": 2}, target, verify=False)
    files = restore(target).files
    assert files[-1] == "config.json"
    assert set(files) == {
        "README.md",
        MODULE,
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
    }


def test_it_is_the_plain_model_again(tmp_path: Path) -> None:
    model = model_of("qwen3")
    model.save_pretrained(tmp_path / "plain")
    target = converted(tmp_path / "plain", to="alibi", factor=2)
    restore(target)
    loaded = AutoModelForCausalLM.from_pretrained(target)
    assert type(loaded) is type(model)
    assert torch.equal(read(loaded), read(model))


def test_what_a_live_model_saved_is_restored(tmp_path: Path) -> None:
    """Without a record: the stamp alone knows."""
    model = model_of("llama")
    model.save_pretrained(tmp_path / "plain")
    ropepatch.convert(model, to="alibi", factor=2)
    model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out" / "ropepatch.json").exists()
    restore(tmp_path / "out")
    assert not (tmp_path / "out" / MODULE).exists()
    wanted = read_json(tmp_path / "plain" / "config.json")
    found = read_json(tmp_path / "out" / "config.json")
    for words in (wanted, found):
        words.pop("architectures", None)
    assert found == wanted
    ropepatch.convert(model, to="alibi", factor=2).revert()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(read(plain), read(model))


def test_after_a_save_by_a_trainer(tmp_path: Path) -> None:
    model_of("llama").save_pretrained(tmp_path / "plain")
    target = converted(tmp_path / "plain", to="alibi", factor=2)
    tuned = AutoModelForCausalLM.from_pretrained(target)
    with torch.no_grad():
        tuned.lm_head.weight.mul_(2)
    tuned.save_pretrained(tmp_path / "tuned")
    restore(tmp_path / "tuned")
    original = read_json(tmp_path / "plain" / "config.json")
    assert read_json(tmp_path / "tuned" / "config.json") == original
    ropepatch.revert(tuned)
    assert torch.equal(read(AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")), read(tuned))


def test_keys_changed_since_survive(bare: Path) -> None:
    target = converted(bare, to="alibi", verify=False)
    config = read_json(target / "config.json")
    write_json(target / "config.json", config | {"vocab_size": 130})
    restore(target)
    assert read_json(target / "config.json") == tiny.V5 | {"vocab_size": 130}


def test_a_second_time_there_is_nothing(bare: Path) -> None:
    target = converted(bare, to="alibi", verify=False)
    restore(target)
    before = tree(target)
    with pytest.raises(RopepatchError, match="nothing to restore"):
        restore(target)
    assert tree(target) == before


def test_a_python_file_of_somebody_else_stays(bare: Path) -> None:
    target = converted(bare, to="alibi", verify=False)
    (target / "modeling_x.py").write_text("x = 1\n", encoding="utf-8")
    restore(target)
    assert (target / "modeling_x.py").exists()
    assert json.loads((target / "config.json").read_text(encoding="utf-8")) == tiny.V5
