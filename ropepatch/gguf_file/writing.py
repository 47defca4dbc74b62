"""Writing a changed header, and the tensor data behind it block by block.

Data that move by a multiple of a file system's block are shared with the original where the file
system can (copy_file_range does so on btrfs and XFS); holes of a sparse file stay holes.
"""

import errno
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from gguf.constants import GGUFValueType

from ropepatch.gguf_file.draft import Draft, Value
from ropepatch.gguf_file.survey import Entry, Survey, TensorEntry, aligned

Progress = Callable[[str, int, int], None]
"""Called with a file's name, bytes done and bytes in all."""

BLOCK = 4096
"""Bytes; what file systems share by."""
_STEP = 16 * 1024**2
_PIECE = 1024**2
_NO_RANGE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EBADF}


def header_pieces(draft: Draft) -> Iterator[bytes]:
    """The header up to where the data begin, a block at a time."""
    survey = draft.survey
    kept = [e for e in survey.entries if draft.values.get(e.key, e) is not None]
    fresh = {k: v for k, v in draft.values.items() if k not in survey.keys and v is not None}
    tensors = draft.tensors
    count = len(kept) + len(fresh)
    front = struct.pack("<4sIQQ", b"GGUF", survey.version, len(tensors), count)
    length = len(front)
    yield front
    with survey.path.open("rb") as stream:
        for entry in kept:
            new = draft.values.get(entry.key)
            pieces = _span(stream, entry) if new is None else [_entry_bytes(entry.key, new)]
            for piece in pieces:
                length += len(piece)
                yield piece
    for piece in (
        *(_entry_bytes(key, value) for key, value in fresh.items()),
        *(_tensor_bytes(tensor) for tensor in tensors),
    ):
        length += len(piece)
        yield piece
    zeros = b"\0" * (aligned(length, survey.alignment) - length)
    yield zeros if draft.padding is None else draft.padding


def header_size(draft: Draft) -> int:
    """Bytes, up to where the data begin."""
    return sum(len(piece) for piece in header_pieces(draft))


def header_hash(draft: Draft) -> str:
    """SHA-256 of the header, as it will be written."""
    digest = hashlib.sha256()
    for piece in header_pieces(draft):
        digest.update(piece)
    return digest.hexdigest()


def padding_of(survey: Survey) -> bytes:
    """What stands between the header and the data: zeros as a rule, less where there are none."""
    with survey.path.open("rb") as stream:
        stream.seek(survey.header_end)
        return stream.read(survey.data_start - survey.header_end)


def padded(draft: Draft, key: str) -> Draft:
    """The draft with spaces behind the text under `key`, so that data move by whole blocks."""
    value = draft.values[key]
    if value is None or value.kind is not GGUFValueType.STRING:
        raise ValueError(f"{key} is no text")
    # both places are multiples of the alignment, and so is what lies between them
    shift = (draft.survey.data_start - header_size(draft)) % BLOCK
    return draft.put({key: Value.of(GGUFValueType.STRING, value.value + " " * shift)})


def write(draft: Draft, target: Path, progress: Progress | None = None) -> None:
    """Write the changed file to a new path.

    Raises:
        OSError: the disk is full, read-only, ...
        CheckpointError: nothing can be added behind the last tensor.
    """
    places = {t.name: t for t in draft.survey.tensors}
    with draft.survey.path.open("rb") as reader, target.open("xb") as writer:
        start = sum(writer.write(piece) for piece in header_pieces(draft))
        writer.flush()
        name = draft.survey.path.name
        _carry(reader.fileno(), writer.fileno(), draft, start, progress, name)
        for tensor, raw in draft.overlaid.items():
            os.pwrite(writer.fileno(), raw, start + places[tensor].offset)
        for listed in draft.tensors[len(draft.tensors) - len(draft.added) :]:
            os.pwrite(writer.fileno(), draft.added[listed.name], start + listed.offset)


def _span(stream: BinaryIO, entry: Entry) -> Iterator[bytes]:
    """An entry as it stands in the file."""
    stream.seek(entry.start)
    left = entry.end - entry.start
    while left:
        piece = stream.read(min(left, _PIECE))
        if not piece:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        left -= len(piece)
        yield piece


def _carry(
    source: int, target: int, draft: Draft, at: int, progress: Progress | None, name: str
) -> None:
    """The data, from hole to hole."""
    start = draft.survey.data_start
    shift, end = at - start, start + draft.kept_size
    os.ftruncate(target, end + shift)
    place = start
    while place < end:
        place, stop = _next_data(source, place, end)
        while place < stop:
            # the first step ends at a block, so that the others can be shared
            step = min(_STEP - place % BLOCK, stop - place)
            place += _copy(source, target, place, place + shift, step)
            if progress is not None:
                progress(name, place - start, end - start)


def _next_data(source: int, place: int, end: int) -> tuple[int, int]:
    """Where data go on, and up to where, without holes."""
    try:
        begin = os.lseek(source, place, os.SEEK_DATA)
        stop = os.lseek(source, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            return end, end
        if error.errno in (errno.EINVAL, errno.ENOTSUP):  # no holes are known here
            return place, end
        raise
    return min(begin, end), min(stop, end)


def _copy(source: int, target: int, at: int, to: int, count: int) -> int:
    try:
        done = os.copy_file_range(source, target, count, at, to)
    except OSError as error:
        if error.errno not in _NO_RANGE:
            raise
        done = 0
    if done == 0:
        done = os.pwrite(target, os.pread(source, count, at), to)
    if done == 0:
        raise OSError(errno.EIO, "the file became shorter while it was copied")
    return done


def _entry_bytes(key: str, value: Value) -> bytes:
    return _text(key) + struct.pack("<I", int(value.kind)) + value.raw


def _tensor_bytes(tensor: TensorEntry) -> bytes:
    shape = tensor.shape
    return _text(tensor.name) + struct.pack(
        f"<I{len(shape)}QIQ", len(shape), *shape, tensor.kind, tensor.offset
    )


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
