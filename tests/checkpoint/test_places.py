"""Where an extended folder may lie, and what is refused before its first byte."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ropepatch import Recipe, extend
from tests import tiny
from tests.checkpoint.extending import RECORD, YARN, extended, refusal
from tests.tiny import TRAINED, tree

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
