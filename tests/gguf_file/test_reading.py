"""What ropepatch reads in a GGUF header is what gguf's own reader finds there."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType as Kind

from ropepatch.gguf_file.reading import read_survey
from tests.gguf_file.made import array, entry, file_bytes, make_model, tensor, text

SCALARS: dict[Kind, tuple[str, list[Any]]] = {
    Kind.UINT8: ("B", [0, 255]),
    Kind.INT8: ("b", [-128, 127]),
    Kind.UINT16: ("H", [0, 65535]),
    Kind.INT16: ("h", [-32768, 32767]),
    Kind.UINT32: ("I", [0, 2**32 - 1]),
    Kind.INT32: ("i", [-(2**31), 2**31 - 1]),
    Kind.UINT64: ("Q", [0, 2**64 - 1]),
    Kind.INT64: ("q", [-(2**63), 2**63 - 1]),
    Kind.FLOAT32: ("f", [0.5, -3.25]),
    Kind.FLOAT64: ("d", [0.1, -1e300]),
    Kind.BOOL: ("?", [False, True]),
}
TEXTS = ["", "plain", "ünï – 水", "line\nline"]


def every_kind() -> tuple[list[bytes], dict[str, Any]]:
    parts, values = [], {}
    for kind, (letter, numbers) in SCALARS.items():
        for i, number in enumerate(numbers):
            key = f"a.{kind.name}.{i}"
            parts.append(entry(key, kind, struct.pack(f"<{letter}", number)))
            values[key] = number
        key = f"a.list.{kind.name}"
        packed = struct.pack(f"<{len(numbers)}{letter}", *numbers)
        parts.append(entry(key, Kind.ARRAY, array(kind, len(numbers), packed)))
        values[key] = numbers
    for i, words in enumerate(TEXTS):
        parts.append(entry(f"a.text.{i}", Kind.STRING, text(words)))
        values[f"a.text.{i}"] = words
    parts.append(entry("a.texts", Kind.ARRAY, array(Kind.STRING, 4, b"".join(map(text, TEXTS)))))
    values["a.texts"] = TEXTS
    for kind in (Kind.UINT8, Kind.STRING):
        parts.append(entry(f"a.empty.{kind.name}", Kind.ARRAY, array(kind, 0)))
        values[f"a.empty.{kind.name}"] = []
    return parts, values


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value(version: int, tmp_path: Path) -> None:
    parts, values = every_kind()
    listed = (tensor("one", (4, 2)), tensor("two", (32, 3), 32, kind=8), tensor("three", (1,), 160))
    data = np.random.default_rng(0).bytes(192)
    path = tmp_path / "x.gguf"
    path.write_bytes(file_bytes(*parts, tensors=listed, data=data, version=version))

    found = read_survey(path)
    assert found.version == version
    assert {e.key: e.value for e in found.entries} == values
    assert [e.key for e in found.entries] == list(values)

    reader = gguf.GGUFReader(path)
    theirs = {k: f for k, f in reader.fields.items() if k.startswith("a.")}
    assert {k: f.contents() for k, f in theirs.items()} == values
    assert {e.key: e.kind for e in found.entries} == {k: f.types[0] for k, f in theirs.items()}
    assert {e.key: e.start for e in found.entries} == {k: f.offset for k, f in theirs.items()}
    assert found.data_start == reader.data_offset
    assert [
        (t.name, list(t.shape), t.kind, t.size, found.data_start + t.offset) for t in found.tensors
    ] == [
        (t.name, t.shape.tolist(), t.tensor_type, t.n_bytes, t.data_offset) for t in reader.tensors
    ]


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_a_file_of_ggufs_own_writer(alignment: int, tmp_path: Path) -> None:
    path = make_model(tmp_path / "x.gguf", alignment=alignment)
    found, reader = read_survey(path), gguf.GGUFReader(path)
    for e in found.entries:
        assert e.value == reader.fields[e.key].contents()
    assert found.alignment == reader.alignment == alignment
    assert found.data_start == reader.data_offset
    assert found.size == path.stat().st_size
    assert [(t.name, t.size) for t in found.tensors] == [
        (t.name, t.n_bytes) for t in reader.tensors
    ]
    assert found.value("no.such.key") is None
    assert found.tensor("no.such.tensor") is None


def test_sizes_of_quantised_tensors(tmp_path: Path) -> None:
    """A row of any type ends at a whole block."""
    listed, at = [], 0
    for kind, (block, width) in gguf.GGML_QUANT_SIZES.items():
        listed.append(tensor(kind.name, (block * 2, 3, 2), at, int(kind)))
        at += width * 12 + (-width * 12) % 32
    path = tmp_path / "x.gguf"
    path.write_bytes(file_bytes(tensors=tuple(listed), data=bytes(at)))
    theirs = {t.name: int(t.n_bytes) for t in gguf.GGUFReader(path).tensors}
    assert {t.name: t.size for t in read_survey(path).tensors} == theirs


def test_large_values_are_passed_over(tmp_path: Path) -> None:
    size = 2**16
    path = tmp_path / "x.gguf"
    path.write_bytes(
        file_bytes(
            entry("kept", Kind.ARRAY, array(Kind.UINT8, size - 12, bytes(size - 12))),
            entry("large", Kind.ARRAY, array(Kind.UINT8, size, bytes(size))),
            entry("long", Kind.STRING, text("x" * size)),
            entry("after", Kind.UINT8, b"\7"),
        )
    )
    found = read_survey(path)
    assert found.value("kept") == [0] * (size - 12)
    assert found.value("large") is None
    assert found.value("long") is None
    assert found.value("after") == 7


def test_texts_that_are_not_utf8(tmp_path: Path) -> None:
    """Vocabularies of byte tokens hold them; only keys and names have to be UTF-8."""
    path = tmp_path / "x.gguf"
    path.write_bytes(file_bytes(entry("a", Kind.STRING, text(b"\xff\xfe!"))))
    assert read_survey(path).value("a") == "��!"
