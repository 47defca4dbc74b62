"""Files that are damaged or hostile: one line, no detour through memory."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType as Kind

from ropepatch.errors import CheckpointError
from ropepatch.gguf_extending import extend_gguf, inspect_gguf, restore_gguf
from ropepatch.gguf_file.reading import read_survey
from tests.gguf_file.made import (
    YARN,
    array,
    entry,
    file_bytes,
    llama_entries,
    one_line,
    tensor,
    text,
)

U8 = entry("a", Kind.UINT8, b"\0")
WHOLE = file_bytes(U8)
HUGE = 2**62
DATA = bytes(64)


def number(value: int) -> bytes:
    return struct.pack("<I", value)


def count(value: int) -> bytes:
    return struct.pack("<Q", value)


def listed(*tensors: bytes, data: bytes = DATA, **words: Any) -> bytes:
    return file_bytes(tensors=tensors, data=data, **words)


def alignment(kind: int, value: bytes) -> bytes:
    return file_bytes(entry("general.alignment", kind, value))


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not a GGUF file"),
    "short": (b"GG", "is not a GGUF file"),
    "magic": (b"GGML" + WHOLE[4:], "is not a GGUF file"),
    "a text": (b"{}" * 99, "is not a GGUF file"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is a big-endian GGUF file"),
    "version 0": (b"GGUF" + number(0) + bytes(64), "version 0 of GGUF"),
    "version 1": (b"GGUF" + number(1) + bytes(64), "version 1 of GGUF"),
    "version 4": (b"GGUF" + number(4) + bytes(64), "version 4 of GGUF"),
    "version 99": (b"GGUF" + number(99) + bytes(64), "version 99 of GGUF"),
    "entries": (file_bytes(U8, counts=(0, HUGE)), "metadata entries do not fit"),
    "one entry too many": (
        file_bytes(U8, U8[:13] + b"\0", counts=(0, 3)),
        "stands there twice|fit",
    ),
    "all entries": (file_bytes(U8, counts=(0, 2**64 - 1)), "metadata entries do not fit"),
    "tensors": (file_bytes(U8, counts=(HUGE, 1)), "tensors do not fit"),
    "all tensors": (file_bytes(U8, counts=(2**64 - 1, 1)), "tensors do not fit"),
    "text": (file_bytes(entry("a", Kind.STRING, count(HUGE) + b"x")), "the text of 'a' do not fit"),
    "numbers": (
        file_bytes(entry("a", Kind.ARRAY, array(Kind.UINT64, HUGE))),
        "values of 'a' do not fit",
    ),
    "bytes": (
        file_bytes(entry("a", Kind.ARRAY, array(Kind.UINT8, 2**64 - 1))),
        "values of 'a' do not fit",
    ),
    "texts": (
        file_bytes(entry("a", Kind.ARRAY, array(Kind.STRING, HUGE))),
        "texts of 'a' do not fit",
    ),
    "a text of many": (
        file_bytes(entry("a", Kind.ARRAY, array(Kind.STRING, 2, text("x") + count(HUGE)))),
        "a text of 'a' do not fit",
    ),
    "nested": (
        file_bytes(entry("a", Kind.ARRAY, array(Kind.ARRAY, 1, array(Kind.UINT8, 0)))),
        "'a' is a list of lists",
    ),
    "kind": (file_bytes(entry("a", 13, bytes(9))), "'a' is of an unknown kind, 13"),
    "kind of a list": (
        file_bytes(entry("a", Kind.ARRAY, array(77, 0))),
        "'a' is of an unknown kind, 77",
    ),
    "bool 7": (file_bytes(entry("a", Kind.BOOL, b"\7")), "'a' is neither true nor false"),
    "key": (file_bytes(entry(b"\xff\xfe", 0, b"\0")), "a key at byte 32 is not UTF-8"),
    "long key": (file_bytes(entry("k" * 65536, 0, b"\0")), "a key would be 65,536 bytes long"),
    "huge key": (file_bytes(count(HUGE) + bytes(16)), "a key would be .* bytes long"),
    "key twice": (file_bytes(U8, U8), "the key 'a' stands there twice"),
    "tensor twice": (listed(tensor("t"), tensor("t", (4,), 32)), "the tensor 't' stands there tw"),
    "tensor name": (listed(tensor(b"\xff")), "a tensor's name at byte .* is not UTF-8"),
    "dimensions": (listed(tensor("t", (1,) * 5)), "the tensor 't' has 5 dimensions"),
    "unaligned": (listed(tensor("t", (4,), 4)), "'t' begins at 4, which is no multiple"),
    "beyond": (listed(tensor("t", (4,), 64)), "'t' would end at byte"),
    "just beyond": (listed(tensor("t", (17,), 0)), "'t' would end at byte"),
    "far beyond": (listed(tensor("t", (4,), 2**63)), "'t' would end at byte"),
    "wraps": (listed(tensor("t", (4,), 2**64 - 32)), "'t' would end at byte"),
    "no type": (listed(tensor("t", (4,), 2**63, kind=999)), "'t' would end at byte"),
    "product": (listed(tensor("t", (2**32, 2**32))), "'t' would end at byte"),
    "product of 4": (listed(tensor("t", (2**62,) * 4)), "'t' would end at byte"),
    "no data": (listed(tensor("t"), data=b""), "'t' would end at byte"),
    "alignment 0": (alignment(Kind.UINT32, number(0)), "alignment must be a power of two"),
    "alignment 3": (alignment(Kind.UINT32, number(3)), "alignment must be a power of two"),
    "alignment in words": (alignment(Kind.STRING, text("32")), "alignment must be a power of two"),
    "alignment of 64": (alignment(Kind.UINT64, count(32)), "alignment must be a power of two"),
}


def refusal(path: Path) -> str:
    """The one line by which each of the three refuses, without much memory."""
    said = set()
    tracemalloc.start()
    for attempt in (read_survey, inspect_gguf, restore_gguf):
        with pytest.raises(CheckpointError) as caught:
            attempt(path)
        said.add(one_line(caught.value))
    with pytest.raises(CheckpointError) as caught:
        extend_gguf(path, YARN, dry_run=True)
    said.add(one_line(caught.value))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21
    (line,) = said
    return line


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files(case: str, tmp_path: Path) -> None:
    content, said = DAMAGED[case]
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    line = refusal(path)
    assert str(path) in line
    with pytest.raises(CheckpointError, match=said):
        read_survey(path)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


def test_cut_short_at_every_byte(tmp_path: Path) -> None:
    whole = file_bytes(
        *llama_entries(),
        entry("words", Kind.ARRAY, array(Kind.STRING, 2, text("one") + text("two"))),
        entry("numbers", Kind.ARRAY, array(Kind.FLOAT64, 2, bytes(16))),
        entry("yes", Kind.BOOL, b"\1"),
        tensors=(tensor("first", (4, 2)), tensor("last", (4,), 32)),
        data=bytes(48),
    )
    path = tmp_path / "x.gguf"
    path.write_bytes(whole)
    assert inspect_gguf(path).survey.size == len(whole)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        for attempt in (read_survey, lambda p: extend_gguf(p, YARN, dry_run=True)):
            with pytest.raises(CheckpointError) as caught:
                attempt(path)
            one_line(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.gguf", Path("/dev/null/x.gguf")):
        with pytest.raises(CheckpointError) as caught:
            read_survey(path)
        assert one_line(caught.value).startswith(f"{path}: ")


MEANINGLESS: dict[str, tuple[dict[str, bytes], str]] = {
    "no architecture": ({"general.architecture": b""}, "does not say its general.architecture"),
    "no length": ({"llama.context_length": b""}, "has no llama.context_length"),
    "length 0": (
        {"llama.context_length": number(Kind.UINT32) + number(0)},
        "has no llama.context_length",
    ),
    "length in words": (
        {"llama.context_length": number(Kind.STRING) + text("8k")},
        "llama.context_length must be a number, not '8k'",
    ),
    "length true": (
        {"llama.context_length": number(Kind.BOOL) + b"\1"},
        "llama.context_length must be a number, not True",
    ),
    "heads 0": (
        {"llama.attention.head_count": number(Kind.UINT32) + number(0)},
        "head_count must be a count, not 0",
    ),
    "more heads than width": (
        {"llama.attention.head_count": number(Kind.UINT32) + number(65)},
        "makes no pairs",
    ),
    "base nan": (
        {"llama.rope.freq_base": number(Kind.FLOAT32) + struct.pack("<f", float("nan"))},
        "llama.rope.freq_base is nan, which makes no sense",
    ),
    "base inf": (
        {"llama.rope.freq_base": number(Kind.FLOAT32) + struct.pack("<f", float("inf"))},
        "llama.rope.freq_base is inf, which makes no sense",
    ),
    "base negative": (
        {"llama.rope.freq_base": number(Kind.FLOAT32) + struct.pack("<f", -1.0)},
        "llama.rope.freq_base is -1, which makes no sense",
    ),
    "base 1": (
        {"llama.rope.freq_base": number(Kind.FLOAT32) + struct.pack("<f", 1.0)},
        "contradict themselves",
    ),
}


@pytest.mark.parametrize("case", MEANINGLESS)
def test_numbers_that_make_no_sense(case: str, tmp_path: Path) -> None:
    changed, said = MEANINGLESS[case]
    parts = []
    for part in llama_entries():
        length = struct.unpack_from("<Q", part)[0]
        key = part[8 : 8 + length].decode()
        if key not in changed:
            parts.append(part)
        elif changed[key]:
            parts.append(text(key) + changed[key])
    path = tmp_path / "x.gguf"
    path.write_bytes(file_bytes(*parts))
    with pytest.raises(CheckpointError, match=said) as caught:
        inspect_gguf(path)
    one_line(caught.value)
    with pytest.raises(CheckpointError, match=said):
        extend_gguf(path, YARN, dry_run=True)
