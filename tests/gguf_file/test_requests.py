"""Requests that mean nothing for a file, or for this one, are refused in one line."""

from pathlib import Path
from typing import Any

import pytest

from ropepatch.errors import (
    AlreadyScaledError,
    CheckpointError,
    ConfigError,
    GeometryError,
    NoEffectError,
    NotExpressibleError,
    RecipeError,
    RopepatchError,
)
from ropepatch.gguf_extending import extend_gguf, inspect_gguf, preview_gguf
from ropepatch.gguf_file.rotation import FREQS, LONG, SHORT
from tests.gguf_file.made import (
    LLAMA3,
    LONGROPE,
    NTK,
    PAIRS,
    TRAINED,
    YARN,
    make_model,
    one_line,
)

LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
ORIGINAL = {"rope.scaling.original_context_length": 2048}


def refused(
    source: Path, words: dict[str, Any], kind: type[RopepatchError], said: str, **more: Any
) -> None:
    with pytest.raises(kind, match=said) as caught:
        extend_gguf(source, words, **more)
    one_line(caught.value)
    assert [p.name for p in source.parent.iterdir()] == [source.name]


# --- already scaled ---------------------------------------------------------------------------

SCALED: list[tuple[dict[str, Any], dict[str, list[float]], str]] = [
    (LINEAR, {}, r"already scaled \(linear ×4\)"),
    ({"rope.scaling.factor": 4.0}, {}, r"already scaled \(linear ×4\)"),
    ({"rope.scale_linear": 4.0}, {}, r"already scaled \(linear ×4\)"),
    ({"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}, {}, r"\(yarn ×2\)"),
    ({"rope.scaling.attn_factor": 1.5}, {}, r"already scaled \(attn_factor 1.5\)"),
    ({}, {FREQS: [1.0] * 31 + [2.0]}, r"already scaled \(rope_freqs per pair\)"),
    (
        {"rope.scaling.type": "longrope"},
        {LONG: [2.0] * PAIRS, SHORT: [1.0] * PAIRS},
        r"already scaled \(rope_factors per pair\)",
    ),
]


@pytest.mark.parametrize(("keys", "tensors", "said"), SCALED)
def test_scaled_files(
    keys: dict[str, Any], tensors: dict[str, list[float]], said: str, tmp_path: Path
) -> None:
    source = make_model(tmp_path / "x.gguf", keys=keys, tensors=tensors)
    assert inspect_gguf(source).rotation.scaled
    refused(source, YARN, AlreadyScaledError, said)
    refused(source, YARN, ConfigError, r"say which with --trained-length", replace=True)
    told = YARN | {"trained_length": 2048}
    refused(source, told, AlreadyScaledError, said)
    done = extend_gguf(source, told, replace=True, dry_run=True)
    assert (done.change.geometry.trained_length, done.change.target_length) == (2048, 8192)

    known = make_model(tmp_path / "x.gguf", keys=keys | ORIGINAL, tensors=tensors)
    done = extend_gguf(known, YARN, replace=True, dry_run=True)
    assert (done.change.geometry.trained_length, done.change.target_length) == (2048, 8192)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 1.0},
        {"rope.scaling.factor": 1.0, "rope.scale_linear": 4.0},
        {"rope.scaling.factor": 0.0},
        {"rope.scaling.type": "linear"},
        {"rope.scaling.finetuned": True},
        {"rope.scaling.yarn_beta_fast": 8.0},
    ],
    ids=str,
)
def test_words_without_effect_are_plain(keys: dict[str, Any], tmp_path: Path) -> None:
    """As llama.cpp reads them: a factor of 0 is none, and the old key does not count beside it."""
    source = make_model(tmp_path / "x.gguf", keys=keys)
    assert not inspect_gguf(source).rotation.scaled
    assert extend_gguf(source, YARN).change.geometry.trained_length == TRAINED


