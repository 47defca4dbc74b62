"""An extension is undone to the last byte of the file, whatever was there before."""

import os
from pathlib import Path
from typing import Any

import pytest

from ropepatch.gguf_extending import extend_gguf, inspect_gguf, restore_gguf
from ropepatch.gguf_file.rotation import FREQS, LONG, SHORT
from tests.gguf_file import by_ggml, made
from tests.gguf_file.made import (
    EXPRESSIBLE,
    LLAMA3,
    LONGROPE,
    NTK,
    PAIRS,
    TRAINED,
    YARN,
    make_model,
    read,
    tensors_of,
)

PROPE = EXPRESSIBLE["p-rope"]
PI = EXPRESSIBLE["pi"]
BETAS = EXPRESSIBLE["yarn, betas"]


@pytest.mark.parametrize("alignment", [32, 4096])
@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_every_method(case: str, alignment: int, tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", alignment=alignment)
    target = extend_gguf(source, EXPRESSIBLE[case]).target
    assert target.read_bytes() != source.read_bytes()
    assert restore_gguf(target) == EXPRESSIBLE[case]["method"]
    assert target.read_bytes() == source.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["x.gguf", target.name])


@pytest.mark.parametrize(
    "chain",
    [
        (YARN, LLAMA3, NTK),
        (LLAMA3, PROPE, YARN),
        (LLAMA3, LLAMA3 | {"factor": 8}, PI),
        (LONGROPE, LLAMA3, LONGROPE),
        (LONGROPE, YARN, NTK),
        (NTK, LONGROPE, BETAS),
        (BETAS, YARN | {"attention_factor": 1.0}, YARN, PROPE, LLAMA3),
    ],
    ids=lambda chain: " ".join(step["method"] for step in chain),
)
def test_one_in_place_of_another(chain: tuple[dict[str, Any], ...], tmp_path: Path) -> None:
    """What stands there before does not show: each is as if written into the original."""
    source = make_model(tmp_path / "x.gguf")
    last = source
    for number, words in enumerate(chain):
        last = extend_gguf(last, words, tmp_path / f"{number}.gguf", replace=number > 0).target
        alone = extend_gguf(source, words, tmp_path / f"{number} alone.gguf").target
        by_ggml.load(last)
        found, wanted = inspect_gguf(last), inspect_gguf(alone)
        assert found.rotation == wanted.rotation
        assert tensors_of(last) == tensors_of(alone)
        assert read(last).keys() == read(alone).keys()
    assert restore_gguf(last) == chain[-1]["method"]
    assert last.read_bytes() == source.read_bytes()


SCALED: dict[str, tuple[dict[str, Any], dict[str, list[float]]]] = {
    "linear": ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, {}),
    "factor alone": ({"rope.scaling.factor": 2.0}, {}),
    "legacy": ({"rope.scale_linear": 2.0}, {}),
    "yarn": (
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 2.0,
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.attn_factor": 0.9,
            "rope.scaling.finetuned": True,
        },
        {},
    ),
    "attention": ({"rope.scaling.attn_factor": 1.1}, {}),
    "llama3": ({}, {FREQS: [1.0] * 20 + [8.0] * 12}),
    "all ones": ({}, {FREQS: [1.0] * PAIRS}),
    "longrope": ({"rope.scaling.type": "longrope"}, {LONG: made.LONG, SHORT: made.SHORT}),
}


@pytest.mark.parametrize("words", [YARN, PI, NTK, LLAMA3, PROPE], ids=lambda w: str(w["method"]))
@pytest.mark.parametrize("case", SCALED)
def test_originals_that_are_scaled(case: str, words: dict[str, Any], tmp_path: Path) -> None:
    keys, tensors = SCALED[case]
    source = make_model(tmp_path / "x.gguf", keys=keys, tensors=tensors)
    asked = words | {"trained_length": 4096}
    done = extend_gguf(source, asked, replace=True)
    by_ggml.load(done.target)
    plain = make_model(tmp_path / "plain.gguf", keys={"context_length": 4096})
    alone = extend_gguf(plain, words).target
    for length in (4096, done.change.target_length):
        one = inspect_gguf(done.target).rotation.frequencies(length)
        other = inspect_gguf(alone).rotation.frequencies(length)
        assert one.inv_freq == pytest.approx(other.inv_freq, rel=1e-6)
        assert one.attention_factor == pytest.approx(other.attention_factor, rel=1e-6)
    restore_gguf(done.target)
    assert done.target.read_bytes() == source.read_bytes()


