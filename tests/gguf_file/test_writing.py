"""A file with other metadata: the same tensors, the same other keys, in the same order."""

import errno
import os
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import GGUFValueType as Kind

from ropepatch.errors import CheckpointError
from ropepatch.gguf_extending import extend_gguf, restore_gguf
from ropepatch.gguf_file.rotation import FREQS
from ropepatch.gguf_file.stamp import STAMP
from tests.gguf_file.made import (
    EXPRESSIBLE,
    LLAMA3,
    PAIRS,
    TRAINED,
    YARN,
    data_of,
    file_bytes,
    kinds,
    llama_entries,
    make_model,
    read,
    tensor,
    tensors_of,
)

ADDED = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}


@pytest.mark.parametrize("alignment", [32, 64, 4096])
@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_everything_else_stays(case: str, alignment: int, tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", alignment=alignment)
    before = source.read_bytes()
    done = extend_gguf(source, EXPRESSIBLE[case], tmp_path / "y.gguf")
    assert done.target == tmp_path / "y.gguf"
    assert source.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.gguf", "y.gguf"]

    old, new = read(source), read(done.target)
    changed = {k for k in new if new[k] != old.get(k)}
    assert changed == {*done.change.keys, STAMP}
    assert all(k == STAMP or k.startswith(("llama.rope.", "llama.context_")) for k in changed)
    assert list(new)[: len(old)] == list(old)
    assert list(new)[-1] == STAMP
    assert new["llama.context_length"] == done.change.target_length

    ours, theirs = tensors_of(done.target), tensors_of(source)
    assert {k: v for k, v in ours.items() if k not in ADDED} == theirs
    assert list(ours)[: len(theirs)] == list(theirs)
    assert set(ours) - set(theirs) == set(done.change.tensors)
    data = data_of(source)
    assert data_of(done.target)[: len(data)] == data
    if not done.change.tensors:
        assert data_of(done.target) == data

    one, other = gguf.GGUFReader(source), gguf.GGUFReader(done.target)
    assert other.alignment == alignment
    assert other.data_offset % alignment == 0
    assert (other.data_offset - one.data_offset) % 4096 == 0


@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_kinds_that_llama_cpp_demands(case: str, tmp_path: Path) -> None:
    """Its loader takes no other width for these."""
    done = extend_gguf(make_model(tmp_path / "x.gguf"), EXPRESSIBLE[case], tmp_path / "y.gguf")
    wanted = {
        "context_length": Kind.UINT32,
        "rope.scaling.original_context_length": Kind.UINT32,
        "rope.scaling.type": Kind.STRING,
        "rope.scaling.factor": Kind.FLOAT32,
        "rope.scaling.attn_factor": Kind.FLOAT32,
        "rope.freq_base": Kind.FLOAT32,
    }
    found = kinds(done.target)
    for key, wide in wanted.items():
        assert found.get(f"llama.{key}", wide) is wide
    assert {f"llama.{k}" for k in ("context_length", "rope.scaling.original_context_length")} <= (
        found.keys()
    )
    assert read(done.target)["llama.rope.scaling.original_context_length"] == TRAINED
    for name, (shape, kind, raw) in tensors_of(done.target).items():
        if name in ADDED:
            assert (shape, kind, len(raw)) == ([PAIRS], 0, 4 * PAIRS)


def test_tensors_are_contiguous(tmp_path: Path) -> None:
    """As llama.cpp wants it: each begins where the one before it ends, padded."""
    longrope = EXPRESSIBLE["longrope"]
    done = extend_gguf(make_model(tmp_path / "x.gguf"), longrope, tmp_path / "y.gguf")
    reader = gguf.GGUFReader(done.target)
    at = reader.data_offset
    for found in reader.tensors:
        assert found.data_offset == at
        at += found.n_bytes + -found.n_bytes % 32
    assert at - 32 < done.target.stat().st_size <= at


def test_other_widths_become_those_that_are_read(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", without=("context_length", "rope.freq_base"))
    with_wide = tmp_path / "wide.gguf"
    wide = gguf.GGUFWriter(str(with_wide), "llama")
    for key, value in {"embedding_length": 128, "attention.head_count": 2}.items():
        wide.add_uint32(f"llama.{key}", value)
    wide.add_uint64("llama.context_length", TRAINED)
    wide.add_float64("llama.rope.freq_base", 500000.0)
    wide.write_header_to_file()
    wide.write_kv_data_to_file()
    wide.write_tensors_to_file()
    wide.close()
    done = extend_gguf(with_wide, {"method": "ntk", "factor": 4}, tmp_path / "y.gguf")
    found = kinds(done.target)
    assert found["llama.context_length"] is Kind.UINT32
    assert found["llama.rope.freq_base"] is Kind.FLOAT32
    assert source.exists()


# --- how bytes travel -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM]
)
@pytest.mark.parametrize("words", [YARN, LLAMA3], ids=["keys", "and a tensor"])
def test_without_copy_file_range(
    words: dict[str, Any], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model(tmp_path / "x.gguf")
    extend_gguf(source, words, tmp_path / "y.gguf")
    calls = 0

    def refuse(*_: Any) -> int:
        nonlocal calls
        calls += 1
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    extend_gguf(source, words, tmp_path / "z.gguf")
    assert calls
    assert data_of(tmp_path / "z.gguf") == data_of(tmp_path / "y.gguf")
    assert tensors_of(tmp_path / "z.gguf") == tensors_of(tmp_path / "y.gguf")


@pytest.mark.parametrize("most", [1000, 0])
def test_short_steps(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may copy less than it was asked for, or nothing where it cannot."""
    source = make_model(tmp_path / "x.gguf")
    real = os.copy_file_range

    def little(one: int, other: int, count: int, *places: int) -> int:
        return real(one, other, min(count, most), *places) if most else 0

    monkeypatch.setattr(os, "copy_file_range", little)
    extend_gguf(source, YARN, tmp_path / "y.gguf")
    assert data_of(tmp_path / "y.gguf") == data_of(source)


def test_a_file_that_becomes_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_model(tmp_path / "x.gguf")
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    with pytest.raises(CheckpointError, match=r"became shorter while it was copied"):
        extend_gguf(source, YARN)
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_disk_that_knows_no_holes(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model(tmp_path / "x.gguf")

    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "lseek", refuse)
    extend_gguf(source, YARN, tmp_path / "y.gguf")
    assert data_of(tmp_path / "y.gguf") == data_of(source)


def test_steps_begin_at_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first, here and there: only so can a file system share what it copies."""
    size = 40 * 2**20
    head = file_bytes(*llama_entries(), tensors=(tensor("big", (size // 4,)),))
    with (tmp_path / "x.gguf").open("wb") as stream:
        stream.write(head)
        stream.truncate(len(head) + size)
    places: list[tuple[int, int]] = []
    real = os.copy_file_range

    def copy(one: int, other: int, count: int, at: int, to: int) -> int:
        places.append((at, to))
        return real(one, other, count, at, to)

    def no_holes(*_: Any) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "copy_file_range", copy)
    monkeypatch.setattr(os, "lseek", no_holes)
    extend_gguf(tmp_path / "x.gguf", YARN)
    assert len(places) > 2
    assert [(at % 4096, to % 4096) for at, to in places[1:]] == [(0, 0)] * (len(places) - 1)


# --- no place for a tensor --------------------------------------------------------------------


def test_bytes_behind_the_last_tensor(tmp_path: Path) -> None:
    """llama.cpp wants a new one right behind it; keys alone can change."""
    source = make_model(tmp_path / "x.gguf")
    with source.open("ab") as stream:
        stream.write(b"more" * 20)
    with pytest.raises(CheckpointError, match=r"has 80 bytes behind its last tensor"):
        extend_gguf(source, LLAMA3)
    target = extend_gguf(source, YARN).target
    assert data_of(target) == data_of(source)


def test_a_last_tensor_of_an_unknown_type(tmp_path: Path) -> None:
    """Newer than the gguf package; its size is not known here."""
    source = tmp_path / "x.gguf"
    listed = (tensor("odd", (32, 2), kind=500),)
    source.write_bytes(file_bytes(*llama_entries(), tensors=listed, data=bytes(range(64))))
    with pytest.raises(CheckpointError, match=r"odd is of a type \(500\) that the gguf package"):
        extend_gguf(source, LLAMA3)
    target = extend_gguf(source, YARN).target
    assert target.read_bytes()[-64:] == bytes(range(64))
    restore_gguf(target)
    assert target.read_bytes() == source.read_bytes()


# --- names ------------------------------------------------------------------------------------


def test_progress_ends_at_all(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    told: list[tuple[str, int, int]] = []
    extend_gguf(source, YARN, tmp_path / "y.gguf", progress=lambda *step: told.append(step))
    assert {name for name, _, _ in told} == {"x.gguf"}
    assert told[-1][1] == told[-1][2] == len(data_of(source))


def test_the_default_name(tmp_path: Path) -> None:
    source = make_model(tmp_path / "a model.gguf")
    assert extend_gguf(source, YARN).target == tmp_path / "a model-yarn-32k.gguf"
    assert FREQS not in tensors_of(tmp_path / "a model-yarn-32k.gguf")
