"""What an extended folder holds, how it got there, and what it leaves alone."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ropepatch import Recipe, extend
from ropepatch._version import __version__
from ropepatch.checkpoint.folder import read_checkpoint
from ropepatch.errors import RopepatchError
from tests import tiny
from tests.tiny import TRAINED, read_json, tree, write_json

YARN = Recipe.named("yarn", factor=4)
RECORD = "ropepatch.json"


def inode(path: Path) -> int:
    return path.stat().st_ino


def extended(folder: Path, name: str = "out", recipe: Recipe = YARN, **words: Any) -> Path:
    """Extend without torch, into a folder beside the model."""
    target = folder.parent / name
    before = tree(folder)
    extend(folder, recipe, target, **{"verify": False, **words})
    assert tree(folder) == before
    return target


def refusal(folder: Path, target: Path, recipe: Recipe = YARN, **words: Any) -> str:
    """The one line of a refusal that changed nothing anywhere near."""
    before = tree(folder.parent)
    with pytest.raises(RopepatchError) as caught:
        extend(folder, recipe, target, **{"verify": False, **words})
    assert tree(folder.parent) == before
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    return said


# --- the weights ------------------------------------------------------------------------------


def test_weights_are_linked_where_possible(bare: Path) -> None:
    target = extended(bare)
    assert inode(target / "model.safetensors") == inode(bare / "model.safetensors")
    assert read_json(target / RECORD)["source"]["weights"] == {"model.safetensors": "hard link"}


def test_weights_are_linked_if_asked(bare: Path) -> None:
    target = extended(bare, how="link")
    assert inode(target / "model.safetensors") == inode(bare / "model.safetensors")


def test_weights_are_copied_if_asked(bare: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    target = extended(bare, how="copy", progress=lambda *step: seen.append(step))
    source, copy = bare / "model.safetensors", target / "model.safetensors"
    assert inode(copy) != inode(source)
    assert copy.read_bytes() == source.read_bytes()
    (way,) = read_json(target / RECORD)["source"]["weights"].values()
    size = source.stat().st_size
    assert (way, seen) in [("copy", [("model.safetensors", size, size)]), ("reflink", [])]


def test_weights_are_copied_where_links_are_impossible(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def across(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", across)
    monkeypatch.setattr("ropepatch.checkpoint.carry._reflink", lambda *_: False)
    target = extended(bare)
    assert read_json(target / RECORD)["source"]["weights"] == {"model.safetensors": "copy"}
    assert "cannot share model.safetensors" in refusal(bare, bare.parent / "linked", how="link")


def test_links_of_a_hub_cache_become_files(tmp_path: Path) -> None:
    """A snapshot holds links into `blobs`; what we write must survive the cache."""
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "0123abc"
    tiny.bare_checkpoint(blobs)
    write_json(blobs / "tokenizer.json", {"model": {}})
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(Path("../../blobs") / blob.name)
    target = tmp_path / "out"
    extend(snapshot, YARN, target, verify=False)
    assert not [path for path in target.rglob("*") if path.is_symlink()]
    assert inode(target / "model.safetensors") == inode(blobs / "model.safetensors")
    shutil.rmtree(tmp_path / "hub")
    assert read_checkpoint(target).weights == ("model.safetensors",)


def test_shards_travel_with_their_index(tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "model", shards=3)
    target = extended(folder)
    assert read_checkpoint(target).weights == read_checkpoint(folder).weights
    index = "model.safetensors.index.json"
    assert (target / index).read_bytes() == (folder / index).read_bytes()


def test_shards_in_a_folder_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_json(folder / "config.json", tiny.V5)
    (folder / "weights").mkdir()
    (folder / "weights" / "a.safetensors").write_bytes(tiny.safetensors_bytes())
    index = {"weight_map": {"a": "weights/a.safetensors"}}
    write_json(folder / "model.safetensors.index.json", index)
    target = extended(folder)
    assert (target / "weights" / "a.safetensors").is_file()


def test_pickled_weights_travel_unopened(bare: Path) -> None:
    (bare / "model.safetensors").unlink()
    (bare / "pytorch_model.bin").write_bytes(b"\x80\x04never to be opened")
    done = extend(bare, YARN, bare.parent / "out", verify=False)
    assert done.written is not None
    assert any("pickled .bin files" in note for note in done.written.notes)
    assert (done.target / "pytorch_model.bin").read_bytes().endswith(b"never to be opened")


# --- the files beside them --------------------------------------------------------------------


def test_other_files_are_copied_and_never_linked(bare: Path) -> None:
    """A tokenizer saves into the file that is there, so through any hard link."""
    write_json(bare / "tokenizer.json", {"model": {}})
    write_json(bare / "tokenizer_config.json", {"model_max_length": 10**30})
    write_json(bare / "generation_config.json", {"temperature": 0.6})
    (bare / "chat_template.jinja").write_bytes(b"{{ x }}\r\n")
    (bare / "tokenizer.model").write_bytes(b"\x00\x01")
    (bare / "LICENSE").write_text("as is", encoding="utf-8")
    target = extended(bare)
    for path in bare.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            assert (target / path.name).read_bytes() == path.read_bytes(), path.name
            assert inode(target / path.name) != inode(path), path.name


@pytest.mark.parametrize(
    ("length", "after"),
    [
        (TRAINED, 4 * TRAINED),
        (2, 4 * TRAINED),
        (float(TRAINED), 4 * TRAINED),
        (4 * TRAINED, None),
        (10**6, None),
        (1000000000000000019884624838656, None),
        (1e30, None),
        (0, None),
        (None, None),
        (True, None),
        ("256", None),
    ],
)
def test_length_of_the_tokenizer(length: Any, after: int | None, bare: Path) -> None:
    given = {"tokenizer_class": "X", "model_max_length": length, "extra": [1]}
    path = write_json(bare / "tokenizer_config.json", given)
    target = extended(bare)
    if after is None:
        assert (target / path.name).read_bytes() == path.read_bytes()
        assert read_json(target / RECORD)["before"] == {}
        return
    assert read_json(target / path.name) == given | {"model_max_length": after}
    record = read_json(target / RECORD)
    assert record["before"] == {"tokenizer_config.json": {"model_max_length": length}}
    assert record["after"] == {"tokenizer_config.json": {"model_max_length": after}}


@pytest.mark.parametrize(
    ("length", "after"),
    [(TRAINED, 4 * TRAINED), (TRAINED - 1, None), (20, None), (None, None), ("256", None)],
)
def test_length_of_generation(length: Any, after: int | None, bare: Path) -> None:
    """Only a `max_length` that meant "all of the context" grows with it."""
    path = write_json(bare / "generation_config.json", {"max_length": length, "top_p": 0.9})
    target = extended(bare)
    wanted = length if after is None else after
    assert read_json(target / path.name) == {"max_length": wanted, "top_p": 0.9}


def test_a_damaged_sidecar_is_refused_before_anything_is_written(bare: Path) -> None:
    (bare / "tokenizer_config.json").write_text("{", encoding="utf-8")
    assert "tokenizer_config.json is not JSON" in refusal(bare, bare.parent / "out")
    (bare / "tokenizer_config.json").unlink()
    (bare / "generation_config.json").write_text("[]", encoding="utf-8")
    assert "generation_config.json holds no JSON object" in refusal(bare, bare.parent / "out")


def test_what_is_left_behind(bare: Path) -> None:
    for name in (
        "pytorch_model.bin",
        "consolidated.00.pth",
        "consolidated.safetensors",
        "params.json",
        "model-q4.gguf",
        "model.onnx",
        "flax_model.msgpack",
        "tf_model.h5",
        "training_args.bin",
        "model.safetensors.index.json",
    ):
        (bare / name).write_bytes(b"{}")
    for name in ("original", "onnx", ".cache"):
        (bare / name).mkdir()
        (bare / name / "params.json").write_bytes(b"{}")
    done = extend(bare, YARN, bare.parent / "out", verify=False)
    assert sorted(p.name for p in done.target.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        RECORD,
    ]
    assert done.written is not None
    assert set(done.written.left_behind) == {
        "original/",
        "onnx/",
        *(p.name for p in bare.iterdir() if p.is_file()),
    } - {"config.json", "model.safetensors"}


# --- code of the checkpoint -------------------------------------------------------------------

OWN_CODE: dict[str, Any] = tiny.V5 | {
    "model_type": "llama_of_somebody",
    "auto_map": {"AutoConfig": "configuration_x.C", "AutoModelForCausalLM": "modeling_x.M"},
}


def test_code_is_left_behind(bare: Path) -> None:
    (bare / "modeling_x.py").write_text("raise SystemExit('ran')\n", encoding="utf-8")
    write_json(bare / "config.json", tiny.V5 | {"auto_map": OWN_CODE["auto_map"]})
    done = extend(bare, YARN, bare.parent / "out", verify=False)
    assert not (done.target / "modeling_x.py").exists()
    assert "auto_map" not in read_json(done.target / "config.json")
    assert done.written is not None
    assert done.written.left_behind == ("modeling_x.py",)
    assert any("auto_map" in note for note in done.written.notes)
    before = read_json(done.target / RECORD)["before"]
    assert before == {"config.json": {"auto_map": OWN_CODE["auto_map"]}}


def test_code_travels_if_allowed(bare: Path) -> None:
    (bare / "modeling_x.py").write_text("raise SystemExit('ran')\n", encoding="utf-8")
    write_json(bare / "config.json", OWN_CODE)
    target = extended(bare, remote_code=True)
    assert (target / "modeling_x.py").read_bytes() == (bare / "modeling_x.py").read_bytes()
    assert read_json(target / "config.json")["auto_map"] == OWN_CODE["auto_map"]


def test_a_model_that_needs_its_code_is_refused_without(bare: Path) -> None:
    (bare / "modeling_x.py").write_text("raise SystemExit('ran')\n", encoding="utf-8")
    write_json(bare / "config.json", OWN_CODE)
    said = refusal(bare, bare.parent / "out")
    assert "'llama_of_somebody' needs the checkpoint's own Python code" in said
    assert "--trust-remote-code" in said


# --- config.json and the record ---------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [tiny.V4, tiny.V5, tiny.GEMMA3, tiny.COMPOSITE],
    ids=["v4", "v5", "gemma3", "composite"],
)
def test_record(config: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "model", config, shards=2)
    target = extended(folder)
    record = read_json(target / RECORD)
    assert record["format"] == 1
    assert record["ropepatch"] == __version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record["created"])
    assert record["source"] == {
        "model": str(folder),
        "revision": None,
        "fingerprint": read_checkpoint(folder).fingerprint(),
        "weights": dict.fromkeys(read_checkpoint(folder).weights, "hard link"),
    }
    assert record["recipe"] == {"method": "yarn", "factor": 4.0}
    assert record["lengths"] == {
        "trained": TRAINED,
        "configured_before": TRAINED,
        "target": 4 * TRAINED,
    }
    assert record["dialect"] == ("v4" if config is tiny.V4 else "v5")
    label = "full_attention" if "gemma3" in config["model_type"] else "*"
    assert list(record["methods"]) == list(record["schedules"]) == [label]
    assert record["methods"][label]["factor"] == 4
    schedule = record["schedules"][label]
    assert schedule["head_dim"] == schedule["rotary_dim"] == 32
    assert schedule["slowest_wavelength_after"] > schedule["slowest_wavelength_before"]
    assert record["proof"] is None
    assert record["before"] == record["after"] == {}
    assert "history" not in record
    assert read_json(target / "config.json")["ropepatch"]["recipe"] == record["recipe"]


def test_record_of_a_second_extension_remembers_the_first(bare: Path) -> None:
    write_json(bare / "tokenizer_config.json", {"model_max_length": TRAINED})
    write_json(bare / "generation_config.json", {"max_length": TRAINED})
    write_json(bare / "config.json", tiny.V5 | {"auto_map": OWN_CODE["auto_map"]})
    first = extended(bare, "first")
    second = extended(first, "second", Recipe.named("pi", factor=8), replace=True)
    third = extended(second, "third", Recipe.named("ntk", factor=2), replace=True)
    assert [past["recipe"]["method"] for past in read_json(third / RECORD)["history"]] == [
        "yarn",
        "pi",
    ]
    for folder, factor in ((first, 4), (second, 8), (third, 2)):
        length = factor * TRAINED
        assert read_json(folder / "config.json")["max_position_embeddings"] == length
        assert read_json(folder / "tokenizer_config.json")["model_max_length"] == length
        assert read_json(folder / "generation_config.json")["max_length"] == length
        assert read_json(folder / RECORD)["before"] == {
            "config.json": {"auto_map": OWN_CODE["auto_map"]},
            "tokenizer_config.json": {"model_max_length": TRAINED},
            "generation_config.json": {"max_length": TRAINED},
        }


def test_a_damaged_record_is_refused_before_anything_is_written(bare: Path) -> None:
    first = extended(bare, "first")
    (first / RECORD).write_text("{", encoding="utf-8")
    assert "ropepatch.json is not JSON" in refusal(first, bare.parent / "second", replace=True)


def test_already_extended(bare: Path) -> None:
    said = refusal(extended(bare, "first"), bare.parent / "second")
    assert "already written 'yarn'" in said
    assert "--replace" in said


def test_unknown_keys_and_odd_letters_survive(bare: Path) -> None:
    odd = {"note": "Länge – 長さ", "half": "\ud83d", "nested": {"a": [None, 1e-30, {}]}}
    write_json(bare / "config.json", tiny.V5 | odd)
    config = read_json(extended(bare) / "config.json")
    assert {key: config[key] for key in odd} == odd


def test_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    """A file name need not be UTF-8; the record still is."""
    folder = tiny.bare_checkpoint(tmp_path / os.fsdecode(b"mod\xe8le [bold] `x`"))
    target = extended(folder)
    assert read_json(target / RECORD)["source"]["model"] == str(folder)


# --- the card ---------------------------------------------------------------------------------

CARD = b"""---
license: apache-2.0
tags:
- text
---

