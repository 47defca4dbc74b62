"""Writing a changed header, and the tensor data behind it block by block.

Data that move by a multiple of a file system's block are shared with the original where the file
system can (copy_file_range does so on btrfs and XFS); holes of a sparse file stay holes.
"""

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

from gguf.constants import GGUFValueType

from ropepatch.gguf_file.draft import Draft, Value
from ropepatch.gguf_file.survey import TensorEntry, aligned

Progress = Callable[[str, int, int], None]
"""Called with a file's name, bytes done and bytes in all."""

BLOCK = 4096
"""Bytes; what file systems share by."""
_STEP = 16 * 1024**2
_NO_RANGE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EBADF}


def header_bytes(draft: Draft) -> bytes:
    """The header up to where the data begin, zeros between included."""
    survey = draft.survey
    pieces: list[bytes] = []
    with survey.path.open("rb") as stream:
        count = 0
        for entry in survey.entries:
            if entry.key not in draft.values:
                stream.seek(entry.start)
                pieces.append(stream.read(entry.end - entry.start))
            elif (new := draft.values[entry.key]) is not None:
                pieces.append(_entry_bytes(entry.key, new))
            else:
                continue
            count += 1
    fresh = {k: v for k, v in draft.values.items() if k not in survey.keys and v is not None}
    pieces += [_entry_bytes(key, value) for key, value in fresh.items()]
    tensors = draft.tensors
    pieces += [_tensor_bytes(tensor) for tensor in tensors]
    front = struct.pack("<4sIQQ", b"GGUF", survey.version, len(tensors), count + len(fresh))
    header = front + b"".join(pieces)
    return header.ljust(aligned(len(header), survey.alignment), b"\0")


def padded(draft: Draft, key: str) -> Draft:
    """The draft with spaces behind the text under `key`, so that data move by whole blocks."""
    value = draft.values[key]
    if value is None or value.kind is not GGUFValueType.STRING:
        raise ValueError(f"{key} is no text")
    # both places are multiples of the alignment, and so is what lies between them
    shift = (draft.survey.data_start - len(header_bytes(draft))) % BLOCK
    return draft.put({key: Value.of(GGUFValueType.STRING, value.value + " " * shift)})


def write(draft: Draft, target: Path, progress: Progress | None = None) -> None:
    """Write the changed file to a new path.

    Raises:
        OSError: the disk is full, read-only, ...
        CheckpointError: nothing can be added behind the last tensor.
    """
    header = header_bytes(draft)
    places = {t.name: t for t in draft.survey.tensors}
    with draft.survey.path.open("rb") as reader, target.open("xb") as writer:
        writer.write(header)
        writer.flush()
        name = draft.survey.path.name
        _carry(reader.fileno(), writer.fileno(), draft, len(header), progress, name)
        for tensor, raw in draft.overlaid.items():
            os.pwrite(writer.fileno(), raw, len(header) + places[tensor].offset)
        for listed in draft.tensors[len(draft.tensors) - len(draft.added) :]:
            os.pwrite(writer.fileno(), draft.added[listed.name], len(header) + listed.offset)


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
