"""Reading the header of a GGUF file: every count is checked before anything is read by it.

gguf's own reader maps the whole file, makes an array of every string and follows any count it is
told. Here tensor data are never touched, and large values are passed over.
"""

import os
import struct
from pathlib import Path
from typing import BinaryIO

from gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGUFValueType

from ropepatch.errors import CheckpointError
from ropepatch.gguf_file.survey import FORMATS, Entry, Survey, TensorEntry

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_LONGEST_NAME = 2**16 - 1
"""Bytes of a key or of a tensor's name."""
_LARGEST_KEPT = 2**16
"""Bytes of a value that is kept; larger ones (vocabularies) are only passed over."""
_MOST_KEPT = 2**24
"""Bytes of all values that are kept."""
_LARGEST_ALIGNMENT = 2**20
_MOST_STRINGS = 2**23
"""In one array; the largest vocabularies have 2^20. They are walked one by one."""
_MOST_DIMENSIONS = 4


def read_survey(path: Path) -> Survey:
    """Read the header of a GGUF file.

    Raises:
        CheckpointError: it cannot be read, is no GGUF file or not whole, or says what cannot be.
    """
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: not a file.")
        with path.open("rb", buffering=2**18) as stream:
            return _Reader(stream, path).survey()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}.") from None
    except _Damaged as damage:
        raise CheckpointError(f"{path} is damaged or cut short: {damage}.") from None


class _Damaged(Exception):
    """What is wrong with a file, in words."""


class _Reader:
    """A place in a file, which no count can push past the end."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path = stream, path
        self._size = os.fstat(stream.fileno()).st_size
        self._at = 0
        self._room = _MOST_KEPT

    def survey(self) -> Survey:
        version = self._version()
        tensor_count, entry_count = self._number("Q"), self._number("Q")
        self._affordable(entry_count, 13, "metadata entries")
        entries: dict[str, Entry] = {}
        for _ in range(entry_count):
            entry = self._entry()
            if entry.key in entries:
                raise _Damaged(f"the key {entry.key!r} stands there twice")
            entries[entry.key] = entry
        start = self._at
        self._affordable(tensor_count, 24, "tensors")
        alignment = _alignment(entries.get("general.alignment"))
        tensors: dict[str, TensorEntry] = {}
        for _ in range(tensor_count):
            tensor = self._tensor()
            if tensor.name in tensors:
                raise _Damaged(f"the tensor {tensor.name!r} stands there twice")
            tensors[tensor.name] = tensor
        found = Survey(
            self._path,
            version,
            tuple(entries.values()),
            tuple(tensors.values()),
            start,
            self._at,
            alignment,
            self._size,
        )
        _check_places(found)
        return found

    def _version(self) -> int:
        if self._bytes(min(4, self._size)) != _MAGIC:
            raise CheckpointError(f"{self._path} is not a GGUF file.")
        version = self._number("I")
        if version and version & 0xFFFF == 0:
            raise CheckpointError(
                f"{self._path} is a big-endian GGUF file; convert it with gguf's "
                "gguf_convert_endian first."
            )
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{self._path} is of version {version} of GGUF; ropepatch reads 2 and 3."
            )
        return version

    def _entry(self) -> Entry:
        start = self._at
        key = self._name("a key")
        kind = self._kind(key)
        value = self._at
        self._pass_over(kind, key)
        end = self._at
        raw = None
        if end - value <= min(_LARGEST_KEPT, self._room):
            self._room -= end - value
            self._seek(value)
            raw = self._bytes(end - value)
        return Entry(key, kind, start, end, raw)

    def _kind(self, key: str) -> GGUFValueType:
        number = self._number("I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise _Damaged(f"the value of {key!r} is of an unknown kind, {number}") from None

    def _pass_over(self, kind: GGUFValueType, key: str) -> None:
        if kind is GGUFValueType.STRING:
            self._skip(self._number("Q"), f"the text of {key!r}")
        elif kind is GGUFValueType.ARRAY:
            self._pass_over_array(key)
        elif kind is GGUFValueType.BOOL:
            if self._bytes(1) not in (b"\0", b"\1"):
                raise _Damaged(f"the value of {key!r} is neither true nor false")
        else:
            self._skip(struct.calcsize("<" + FORMATS[kind]), f"the value of {key!r}")

    def _pass_over_array(self, key: str) -> None:
        of, count = self._kind(key), self._number("Q")
        if of is GGUFValueType.ARRAY:
            raise _Damaged(f"the value of {key!r} is a list of lists, which nobody reads")
        if of is not GGUFValueType.STRING:
            width = struct.calcsize("<" + FORMATS[of])
            self._affordable(count, width, f"values of {key!r}")
            self._skip(count * width, f"the values of {key!r}")
            return
        self._affordable(count, 8, f"texts of {key!r}")
        if count > _MOST_STRINGS:
            raise _Damaged(f"{count:,} texts of {key!r} are more than any vocabulary has")
        for _ in range(count):
            self._skip(self._number("Q"), f"a text of {key!r}")

    def _tensor(self) -> TensorEntry:
        name = self._name("a tensor's name")
        dimensions = self._number("I")
        if dimensions > _MOST_DIMENSIONS:
            raise _Damaged(f"the tensor {name!r} has {dimensions:,} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        kind, offset = self._number("I"), self._number("Q")
        return TensorEntry(name, shape, kind, offset)

    def _name(self, what: str) -> str:
        length = self._number("Q")
        if length > _LONGEST_NAME:
            raise _Damaged(f"{what} would be {length:,} bytes long")
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError:
            raise _Damaged(f"{what} at byte {self._at - length:,} is not UTF-8") from None

    def _number(self, letter: str) -> int:
        form = "<" + letter
        value: int = struct.unpack(form, self._bytes(struct.calcsize(form)))[0]
        return value

    def _bytes(self, count: int) -> bytes:
        self._affordable(count, 1, "bytes")
        read = self._stream.read(count)
        if len(read) != count:
            raise _Damaged("it became shorter while it was read")
        self._at += count
        return read

    def _skip(self, count: int, what: str) -> None:
        self._affordable(count, 1, f"bytes for {what}")
        if count <= 4096:  # within the buffer, as a rule
            self._bytes(count)
        else:
            self._seek(self._at + count)

    def _seek(self, place: int) -> None:
        self._stream.seek(place)
        self._at = place

    def _affordable(self, count: int, width: int, what: str) -> None:
        left = self._size - self._at
        if count * width > left:
            raise _Damaged(f"{count:,} {what} do not fit in the {left:,} bytes that are left")


def _alignment(entry: Entry | None) -> int:
    if entry is None:
        return GGUF_DEFAULT_ALIGNMENT
    value = entry.value
    fits = entry.kind is GGUFValueType.UINT32 and 0 < value <= _LARGEST_ALIGNMENT
    if not fits or value & (value - 1):
        raise _Damaged(f"general.alignment must be a power of two up to 2^20, not {value!r}")
    return int(value)


def _check_places(found: Survey) -> None:
    """Every tensor lies inside the file, at a multiple of the alignment."""
    room = found.size - found.data_start
    for tensor in found.tensors:
        if tensor.offset % found.alignment:
            raise _Damaged(
                f"the tensor {tensor.name!r} begins at {tensor.offset:,}, which is no multiple of "
                f"the alignment {found.alignment:,}"
            )
        size = tensor.size or 0
        if tensor.offset + size > max(room, 0):
            raise _Damaged(
                f"the tensor {tensor.name!r} would end at byte "
                f"{found.data_start + tensor.offset + size:,}, and the file has {found.size:,}"
            )
