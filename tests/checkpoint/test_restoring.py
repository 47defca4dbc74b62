"""The way back: exactly the old values, after whatever has happened since, or a clear refusal."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropepatch import Recipe, extend, inspect, restore, verify
from ropepatch.config_json.plan import POSITION_KEYS
from ropepatch.errors import CheckpointError, ConfigError, RecipeError, RopepatchError
from tests import tiny
from tests.checkpoint.extending import RECORD, YARN, extended
from tests.tiny import TRAINED, read_json, tree, write_json

CONFIGS = {
    "v4": tiny.V4,
    "v5": tiny.V5,
    "both": tiny.V5 | {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "default"}},
    "silent": {k: v for k, v in tiny.V4.items() if not k.startswith("rope_")},
    "gemma3": tiny.GEMMA3,
    "composite": tiny.COMPOSITE,
    "scaled": tiny.V4
    | {
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": TRAINED,
            "finetuned": True,
        },
        "max_position_embeddings": 2 * TRAINED,
    },
}


def refusal(folder: Path) -> str:
    """The one line by which `restore` refuses; nothing has changed then."""
    before = tree(folder)
    with pytest.raises(RopepatchError) as caught:
        restore(folder)
    assert tree(folder) == before
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    return said


# --- the original back ------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dialect", ["auto", "v5"])
def test_config_is_the_original(config: dict[str, Any], dialect: str, tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "model", config)
    target = extended(folder, dialect=dialect, replace=True)
    assert read_json(target / "config.json") != config
    done = restore(target)
    assert read_json(target / "config.json") == config
    assert (done.folder, done.method, done.files) == (
        target,
        "yarn",
        ("README.md", "config.json"),
    )
    assert sorted(p.name for p in target.iterdir()) == ["config.json", "model.safetensors"]


def test_the_whole_folder_is_the_original(llama_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    extend(llama_folder, YARN, target, verify=False)
    assert set(restore(target).files) == {
        "README.md",
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
    }
    assert tree(target).keys() == tree(llama_folder).keys()
    for path in llama_folder.iterdir():
        if path.suffix == ".json":
            assert read_json(target / path.name) == read_json(path)
        else:
            assert (target / path.name).read_bytes() == path.read_bytes()


def test_the_source_is_untouched(bare: Path) -> None:
    write_json(bare / "tokenizer_config.json", {"model_max_length": TRAINED})
    before = tree(bare)
    restore(extended(bare))
    assert tree(bare) == before


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n\n"])
@pytest.mark.parametrize(
    "card", [b"# A model", b"\n---\nlicense: mit\n---\n\n# A m\xf6del\r\n\r\nx"]
)
def test_card_is_the_original_but_for_its_last_line_end(
    card: bytes, end: bytes, bare: Path
) -> None:
    (bare / "README.md").write_bytes(card + end)
    target = extended(bare)
    restore(target)
    assert (target / "README.md").read_bytes() == card + b"\n"


def test_what_was_written_below_our_section_stays(bare: Path) -> None:
    (bare / "README.md").write_text("# A model\n", encoding="utf-8")
    card = extended(bare) / "README.md"
    with card.open("a", encoding="utf-8") as file:
        file.write("\n## Results\n\nGood.\n")
    restore(card.parent)
    assert card.read_text(encoding="utf-8") == "# A model\n## Results\n\nGood.\n"


def test_a_card_with_a_stray_mark(bare: Path) -> None:
    card = "a stray <!-- ropepatch: end --> mark\n"
    (bare / "README.md").write_text(card, encoding="utf-8")
    target = extended(bare)
    restore(target)
    assert (target / "README.md").read_text(encoding="utf-8") == card


def test_code_left_behind_is_named_again(bare: Path) -> None:
    config = tiny.V5 | {"auto_map": {"AutoConfig": "configuration_x.C"}}
    write_json(bare / "config.json", config)
    target = extended(bare)
    restore(target)
    assert read_json(target / "config.json") == config


def test_of_a_second_extension_too(bare: Path) -> None:
    """`--replace` replaces the recipe, not the memory of the original."""
    sidecars = {
        "tokenizer_config.json": {"model_max_length": TRAINED, "x": 1},
        "generation_config.json": {"max_length": TRAINED, "top_k": 3},
    }
    for name, value in sidecars.items():
        write_json(bare / name, value)
    second = extended(extended(bare, "first"), "second", Recipe.named("pi", factor=2), replace=True)
    restore(second)
    assert read_json(second / "config.json") == tiny.V5
    for name, value in sidecars.items():
        assert read_json(second / name) == value


def test_keys_changed_since_survive(bare: Path) -> None:
    target = extended(bare)
    config = read_json(target / "config.json")
    write_json(target / "config.json", config | {"dtype": "bfloat16", "vocab_size": 130})
    restore(target)
    assert read_json(target / "config.json") == tiny.V5 | {"dtype": "bfloat16", "vocab_size": 130}


# --- after a fine-tune ------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["v4", "v5", "both"])
def test_after_a_save_by_transformers(dialect: Any, llama_folder: Path, tmp_path: Path) -> None:
    """A trainer saves the loaded model elsewhere: our stamp survives, our record does not."""
    extended_, tuned = tmp_path / "extended", tmp_path / "tuned"
    extend(llama_folder, YARN, extended_, dialect=dialect, verify=False)
    AutoModelForCausalLM.from_pretrained(extended_).save_pretrained(tuned)
    AutoTokenizer.from_pretrained(extended_).save_pretrained(tuned)
    assert not (tuned / RECORD).exists()
    assert inspect(tuned).stamp is not None

    assert restore(tuned).files == ("config.json",)
    original, restored = read_json(llama_folder / "config.json"), read_json(tuned / "config.json")
    assert {k: v for k, v in restored.items() if k in POSITION_KEYS} == {
        k: v for k, v in original.items() if k in POSITION_KEYS
    }
    assert restored == original


def test_a_save_in_place_does_not_reach_the_source(llama_folder: Path, tmp_path: Path) -> None:
    """Training that saves over the extended folder must not write through our hard links."""
    before = tree(llama_folder)
    target = tmp_path / "out"
    extend(llama_folder, YARN, target, how="link", verify=False)
    model = AutoModelForCausalLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    tokenizer.add_tokens(["<new>"])
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    assert (target / "tokenizer.json").read_bytes() != (
        llama_folder / "tokenizer.json"
    ).read_bytes()
    assert tree(llama_folder) == before
    restore(target)
    assert tree(llama_folder) == before


# --- nothing to restore -----------------------------------------------------------------------


def test_twice(bare: Path) -> None:
    target = extended(bare)
    restore(target)
    assert "carries no stamp of ropepatch" in refusal(target)


def test_a_folder_that_we_never_wrote(bare: Path) -> None:
    assert "carries no stamp of ropepatch" in refusal(bare)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not exist"):
        restore(tmp_path / "nowhere")


# --- damaged, or hostile ----------------------------------------------------------------------


def stamped(folder: Path, **changes: Any) -> Path:
    """An extended folder whose stamp has been tampered with; None removes a key."""
    target = extended(folder)
    config = read_json(target / "config.json")
    stamp = config["ropepatch"] | changes
    config["ropepatch"] = {k: v for k, v in stamp.items() if v is not None}
    write_json(target / "config.json", config)
    return target


@pytest.mark.parametrize(
    "changes",
    [
        {"before": None},
        {"before": [1]},
        {"before": "rope_theta"},
        {"before": {"architectures": ["Evil"]}},
        {"before": {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}},
        {"before": {"rope_theta": 10000.0, "quantization_config": {}}},
        {"path": None},
        {"path": "text_config"},
        {"path": {"text_config": 1}},
        {"path": ["text_config"]},
        {"path": ["rope_parameters", "rope_type"]},
        {"path": ["architectures"]},
        {"path": ["architectures", 0]},
        {"path": ["__class__"]},
        {"path": [["vision_config"]]},
        {"path": [{}]},
        {"path": [0]},
        {"path": [""]},
        {"path": ["model_type"]},
    ],
    ids=str,
)
def test_damaged_stamp(changes: dict[str, Any], bare: Path) -> None:
    target = stamped(bare, **changes)
    assert "stamp of ropepatch" in refusal(target)
    for attempt in (
        lambda: verify(target),
        lambda: extend(target, YARN, bare.parent / "again", replace=True, verify=False),
    ):
        with pytest.raises(ConfigError):
            attempt()


@pytest.mark.parametrize("stamp", [7, True, "yarn", [], [1], {}], ids=str)
def test_a_stamp_that_is_no_stamp(stamp: Any, bare: Path) -> None:
    write_json(bare / "config.json", tiny.V5 | {"ropepatch": stamp})
    assert "stamp of ropepatch in config.json is damaged" in refusal(bare)
    with pytest.raises(ConfigError):
        verify(bare)
    with pytest.raises(ConfigError):
        extended(bare)


@pytest.mark.parametrize(
    "recipe",
    [None, 7, "yarn", [], {}, {"method": 7}, {"method": "no-such"}, {"factor": 4}],
    ids=str,
)
def test_a_stamp_whose_recipe_is_damaged(recipe: Any, bare: Path) -> None:
    """What to put back is still there, so `restore` does it; `verify` has to refuse."""
    target = stamped(bare, recipe=recipe)
    with pytest.raises((ConfigError, RecipeError)):
        verify(target)
    with pytest.raises(ConfigError, match=r"already written"):
        extended(target, "again")
    restore(target)
    assert read_json(target / "config.json") == tiny.V5


@pytest.mark.parametrize("length", ["256", [256], -1, 0, {}, 2.5, True], ids=str)
def test_a_stamp_whose_length_is_damaged(length: Any, bare: Path) -> None:
    with pytest.raises(RopepatchError):
        inspect(stamped(bare, trained_length=length))


def test_a_record_of_a_newer_format(bare: Path) -> None:
    target = extended(bare)
    record = read_json(target / RECORD)
    write_json(target / RECORD, record | {"format": 2, "ropepatch": "9.0"})
    said = refusal(target)
    assert "newer ropepatch (9.0); update to read it" in said


@pytest.mark.parametrize(
    "before",
    [
        7,
        [],
        {"config.json": 7},
        {"config.json": []},
        {"config.json": {"architectures": ["Evil"]}},
        {"config.json": {"auto_map": {}, "model_type": "evil"}},
        {"tokenizer_config.json": {"tokenizer_class": "Evil"}},
        {"../tokenizer_config.json": {"model_max_length": 1}},
        {"/etc/passwd": {}, "model.safetensors": {"max_length": 1}},
    ],
    ids=str,
)
def test_damaged_record(before: Any, bare: Path) -> None:
    target = extended(bare)
    write_json(target / RECORD, read_json(target / RECORD) | {"before": before})
    assert "ropepatch.json is damaged" in refusal(target)
    (target / RECORD).unlink()
    restore(target)
    assert read_json(target / "config.json") == tiny.V5


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "1"}', "{}"])
def test_a_record_that_is_none(text: str, bare: Path) -> None:
    target = extended(bare)
    (target / RECORD).write_text(text, encoding="utf-8")
    assert "ropepatch.json" in refusal(target)


# --- on the way -------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a SIGKILL: no handler of ours may catch it."""


