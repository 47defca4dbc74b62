"""Carrying a file from one folder to another without reading what it says."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ropepatch.errors import CheckpointError

How = Literal["auto", "link", "copy"]
Carried = Literal["hard link", "reflink", "copy"]
Progress = Callable[[str, int, int], None]
"""Called with a file's name, bytes done and bytes in all."""

_FICLONE = 0x40049409
_BLOCK = 16 * 1024**2
_CANNOT_LINK = {
    errno.EXDEV,
    errno.EPERM,
    errno.EMLINK,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.EACCES,
}


def carry(source: Path, target: Path, how: How, progress: Progress | None = None) -> Carried:
    """Make `target` hold what `source` holds; symlinks are followed first.

    "auto" and "link" take a hard link where the file system allows, then a reflink; "auto" falls
    back on a copy, "copy" never shares an inode (a reflink shares blocks until written).

    Raises:
        CheckpointError: "link" where neither kind of link is possible.
        OSError: the disk is full, read-only, ...
    """
    real = source.resolve(strict=True)
    if how != "copy":
        try:
            os.link(real, target)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
        else:
            return "hard link"
    if _reflink(real, target):
        return "reflink"
    if how == "link":
        raise CheckpointError(
            f"{target.parent.parent} cannot share {source.name} with {real.parent} by a link "
            "(another file system?); use --copy."
        )
    _copy(real, target, progress)
    return "copy"


def _reflink(source: Path, target: Path) -> bool:
    with source.open("rb") as reader, target.open("xb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            done = False
        else:
            done = True
    if not done:
        target.unlink()
    return done


def _copy(source: Path, target: Path, progress: Progress | None) -> None:
    total, done = source.stat().st_size, 0
    with source.open("rb") as reader, target.open("xb") as writer:
        while block := reader.read(_BLOCK):
            writer.write(block)
            done += len(block)
            if progress is not None:
                progress(source.name, done, total)
