"""What travels into an extended folder, and how; what stays behind."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ropepatch import extend
from ropepatch.checkpoint.folder import read_checkpoint
from tests import tiny
from tests.checkpoint.extending import OWN_CODE, RECORD, YARN, extended, inode, refusal
from tests.tiny import TRAINED, read_json, write_json

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
