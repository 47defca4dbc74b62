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
    try:
        real = place.parent.resolve() / place.name
        if model == real or model in real.parents:
            raise CheckpointError(
                f"the output {target} lies inside the model's own folder; choose another place."
            )
        if place.is_symlink() or place.exists():
            raise CheckpointError(f"{target} exists already; choose another --output or remove it.")
    except (OSError, RuntimeError) as error:  # too long a name, no permission, a circle of links
        raise _unwritable(place, error) from None


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder to fill; renamed to `target` on leaving, removed on any error.

    Raises:
        CheckpointError: the place cannot be written: read-only, full, no permission, ...
    """
    place = Path(os.path.abspath(target))
    try:
        with _stage_beside(place) as stage:
            yield stage
            _sync_tree(stage)
            if place.is_symlink() or place.exists():
                raise CheckpointError(f"{target} appeared meanwhile; nothing was written.")
            stage.rename(place)
            _sync(place.parent)
    except OSError as error:
        raise _unwritable(place, error) from None


@contextmanager
def staged_file(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """A path to write one file to; it becomes `target` on leaving, and goes on any error.

    Args:
        target: The file to be.
        replace: Whether it may stand there already; other hard links then keep the old content.

    Raises:
        CheckpointError: the place cannot be written: read-only, full, no permission, ...
    """
    place = Path(os.path.abspath(target))
    try:
        with _stage_beside(place) as stage:
            file = stage / "file"
            yield file
            _sync(file)
            if replace:
                shutil.copymode(place, file)
                os.replace(file, place)
            else:
                _take_name(file, place, target)
            _sync(place.parent)
    except OSError as error:
        raise _unwritable(place, error, hints=not replace, links=False) from None


def _take_name(file: Path, place: Path, target: Path) -> None:
    try:
        os.link(file, place)  # unlike a rename, never over another file
    except FileExistsError:
        raise CheckpointError(f"{target} appeared meanwhile; nothing was written.") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        if place.is_symlink() or place.exists():
            raise CheckpointError(f"{target} appeared meanwhile; nothing was written.") from None
        file.rename(place)


def read_text(path: Path) -> str:
    """A text as it stands: line ends are kept, bytes that are not UTF-8 survive `write_file`."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def write_file(path: Path, text: str) -> None:
    """Write a new text file; `staged` waits for the disk, for all files at once."""
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


def replace_file(path: Path, text: str) -> None:
    """Replace a file in one step; other hard links keep the old content."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode("utf-8", "surrogateescape"))
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


@contextmanager
def _stage_beside(place: Path) -> Iterator[Path]:
    """A locked folder beside `place`, whose parents are made and swept; it goes on leaving."""
    with _parents(place.parent):
        _sweep(place.parent)
        with _locked_stage(place) as stage:
            yield stage


@contextmanager
def _parents(folder: Path) -> Iterator[None]:
    """Make a folder with its parents; on an error, those made here go again."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for made in missing:  # the deepest first
            with suppress(OSError):
                made.rmdir()
        raise


@contextmanager
def _locked_stage(place: Path) -> Iterator[Path]:
    """A new folder beside `place` under a lock, held before a sweep can see its name."""
    fresh = Path(tempfile.mkdtemp(prefix=".ropepatch-new-", dir=place.parent))
    serial = fresh.name.removeprefix(".ropepatch-new-")
    stage = place.parent / f".{place.name[:50]}{_MARK}{serial}"
    try:
        lock = os.open(fresh, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fresh.rename(stage)
            stage.chmod(0o777 & ~_umask())
            yield stage
        finally:
            shutil.rmtree(stage, ignore_errors=True)  # unless it has got its name by now
            os.close(lock)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


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


def _sync_tree(folder: Path) -> None:
    """Wait until every file is on the disk; hard links are there already.

    All are written before the first is waited for, so that one commit of the file system's
    journal serves them all.
    """
    for inside, _, names in os.walk(folder, topdown=False):
        for name in names:
            if os.stat(os.path.join(inside, name)).st_nlink == 1:
                _sync(Path(inside, name))
        _sync(Path(inside))


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that sync only files
            raise
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(
    place: Path, error: OSError | RuntimeError, *, hints: bool = True, links: bool = True
) -> CheckpointError:
    if not isinstance(error, OSError):
        return CheckpointError(f"cannot write {place}: {error}.")
    what = error.strerror or str(error)
    where = error.filename or place
    room = "free some space"
    if links:
        room += ", or use --link on the model's own file system"
    hint = {
        errno.ENOSPC: room,
        errno.EDQUOT: room,
        errno.EROFS: "choose an --output on a writable disk",
        errno.EACCES: "choose an --output you may write to",
        errno.ENAMETOOLONG: "choose a shorter --output",
    }.get(error.errno or 0, "nothing was left behind")
    if not hints:
        hint = "nothing was left behind"
    return CheckpointError(f"cannot write {place}: {what} ({where}); {hint}.")
