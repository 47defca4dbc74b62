"""What lies in a folder, and what is wrong with it: each fault by name, on one line."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from ropepatch import Recipe, extend, inspect, verify
from ropepatch.checkpoint.folder import read_checkpoint, read_config
from ropepatch.checkpoint.shards import check_shard
from ropepatch.checkpoint.source import find_source
from ropepatch.errors import CheckpointError, ConfigError, RopepatchError
from tests import tiny
from tests.tiny import write_json

INDEX = "model.safetensors.index.json"


def refusal(folder: Path) -> str:
    """The one line by which `read_checkpoint` refuses."""
    with pytest.raises(RopepatchError) as caught:
        read_checkpoint(folder)
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    return said


# --- the folder -------------------------------------------------------------------------------


def test_a_whole_folder(bare: Path) -> None:
    write_json(bare / "tokenizer_config.json", {})
    (bare / "chat_template.jinja").write_text("{{ x }}", encoding="utf-8")
    (bare / ".gitattributes").write_text("*", encoding="utf-8")
    found = read_checkpoint(bare)
    assert found.weights == ("model.safetensors",)
    assert not found.pickled
    assert found.others == ("chat_template.jinja", "config.json", "tokenizer_config.json")
    assert found.config == tiny.V5
    assert found.left_behind == found.code == ()
    assert found.weight_bytes() == len(tiny.safetensors_bytes())


def test_real_folders(llama_folder: Path, sharded_folder: Path, pickled_folder: Path) -> None:
    assert read_checkpoint(llama_folder).weights == ("model.safetensors",)
    shards = read_checkpoint(sharded_folder).weights
    assert len(shards) > 2
    assert shards == tuple(sorted(p.name for p in sharded_folder.glob("*.safetensors")))
    pickled = read_checkpoint(pickled_folder)
    assert pickled.weights == ("pytorch_model.bin",)
    assert pickled.pickled


@pytest.mark.parametrize("read", [read_checkpoint, read_config, inspect, verify])
def test_missing_folder(read: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere does not exist"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("read", [read_checkpoint, inspect, verify])
def test_a_file_is_no_folder(read: Any, bare: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a folder"):
        read(bare / "model.safetensors")


def test_a_name_too_long_for_the_disk() -> None:
    for read in (find_source, inspect, verify):
        with pytest.raises(CheckpointError, match=r"File name too long|does not exist"):
            read("x" * 5000)


def test_a_home_nobody_has() -> None:
    with pytest.raises(CheckpointError, match=r"~nobody-of-this-name"):
        find_source("~nobody-of-this-name/model")


def test_adapter_folder(tmp_path: Path) -> None:
    write_json(tmp_path / "adapter_config.json", {"base_model_name_or_path": "x"})
    assert "PEFT adapter" in refusal(tmp_path)


def test_a_link_to_nothing(bare: Path) -> None:
    (bare / "tokenizer.json").symlink_to(bare / "blobs" / "gone")
    assert "tokenizer.json is a link to nothing" in refusal(bare)


@pytest.mark.usefixtures("powerless")
@pytest.mark.parametrize("read", [find_source, read_checkpoint, inspect, verify])
def test_a_folder_that_may_not_be_entered(read: Any, locked: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Permission denied"):
        read(locked / "model")


# --- config.json ------------------------------------------------------------------------------


def test_no_config(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(tmp_path)


def test_config_that_is_a_folder(bare: Path) -> None:
    (bare / "config.json").unlink()
    (bare / "config.json").mkdir()
    assert "has no config.json" in refusal(bare)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\t ", "is empty"),
        (json.dumps(tiny.V5).encode()[:-40], "is not JSON (line 1)"),
        (b"model_type: llama", "is not JSON (line 1)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "is not JSON"),
        (b"<!doctype html><title>404</title>", "is not JSON"),
        (b"[]", "holds no JSON object"),
        (b'"llama"', "holds no JSON object"),
        (b"null", "holds no JSON object"),
        (b"\0" * 400, "is not JSON"),
        (b'{"model_type": "llama\0"}', "is not JSON"),
        (b'{"model_type": "ll\xe4ma"}', "is not UTF-8"),
        ('{"model_type": "llama"}'.encode("utf-16"), "is not UTF-8"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b'{"a":' * 200_000, "is not JSON"),
        (b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}", "nested more than 64 levels"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
    ids=lambda value: repr(value)[:24] if isinstance(value, bytes) else None,
)
def test_damaged_config(content: bytes, said: str, bare: Path) -> None:
    (bare / "config.json").write_bytes(content)
    assert said in refusal(bare)
    with pytest.raises(ConfigError):
        inspect(bare)


def test_absurdly_large_config(bare: Path) -> None:
    with (bare / "config.json").open("r+b") as file:
        file.truncate(2**30)  # sparse
    assert "is larger than any config.json" in refusal(bare)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "n_positions": 1024, "n_embd": 64, "n_layer": 2, "n_head": 2},
        {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2},
    ],
    ids=lambda config: config["model_type"],
)
def test_models_without_rotation(config: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "model", config)
    for attempt in (
        lambda: inspect(folder),
        lambda: extend(folder, Recipe.named("yarn", factor=4), tmp_path / "out"),
    ):
        with pytest.raises(ConfigError, match=r"no rotary position embeddings"):
            attempt()
    assert not (tmp_path / "out").exists()


# --- the index --------------------------------------------------------------------------------


def test_no_weights(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", tiny.V5)
    assert "has no weights" in refusal(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "consolidated.safetensors").write_bytes(tiny.safetensors_bytes())
    assert "has no weights" in refusal(tmp_path)


def test_safetensors_go_before_bin(bare: Path) -> None:
    (bare / "pytorch_model.bin").write_bytes(b"pickle")
    write_json(bare / "pytorch_model.bin.index.json", {"weight_map": {"a": "x.bin"}})
    found = read_checkpoint(bare)
    assert found.weights == ("model.safetensors",)
    assert found.left_behind == ("pytorch_model.bin", "pytorch_model.bin.index.json")


def test_shards_in_a_folder_of_their_own(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", tiny.V5)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "a.safetensors").write_bytes(tiny.safetensors_bytes())
    write_json(tmp_path / INDEX, {"weight_map": {"a": "weights/a.safetensors"}})
    assert read_checkpoint(tmp_path).weights == ("weights/a.safetensors",)


def test_missing_shards(tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    said = refusal(folder)
    assert "names model-00002-of-00003.safetensors, which the folder lacks" in said
    (folder / "model-00003-of-00003.safetensors").unlink()
    assert "and 1 more" in refusal(folder)


@pytest.mark.parametrize(
    "shard",
    [
        "../secret.safetensors",
        "a/../../secret.safetensors",
        "/etc/secret.safetensors",
        "..\\secret.safetensors",
        "C:\\secret.safetensors",
    ],
)
def test_shards_outside_the_folder(shard: str, tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(tiny.safetensors_bytes())
    folder = tiny.bare_checkpoint(tmp_path / "model", shards=2)
    write_json(folder / INDEX, {"weight_map": {"a": shard}})
    assert "outside the folder; not followed" in refusal(folder)
    with pytest.raises(CheckpointError, match=r"outside the folder"):
        extend(folder, Recipe.named("yarn", factor=4), tmp_path / "out", verify=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "shard",
    ["config.json", "README.md", INDEX, "x.bin", "", ".", "./a.safetensors", "a\0.safetensors"],
)
def test_shards_that_are_no_weights(shard: str, tmp_path: Path) -> None:
    """A config "carried" as a shard would be written through its hard link."""
    folder = tiny.bare_checkpoint(tmp_path, shards=2)
    write_json(folder / INDEX, {"weight_map": {"a": shard}})
    assert "which is no .safetensors file" in refusal(folder)


def test_a_config_among_pickled_shards(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", tiny.V5)
    (tmp_path / "a.bin").write_bytes(b"pickle")
    shards = {"weight_map": {"a": "a.bin", "b": "config.json"}}
    write_json(tmp_path / "pytorch_model.bin.index.json", shards)
    assert "names 'config.json', which is no .bin file" in refusal(tmp_path)


@pytest.mark.parametrize(
    "index",
    [{}, {"weight_map": {}}, {"weight_map": None}, {"weight_map": ["a"]}, {"weight_map": 7}],
    ids=str,
)
def test_an_index_without_a_map(index: Any, tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path, shards=2)
    write_json(folder / INDEX, index)
    assert "has no weight_map" in refusal(folder)


@pytest.mark.parametrize("shard", [None, 7, ["a"], {"a": 1}], ids=str)
def test_an_index_with_other_things_than_names(shard: Any, tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path, shards=2)
    write_json(folder / INDEX, {"weight_map": {"a": shard}})
    assert "which is no .safetensors file" in refusal(folder)


def test_a_truncated_index(tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path, shards=2)
    text = (folder / INDEX).read_text(encoding="utf-8")
    (folder / INDEX).write_text(text[: len(text) // 2], encoding="utf-8")
    assert f"{INDEX} is not JSON" in refusal(folder)


# --- the shards -------------------------------------------------------------------------------


def header(value: Any) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<Q", len(text)) + text


TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a safetensors file, or is truncated"),
        (b"\0\0\0", "is not a safetensors file, or is truncated"),
        (tiny.safetensors_bytes()[:20], "is not a safetensors file, or is truncated"),
        (tiny.safetensors_bytes()[:-1], "holds 147 bytes but its header announces 148"),
        (tiny.safetensors_bytes() + b"\0", "holds 149 bytes but its header announces 148"),
        (struct.pack("<Q", 2**63) + bytes(64), "is not a safetensors file, or is truncated"),
        (struct.pack("<Q", 2**64 - 1) + bytes(64), "is not a safetensors file, or is truncated"),
        (struct.pack("<Q", 0) + bytes(64), "has a damaged safetensors header"),
        (header(b"\xff" * 40), "has a damaged safetensors header"),
        (header(b"{" + b" " * 40), "has a damaged safetensors header"),
        (header(b"[" * 100_000), "has a damaged safetensors header"),
        (header([]), "has a damaged safetensors header"),
        (header({"a": 7}), "has a damaged safetensors header"),
        (header({"a": {"dtype": "F32"}}), "has a damaged safetensors header"),
        (header({"a": {"data_offsets": 4}}), "has a damaged safetensors header"),
        (header({"a": {"data_offsets": [0]}}), "has a damaged safetensors header"),
        (header({"a": {"data_offsets": [0, "4"]}}), "has a damaged safetensors header"),
        (header({"a": TENSOR}), "holds"),
        (header({"a": {"data_offsets": [0, -4]}}) + bytes(4), "holds"),
        (header({"a": {"data_offsets": [0, 1e300]}}) + bytes(4), "holds"),
        (b"PK\x03\x04" + bytes(60), "is not a safetensors file, or is truncated"),
    ],
)
def test_damaged_shards(content: bytes, said: str, bare: Path) -> None:
    (bare / "model.safetensors").write_bytes(content)
    assert said in refusal(bare)


@pytest.mark.parametrize(
    "content",
    [
        tiny.safetensors_bytes(),
        header({}),
        header({"__metadata__": {"format": "pt"}, "a": TENSOR}) + bytes(4),
        header({"empty": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
    ],
)
def test_whole_shards(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    check_shard(tmp_path / "a.safetensors")


def test_shards_of_transformers(sharded_folder: Path) -> None:
    for path in sharded_folder.glob("*.safetensors"):
        check_shard(path)


def test_pickles_are_not_opened(bare: Path) -> None:
    (bare / "model.safetensors").unlink()
    (bare / "pytorch_model.bin").write_bytes(b"\x80\x04garbage")
    assert read_checkpoint(bare).pickled


# --- the fingerprint --------------------------------------------------------------------------


def test_fingerprint(tmp_path: Path) -> None:
    first = tiny.bare_checkpoint(tmp_path / "a", shards=2)
    second = tiny.bare_checkpoint(tmp_path / "b", shards=2)
    (second / "README.md").write_text("a card says nothing of the model", encoding="utf-8")
    same = read_checkpoint(first).fingerprint()
    assert read_checkpoint(first).fingerprint() == same
    assert read_checkpoint(second).fingerprint() == same
    assert len(same) == 64

    shard = second / "model-00001-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(tiny.safetensors_bytes(17, "part.0"))
    assert read_checkpoint(second).fingerprint() != same
    shard.write_bytes(tiny.safetensors_bytes(16, "part.x"))
    assert read_checkpoint(second).fingerprint() != same
    shard.write_bytes(whole)
    assert read_checkpoint(second).fingerprint() == same
    write_json(second / "config.json", tiny.V5 | {"hidden_size": 96})
    assert read_checkpoint(second).fingerprint() != same


# --- ids of the hub ---------------------------------------------------------------------------


def test_a_revision_of_a_local_folder(bare: Path) -> None:
    with pytest.raises(CheckpointError, match=r"--revision is for models of the hub"):
        find_source(str(bare), "main")


@pytest.mark.parametrize(
    "model", ["no such", "./nowhere", "a/b/c", "nowhere/model.gguf", "x/config.json", "-x", ""]
)
def test_words_that_are_no_id(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    if not model:
        assert find_source(model).folder == Path()
        return
    with pytest.raises(CheckpointError, match=r"does not exist"):
        find_source(model)
