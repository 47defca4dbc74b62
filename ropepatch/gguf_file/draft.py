"""A GGUF header that is being changed: entries by key, tensors, and what is laid over the data.

Everything that is not changed stays a span of the file it came from, and is copied from there.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gguf.constants import GGMLQuantizationType, GGUFValueType

from ropepatch.errors import CheckpointError, RecipeError
from ropepatch.gguf_file.survey import FORMATS, Survey, TensorEntry, aligned, decoded

_LARGEST_FACTORS = 2**17
"""Bytes of a tensor of per-pair factors; the widest heads need 2^10."""
F32 = int(GGMLQuantizationType.F32)


@dataclass(frozen=True, slots=True)
class Value:
    """A value that is written anew."""

    kind: GGUFValueType
    raw: bytes

    @classmethod
    def of(cls, kind: GGUFValueType, value: Any) -> Self:
        """A number or a text, encoded."""
        if kind is GGUFValueType.STRING:
            text = str(value).encode()
            return cls(kind, struct.pack("<Q", len(text)) + text)
        try:
            return cls(kind, struct.pack("<" + FORMATS[kind], value))
        except OverflowError:
            raise RecipeError(f"{value:g} is beyond what 32 bits hold.") from None

    @property
    def value(self) -> Any:
        """As it will be read."""
        return decoded(self.kind, self.raw)


@dataclass(frozen=True)
class Draft:
    """A header with changes, over a file that stays as it is."""

    survey: Survey
    values: Mapping[str, Value | None] = field(default_factory=dict)
    """New values by key; None takes the key out. A new key comes last."""
    overlaid: Mapping[str, bytes] = field(default_factory=dict)
    """New bytes of tensors that are there already, of the same size."""
    added: Mapping[str, bytes] = field(default_factory=dict)
    """float32 numbers of tensors that are new, in one row."""
    dropped: frozenset[str] = frozenset()
    """Tensors that are taken out; they are the last ones of the file."""
    data_size: int | None = None
    """Bytes of data to keep of the file; None for all."""
    padding: bytes | None = None
    """What stands between the header and the data; None for zeros up to the alignment."""

    def has(self, tensor: str) -> bool:
        """Whether there will be a tensor of this name."""
        there = self.survey.tensor(tensor) is not None and tensor not in self.dropped
        return there or tensor in self.added

    def value(self, key: str) -> Any:
        """What will stand under a key; None where nothing will."""
        if key in self.values:
            new = self.values[key]
            return None if new is None else new.value
        return self.survey.value(key)

    def entry(self, key: str) -> Value | None:
        """The same with its kind, as bytes."""
        if key in self.values:
            return self.values[key]
        there = self.survey.keys.get(key)
        return None if there is None or there.raw is None else Value(there.kind, there.raw)

    def factors(self, tensor: str) -> tuple[float, ...] | None:
        """The numbers of a tensor of per-pair factors, as they will be.

        Raises:
            CheckpointError: it is not one row of float32.
        """
        raw = self.added.get(tensor, self.overlaid.get(tensor))
        entry = self.survey.tensor(tensor)
        if raw is None and entry is not None and tensor not in self.dropped:
            if entry.kind != F32 or (entry.size or 0) > _LARGEST_FACTORS:
                raise CheckpointError(f"the tensor {tensor} is no row of float32 numbers.")
            raw = self.original_bytes(entry)
        return None if raw is None else struct.unpack(f"<{len(raw) // 4}f", raw)

    def original_bytes(self, entry: TensorEntry) -> bytes:
        """What the file holds for a small tensor."""
        with self.survey.path.open("rb") as stream:
            stream.seek(self.survey.data_start + entry.offset)
            return stream.read(entry.size or 0)

    def put(self, values: Mapping[str, Value | None]) -> Self:
        """With more values."""
        return replace(self, values={**self.values, **values})

    def with_factors(self, tensor: str, numbers: tuple[float, ...]) -> Self:
        """With a tensor of per-pair factors, over the one that is there or added to the end."""
        try:
            raw = struct.pack(f"<{len(numbers)}f", *numbers)
        except OverflowError:
            raise RecipeError("a per-pair factor is beyond what 32 bits hold.") from None
        entry = self.survey.tensor(tensor)
        if entry is not None and tensor not in self.dropped:
            if entry.size != len(raw):
                raise CheckpointError(
                    f"the tensor {tensor} of {self.survey.path} has another size; it cannot be "
                    "written over."
                )
            return replace(self, overlaid={**self.overlaid, tensor: raw})
        return replace(self, added={**self.added, tensor: raw})

    @property
    def tensors(self) -> tuple[TensorEntry, ...]:
        """All that will be listed, the new ones last.

        Raises:
            CheckpointError: nothing can be added behind the last tensor.
        """
        kept = tuple(t for t in self.survey.tensors if t.name not in self.dropped)
        at = self.appended_at if self.added else 0
        new = []
        for name, raw in self.added.items():
            new.append(TensorEntry(name, (len(raw) // 4,), F32, at))
            at = aligned(at + len(raw), self.survey.alignment)
        return (*kept, *new)

    @property
    def kept_size(self) -> int:
        """Bytes of the file's data that stay."""
        there = max(0, self.survey.size - self.survey.data_start)
        return there if self.data_size is None else self.data_size

    @property
    def appended_at(self) -> int:
        """Where a new tensor begins: llama.cpp wants it right behind the last one.

        Raises:
            CheckpointError: the last one's size is unknown, or something else lies there.
        """
        end = 0
        for tensor in self.survey.tensors:
            if tensor.name not in self.dropped:
                if tensor.size is None:
                    raise CheckpointError(
                        f"the tensor {tensor.name} is of a type ({tensor.kind}) that the gguf "
                        "package does not know, so nothing can be added behind it."
                    )
                end = max(end, tensor.offset + tensor.size)
        at = aligned(end, self.survey.alignment)
        if self.kept_size > at:
            raise CheckpointError(
                f"{self.survey.path} has {self.kept_size - at:,} bytes behind its last tensor, so "
                "no tensor can be added."
            )
        return at