def test_a_factor_of_zero_beside_the_old_key(tmp_path: Path) -> None:
    """llama.cpp takes the old key only where the new one is absent."""
    keys = {"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0}
    source = make_model(tmp_path / "x.gguf", keys=keys)
    assert not inspect_gguf(source).rotation.scaled


def test_our_own_extension(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    target = extend_gguf(source, YARN, tmp_path / "y.gguf").target
    with pytest.raises(AlreadyScaledError, match=r"already written 'yarn' into .*--replace"):
        extend_gguf(target, NTK)
    done = extend_gguf(target, NTK | {"factor": 2}, tmp_path / "z.gguf", replace=True)
    assert done.change.target_length == 2 * TRAINED  # not of the extended length
    shorter = YARN | {"trained_length": 4096}
    again = extend_gguf(target, shorter, tmp_path / "s.gguf", replace=True)
    assert again.change.target_length == 4 * 4096
    kept = extend_gguf(again.target, NTK, tmp_path / "t.gguf", replace=True)
    assert kept.change.geometry.trained_length == 4096


# --- what a file cannot say -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ({"method": "dynamic-ntk", "factor": 4}, NotExpressibleError, "follows the length"),
        ({"method": "dynamic-yarn", "factor": 4}, NotExpressibleError, "follows the length"),
        (YARN | {"short_exact": True}, NotExpressibleError, "short_exact and growth are for live"),
        (YARN | {"layers": "sliding_attention"}, NotExpressibleError, "all of them turn alike"),
        (YARN | {"factor": 1}, RecipeError, "factor 1 changes nothing"),
        ({"method": "yarn", "to": TRAINED}, NoEffectError, "factor 1 changes nothing"),
        ({"method": "yarn", "to": "4k"}, RecipeError, "shorter than the 8192"),
        ({"method": "yarn", "to": "32m"}, RecipeError, "beyond 16777216"),
        ({"method": "yarn", "factor": 4096}, RecipeError, "beyond 16777216"),
        (
            {"method": "longrope", "factor": 4, "long_factor": [2.0] * 31},
            GeometryError,
            "needs 32 numbers in long_factor",
        ),
        (
            LONGROPE | {"long_factor": [1.0] * 32, "short_factor": None, "attention_factor": 1.0},
            NoEffectError,
            "leaves every one of the 32 pairs as it is",
        ),
        ({"method": "p-rope", "factor": 2, "keep": 1.0}, NoEffectError, "leaves every one"),
    ],
    ids=lambda value: value["method"] if isinstance(value, dict) else "",
)
def test_refused(
    words: dict[str, Any], kind: type[RopepatchError], said: str, tmp_path: Path
) -> None:
    refused(make_model(tmp_path / "x.gguf"), words, kind, said)


def test_all_layers_is_no_more_than_what_happens(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    done = extend_gguf(source, YARN | {"layers": "all"})
    assert (
        done.change.draft.values.keys()
        == extend_gguf(source, YARN, tmp_path / "y.gguf").change.draft.values.keys()
    )


def test_a_base_change_of_its_own(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", keys={"rope.scaling.alpha": 1000.0})
    refused(source, YARN, NotExpressibleError, r"carries rope.scaling.alpha")


def test_no_recipe(tmp_path: Path) -> None:
    refused(make_model(tmp_path / "x.gguf"), "yarn", RecipeError, "a recipe, or a mapping")  # type: ignore[arg-type]  # what a caller may do


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        ("llama", YARN | {"attention_factor": 1e39}),
        ("mistral3", YARN | {"beta_fast": 1e39}),
        ("llama", LONGROPE | {"long_factor": [1e39] * PAIRS}),
    ],
)
def test_numbers_beyond_float32(arch: str, words: dict[str, Any], tmp_path: Path) -> None:
    refused(make_model(tmp_path / "x.gguf", arch), words, RopepatchError, ".")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([1.0] * 31, "has 31 per-pair factors, and 32 pairs turn"),
        ([1.0] * 64, "has 64 per-pair factors"),
        ([0.0] * 32, "not above 0"),
        ([-1.0] * 32, "not above 0"),
        ([float("nan")] * 32, "not above 0"),
        ([1.0] * (2**15 + 1), "is no row of float32 numbers"),
    ],
)
def test_factors_that_make_no_sense(row: list[float], said: str, tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", tensors={FREQS: row})
    refused(source, YARN, CheckpointError, said, replace=True)
    with pytest.raises(CheckpointError, match=said):
        inspect_gguf(source)


# --- where to ---------------------------------------------------------------------------------


def test_targets(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    refused(source, YARN, CheckpointError, r"must end in \.gguf", output=tmp_path / "folder")
    refused(source, YARN, CheckpointError, r"own folder|exists already", output=source)
    other = tmp_path / "y.gguf"
    other.write_bytes(b"mine")
    with pytest.raises(CheckpointError, match=r"exists already"):
        extend_gguf(source, LLAMA3, other)
    with pytest.raises(CheckpointError, match=r"exists already"):
        extend_gguf(source, LLAMA3, other, dry_run=True)
    assert other.read_bytes() == b"mine"
    other.unlink()
    other.symlink_to(tmp_path / "nowhere.gguf")
    with pytest.raises(CheckpointError, match=r"exists already"):
        extend_gguf(source, LLAMA3, other)


def test_a_target_in_folders_that_are_not_there_yet(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    extend_gguf(source, YARN, tmp_path / "a" / "b" / "y.gguf")
    assert (tmp_path / "a" / "b" / "y.gguf").is_file()


def test_previews(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", "qwen2")
    found = preview_gguf(inspect_gguf(source), ("yarn", "llama3"), 4)
    assert not isinstance(found["yarn"], str)
    assert found["yarn"].target_length == 4 * TRAINED
    assert "reads no per-pair factors" in str(found["llama3"])
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]