def test_longrope_over_longrope(tmp_path: Path) -> None:
    keys, tensors = SCALED["longrope"]
    source = make_model(tmp_path / "x.gguf", keys=keys, tensors=tensors)
    words = LONGROPE | {"long_factor": [3.0] * PAIRS, "trained_length": TRAINED}
    done = extend_gguf(source, words, replace=True)
    assert done.change.tensors == {LONG: "overwritten", SHORT: "overwritten"}
    assert inspect_gguf(done.target).rotation.long == (3.0,) * PAIRS
    again = extend_gguf(done.target, YARN, replace=True).target
    restore_gguf(again)
    assert again.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("words", [YARN, LLAMA3], ids=["keys", "and a tensor"])
def test_version_2(words: dict[str, Any], tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    content = bytearray(source.read_bytes())
    content[4] = 2
    source.write_bytes(content)
    target = extend_gguf(source, words).target
    assert target.read_bytes()[4] == 2
    restore_gguf(target)
    assert target.read_bytes() == content


@pytest.mark.parametrize("words", [YARN, LLAMA3], ids=["keys", "and a tensor"])
def test_without_padding_at_the_end(words: dict[str, Any], tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    with source.open("r+b") as stream:  # 68 bytes of weights and 28 of padding
        stream.truncate(source.stat().st_size - 28)
    target = extend_gguf(source, words).target
    restore_gguf(target)
    assert target.read_bytes() == source.read_bytes()


def test_bytes_behind_the_last_tensor(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    with source.open("ab") as stream:
        stream.write(b"more" * 20)
    target = extend_gguf(source, YARN).target
    restore_gguf(target)
    assert target.read_bytes() == source.read_bytes()


def bare(*, padded: bool) -> bytes:
    """A file without tensors, as of a vocabulary alone."""
    entries = made.llama_entries()
    whole = made.file_bytes(*entries)
    return whole if padded else made.file_bytes(*entries, alignment=1)


def test_without_tensors(tmp_path: Path) -> None:
    source = tmp_path / "x.gguf"
    source.write_bytes(bare(padded=True))
    for words in (YARN, {"method": "llama3", "factor": 4}):
        target = extend_gguf(source, words).target
        restore_gguf(target)
        assert target.read_bytes() == source.read_bytes()


def test_without_tensors_and_padding(tmp_path: Path) -> None:
    source = tmp_path / "x.gguf"
    source.write_bytes(bare(padded=False))
    assert source.stat().st_size % 32
    target = extend_gguf(source, YARN).target
    restore_gguf(target)
    assert target.read_bytes() == source.read_bytes()


def test_padding_that_is_not_zero(tmp_path: Path) -> None:
    """Before the data; nobody reads it, and it is part of the file."""
    source = make_model(tmp_path / "x.gguf", alignment=4096)
    content = bytearray(source.read_bytes())
    start = len(content) - len(made.data_of(source))
    content[start - 3 : start] = b"odd"
    source.write_bytes(content)
    target = extend_gguf(source, YARN).target
    restore_gguf(target)
    assert target.read_bytes() == content


# --- the file as a file -----------------------------------------------------------------------


def test_rights_stay_and_other_names_keep_the_extension(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    target = extend_gguf(source, YARN).target
    target.chmod(0o640)
    os.link(target, tmp_path / "other.gguf")
    extended = target.read_bytes()
    restore_gguf(target)
    assert target.stat().st_mode & 0o777 == 0o640
    assert target.read_bytes() == source.read_bytes()
    assert (tmp_path / "other.gguf").read_bytes() == extended


def test_weights_that_were_changed_since_stay(tmp_path: Path) -> None:
    """Only the header is put back."""
    source = make_model(tmp_path / "x.gguf")
    target = extend_gguf(source, YARN).target
    with target.open("r+b") as stream:
        stream.seek(-40, os.SEEK_END)
        stream.write(b"new weights!")
    restore_gguf(target)
    with source.open("r+b") as stream:
        stream.seek(-40, os.SEEK_END)
        stream.write(b"new weights!")
    assert target.read_bytes() == source.read_bytes()


def test_a_symbolic_link(tmp_path: Path) -> None:
    """It goes on pointing at the model, and the model is restored."""
    source = make_model(tmp_path / "x.gguf")
    target = extend_gguf(source, YARN).target
    link = tmp_path / "link.gguf"
    link.symlink_to(target)
    restore_gguf(link)
    assert link.is_symlink()
    assert target.read_bytes() == source.read_bytes()
