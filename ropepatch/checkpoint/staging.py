"""Writing a folder so that it is there whole, or not at all.

Everything is written into a hidden folder beside the target and renamed at the end. A run that
was killed leaves such a folder, without its lock; the next run beside it sweeps it away.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ropepatch.errors import CheckpointError

_MARK = ".ropepatch-partial-"


def check_target(target: Path, source: Path) -> None:
    """Refuse a target that exists, or that lies inside the model's folder or around it.

    Raises:
        CheckpointError: as said.
    """
    place, model = Path(os.path.abspath(target)), source.resolve()
    real = place.parent.resolve() / place.name
    if model == real or model in real.parents:
        raise CheckpointError(
            f"the output {target} lies inside the model's own folder; choose another place."
        )
    if place.exists() or place.is_symlink():
        raise CheckpointError(f"{target} exists already; choose another --output or remove it.")


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder to fill; renamed to `target` on leaving, removed on any error.

    Raises:
        CheckpointError: the place cannot be written: read-only, full, no permission, ...
    """
    place = Path(os.path.abspath(target))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _sweep(place.parent)
        stage, lock = _locked_stage(place)
    except OSError as error:
        raise _unwritable(place.parent, error) from None
    try:
        stage.chmod(0o777 & ~_umask())
        try:
            yield stage
            _sync(stage)
            if place.exists():
                raise CheckpointError(f"{target} appeared meanwhile; nothing was written.")
            stage.rename(place)
            _sync(place.parent)
        except OSError as error:
            raise _unwritable(place, error) from None
    finally:
        if stage.exists():
            shutil.rmtree(stage, ignore_errors=True)
        os.close(lock)


def write_file(path: Path, text: str) -> None:
    """Write a text file and wait until it is on the disk."""
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def replace_file(path: Path, text: str) -> None:
    """Replace a file in one step; other hard links keep the old content."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(OSError):
            shutil.copymode(path, name)
        os.replace(name, path)
        _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _locked_stage(place: Path) -> tuple[Path, int]:
    """A new stage and the descriptor that holds its lock; locked before a sweep can see it."""
    fresh = Path(tempfile.mkdtemp(prefix=".ropepatch-new-", dir=place.parent))
    lock = os.open(fresh, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    serial = fresh.name.removeprefix(".ropepatch-new-")
    return fresh.rename(place.parent / f".{place.name[:200]}{_MARK}{serial}"), lock


def _sweep(parent: Path) -> None:
    """Remove stages of runs that were killed: nobody holds their lock."""
    for stale in parent.glob(f".*{_MARK}*"):
        with suppress(OSError):
            handle = os.open(stale, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(stale, ignore_errors=True)
            finally:
                os.close(handle)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(place: Path, error: OSError) -> CheckpointError:
    what = error.strerror or str(error)
    where = error.filename or place
    hint = {
        errno.ENOSPC: "free some space, or use --link on the model's own file system",
        errno.EDQUOT: "free some space, or use --link on the model's own file system",
        errno.EROFS: "choose an --output on a writable disk",
        errno.EACCES: "choose an --output you may write to",
        errno.ENAMETOOLONG: "choose a shorter --output",
    }.get(error.errno or 0, "nothing was left behind")
    return CheckpointError(f"cannot write {place}: {what} ({where}); {hint}.")