# A model

It is tiny.
"""


def test_a_card_is_kept_and_gets_a_section(bare: Path) -> None:
    (bare / "README.md").write_bytes(CARD)
    text = (extended(bare) / "README.md").read_bytes()
    assert text.startswith(CARD)
    section = text.removeprefix(CARD).decode()
    assert section.startswith("\n<!-- ropepatch: begin -->\n## Extended context\n")
    assert section.endswith("<!-- ropepatch: end -->\n")
    assert "YaRN" in section
    assert "config of `model` by" in section
    assert f"trained on {TRAINED} tokens, meant for {4 * TRAINED}" in section
    assert "2 of 2 layers" in section


def test_a_second_section_replaces_the_first(bare: Path) -> None:
    (bare / "README.md").write_bytes(CARD)
    second = extended(extended(bare, "first"), "second", Recipe.named("pi", factor=8), replace=True)
    text = (second / "README.md").read_text(encoding="utf-8")
    assert text.count("ropepatch: begin") == text.count("ropepatch: end") == 1
    assert "`pi`" in text
    assert "`yarn`" not in text
    assert text.startswith(CARD.decode())


def test_a_folder_without_a_card_gets_one(bare: Path) -> None:
    text = (extended(bare) / "README.md").read_text(encoding="utf-8")
    assert text.startswith("<!-- ropepatch: begin -->\n")


def test_a_card_that_is_not_utf8(bare: Path) -> None:
    card = b"# Mod\xe8le\r\n\r\nligne\r\n"
    (bare / "README.md").write_bytes(card)
    assert (extended(bare) / "README.md").read_bytes().startswith(card.rstrip())


# --- the place --------------------------------------------------------------------------------


def test_output_that_exists(bare: Path) -> None:
    target = bare.parent / "out"
    target.mkdir()
    assert "exists already" in refusal(bare, target)
    target.rmdir()
    target.write_text("a file", encoding="utf-8")
    assert "exists already" in refusal(bare, target)


def test_output_that_is_a_link_to_nothing(bare: Path) -> None:
    target = bare.parent / "out"
    target.symlink_to(bare.parent / "gone")
    assert "exists already" in refusal(bare, target)
    assert target.is_symlink()


@pytest.mark.parametrize("inside", ["", "out", "a/b/out", "../model/out", "../model"])
def test_output_inside_the_model(inside: str, bare: Path) -> None:
    assert "lies inside the model's own folder" in refusal(bare, bare / inside)


def test_output_inside_the_model_through_a_link(bare: Path) -> None:
    (bare.parent / "alias").symlink_to(bare)
    assert "lies inside the model's own folder" in refusal(bare, bare.parent / "alias" / "out")
    assert "lies inside" in refusal(bare.parent / "alias", bare / "out")


def test_output_around_the_model(bare: Path) -> None:
    assert "exists already" in refusal(bare, bare.parent)


def test_parents_are_made(bare: Path) -> None:
    target = bare.parent / "a" / "b" / "out"
    extend(bare, YARN, target, verify=False)
    assert (target / "config.json").is_file()


def test_parents_made_for_nothing_go_again(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ropepatch.checkpoint.write.carry", full)
    (bare.parent / "a").mkdir()
    assert "No space left" in refusal(bare, bare.parent / "a" / "b" / "c" / "out")


def test_a_file_among_the_parents(bare: Path) -> None:
    said = refusal(bare, bare / "config.json" / "out")
    assert "lies inside" in said
    (bare.parent / "file").write_text("x", encoding="utf-8")
    assert "cannot write" in refusal(bare, bare.parent / "file" / "out")


def test_relative_paths(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bare.parent)
    done = extend("model", YARN, "a/../out", verify=False)
    assert done.target == Path("a/../out")
    assert (bare.parent / "out" / "config.json").is_file()
    monkeypatch.chdir(bare)
    extend(".", YARN, "../beside", verify=False)
    assert (bare.parent / "beside" / "config.json").is_file()
    assert "lies inside" in refusal(Path(), Path("out"))


@pytest.mark.parametrize("name", ["x" * 255, "長" * 80, "🎈" * 60])
def test_the_longest_names(name: str, bare: Path) -> None:
    assert (extended(bare, name) / "config.json").is_file()


def test_a_name_too_long_for_the_disk(bare: Path) -> None:
    said = refusal(bare, bare.parent / ("x" * 300))
    assert "File name too long" in said
    assert "choose a shorter --output" in said


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        (YARN, "model-yarn-1k"),
        (Recipe.named("pi", factor=1.5), "model-pi-384"),
        (Recipe.named("dynamic-ntk", factor=2), "model-dynamic-ntk-512"),
        (Recipe.named("p-rope", keep=0.5), "model-p-rope-256"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_default_name(recipe: Recipe, name: str, bare: Path) -> None:
    done = extend(bare, recipe, verify=False)
    assert done.target == bare.parent / name
    assert (done.target / "config.json").is_file()


def test_default_name_of_an_odd_name(tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "my model (final)")
    assert extend(folder, YARN, verify=False).target.name == "my-model--final--yarn-1k"


def test_permissions_follow_the_umask(bare: Path) -> None:
    old = os.umask(0o027)
    try:
        target = extended(bare, how="copy")
    finally:
        os.umask(old)
    assert target.stat().st_mode & 0o777 == 0o750
    for name in ("config.json", "README.md", RECORD, "model.safetensors"):
        assert (target / name).stat().st_mode & 0o777 == 0o640


# --- before the first byte --------------------------------------------------------------------


def test_a_dry_run_writes_nothing(bare: Path) -> None:
    before = tree(bare.parent)
    done = extend(bare, YARN, dry_run=True)
    assert tree(bare.parent) == before
    assert done.written is None
    assert done.proof is None
    assert done.target == bare.parent / "model-yarn-1k"
    assert done.change.after["max_position_embeddings"] == 4 * TRAINED


@pytest.mark.parametrize(
    ("recipe", "dialect", "said"),
    [
        (Recipe.named("yarn", to=TRAINED), "auto", "changes nothing"),
        (Recipe.named("yarn", to=TRAINED - 1), "auto", "shorter than the 256"),
        (Recipe.named("yarn", factor=4, layers="global"), "auto", "no layers of type"),
        (Recipe.named("longrope", factor=2, long_factor=[1, 2]), "auto", "16 numbers"),
        (Recipe.named("p-rope", keep=0.5), "v4", "--dialect v5"),
    ],
    ids=lambda value: value.method if isinstance(value, Recipe) else value,
)
def test_refusals_of_the_recipe_write_nothing(
    recipe: Recipe, dialect: str, said: str, bare: Path
) -> None:
    assert said in refusal(bare, bare.parent / "out", recipe, dialect=dialect)


def test_a_truncated_shard_is_refused_before_anything_is_written(bare: Path) -> None:
    path = bare / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "download it again" in refusal(bare, bare.parent / "out")


def test_json_of_the_folder_is_plain(bare: Path) -> None:
    """Strict JSON: every reader takes it."""

    def never(word: str) -> None:
        raise AssertionError(word)

    for path in extended(bare).glob("*.json"):
        json.loads(path.read_text(encoding="utf-8"), parse_constant=never)