@pytest.mark.parametrize("survived", range(3))
def test_killed_between_two_files(
    survived: int, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """config.json comes last, so a run that was cut short is simply run again."""
    target = tmp_path / "out"
    extend(llama_folder, YARN, target, verify=False)
    real, left = os.replace, survived

    def replace(source: Any, place: Any) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        real(source, place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(Killed):
            restore(target)
    restore(target)
    for path in llama_folder.glob("*.json"):
        assert read_json(target / path.name) == read_json(path)
    assert not (target / RECORD).exists()
    assert not [path for path in target.iterdir() if path.name.startswith(".")]


def test_a_disk_that_says_no(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = extended(bare)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("ropepatch.checkpoint.staging.tempfile.mkstemp", fail)
    with pytest.raises(CheckpointError, match=r"cannot write .*out: Read-only file system"):
        restore(target)
    assert "ropepatch" in read_json(target / "config.json")


def test_permissions_stay(bare: Path) -> None:
    target = extended(bare)
    (target / "config.json").chmod(0o640)
    restore(target)
    assert (target / "config.json").stat().st_mode & 0o777 == 0o640


def test_a_config_that_is_a_hard_link_stays_apart(bare: Path) -> None:
    """The old name keeps the old text: a file is replaced, never written through."""
    target = extended(bare)
    os.link(target / "config.json", bare.parent / "other-name.json")
    restore(target)
    other = json.loads((bare.parent / "other-name.json").read_text(encoding="utf-8"))
    assert "ropepatch" in other
