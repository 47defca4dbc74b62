"""What the header of a GGUF file says: entries by key, and a list of tensors.

Source: the format's description in ggml's docs/gguf.md, versions 2 and 3.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFValueType,
)

FORMATS: Final[Mapping[GGUFValueType, str]] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.FLOAT64: "d",
    GGUFValueType.BOOL: "?",
}
"""struct's letters of the kinds of one fixed size."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key with its value, as bytes of the file."""

    key: str
    kind: GGUFValueType
    start: int
    """Of the whole entry in the file, bytes."""
    end: int
    raw: bytes | None
    """The value's bytes, without its kind; None for one that is too large to keep."""

    @property
    def value(self) -> Any:
        """A number, a truth, a text or a list of them; None where it was not kept."""
        return None if self.raw is None else decoded(self.kind, self.raw)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """What the header says of one tensor."""

    name: str
    shape: tuple[int, ...]
    """Elements, fastest first, as GGUF counts them."""
    kind: int
    """ggml's number of the element type."""
    offset: int
    """From the start of the data, bytes."""

    @property
    def size(self) -> int | None:
        """Bytes; None for an element type that the gguf package does not know."""
        try:
            block, width = GGML_QUANT_SIZES[GGMLQuantizationType(self.kind)]
        except (KeyError, ValueError):
            return None
        rows = math.prod(self.shape[1:])
        return rows * -(-self.shape[0] // block) * width if self.shape else width


@dataclass(frozen=True)
class Survey:
    """The header of a GGUF file."""

    path: Path
    version: int
    entries: tuple[Entry, ...]
    tensors: tuple[TensorEntry, ...]
    tensors_start: int
    """Where the list of tensors begins, bytes."""
    header_end: int
    """Where it ends; the data begin at the next multiple of the alignment."""
    alignment: int
    size: int
    """Of the file, bytes."""

    @property
    def data_start(self) -> int:
        """Where tensor data begin, bytes."""
        return aligned(self.header_end, self.alignment)

    @cached_property
    def keys(self) -> Mapping[str, Entry]:
        """Entries by key."""
        return {entry.key: entry for entry in self.entries}

    def value(self, key: str) -> Any:
        """What stands under a key; None where it is absent or too large to keep."""
        entry = self.keys.get(key)
        return None if entry is None else entry.value

    def tensor(self, name: str) -> TensorEntry | None:
        """The tensor called so, if there is one."""
        return next((t for t in self.tensors if t.name == name), None)


def aligned(offset: int, alignment: int) -> int:
    """The next multiple."""
    return -(-offset // alignment) * alignment


def decoded(kind: GGUFValueType, raw: bytes) -> Any:
    """A value from its bytes; texts that are not UTF-8 lose what they cannot say."""
    if kind is GGUFValueType.STRING:
        return raw[8:].decode("utf-8", "replace")
    if kind is not GGUFValueType.ARRAY:
        return struct.unpack("<" + FORMATS[kind], raw)[0]
    of, count = GGUFValueType(struct.unpack_from("<I", raw)[0]), struct.unpack_from("<Q", raw, 4)[0]
    if of is not GGUFValueType.STRING:
        return list(struct.unpack_from(f"<{count}{FORMATS[of]}", raw, 12))
    texts, at = [], 12
    for _ in range(count):
        length = struct.unpack_from("<Q", raw, at)[0]
        texts.append(raw[at + 8 : at + 8 + length].decode("utf-8", "replace"))
        at += 8 + length
    return texts
