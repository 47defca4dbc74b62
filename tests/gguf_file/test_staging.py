"""A GGUF file is there whole or not at all, and what it replaces stays until then."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropepatch.checkpoint.staging import staged_file
from ropepatch.errors import CheckpointError, VerificationError
from ropepatch.gguf_extending import extend_gguf, restore_gguf
from tests.gguf_file.made import LLAMA3, YARN, data_of, make_model
from tests.tiny import tree

ROOT = Path(__file__).parents[2]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- a disk that says no ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EROFS, "choose an --output on a writable disk"),
        (errno.EIO, "nothing was left behind"),
    ],
    ids=["ENOSPC", "EDQUOT", "EROFS", "EIO"],
)
@pytest.mark.parametrize("step", ["copy_file_range", "pwrite", "ftruncate", "fsync", "link"])
def test_a_fault_on_the_way(
    step: str, number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model(tmp_path / "x.gguf")
    before = tree(tmp_path)

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(CheckpointError) as caught:
        extend_gguf(source, LLAMA3, tmp_path / "a" / "y.gguf")
    (line,) = str(caught.value).splitlines()
    assert f"cannot write {tmp_path / 'a' / 'y.gguf'}: {os.strerror(number)}" in line
    assert line.endswith(f"; {advice}.")
    assert tree(tmp_path) == before
    assert names(tmp_path) == ["x.gguf"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENAMETOOLONG])
@pytest.mark.parametrize("step", ["copy_file_range", "ftruncate", "fsync", "replace"])
def test_a_restore_that_fails(
    step: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = extend_gguf(make_model(tmp_path / "x.gguf"), YARN).target
    before = tree(tmp_path)

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(CheckpointError) as caught:
        restore_gguf(target)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"cannot write {target}: {os.strerror(number)} ")
    assert line.endswith("; nothing was left behind.")  # no --output to choose, and no --link
    assert tree(tmp_path) == before
    assert names(tmp_path) == ["x-yarn-32k.gguf", "x.gguf"]


def test_a_full_disk_of_a_split_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "m.gguf", part_size=2)
    before = tree(tmp_path)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ropepatch.gguf_extending.carry", fail)
    with pytest.raises(CheckpointError, match=r"No space left on device"):
        extend_gguf(tmp_path / "m-00001-of-00002.gguf", YARN, tmp_path / "out")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("error", [VerificationError, KeyboardInterrupt, MemoryError])
def test_an_exception_leaves_nothing(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model(tmp_path / "x.gguf")

    def fail(*_: Any) -> None:
        raise error("enough")

    monkeypatch.setattr("ropepatch.gguf_extending.prove", fail)
    with pytest.raises(error, match=r"enough"):
        extend_gguf(source, YARN, tmp_path / "a" / "y.gguf")
    assert names(tmp_path) == ["x.gguf"]


def test_a_file_that_lost_its_change_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real reading back, of a file whose header is the old one."""
    source = make_model(tmp_path / "x.gguf")

    def lose(_: Any, target: Path, __: Any) -> None:
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr("ropepatch.gguf_extending.write", lose)
    with pytest.raises(VerificationError, match=r"other frequencies"):
        extend_gguf(source, YARN)
    assert names(tmp_path) == ["x.gguf"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_disk_without_hard_links(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model(tmp_path / "x.gguf")

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    target = extend_gguf(source, YARN).target
    assert data_of(target) == data_of(source)
    assert names(tmp_path) == ["x-yarn-32k.gguf", "x.gguf"]


# --- somebody else ----------------------------------------------------------------------------


def test_a_target_that_appears_meanwhile(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    target = tmp_path / "y.gguf"

    def squat(*_: Any) -> None:
        target.write_bytes(b"theirs")

    with pytest.raises(CheckpointError, match=r"appeared meanwhile; nothing was written"):
        extend_gguf(source, YARN, target, progress=squat)
    assert target.read_bytes() == b"theirs"
    assert names(tmp_path) == ["x.gguf", "y.gguf"]


def test_two_at_once_make_one(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    target = tmp_path / "y.gguf"

    def late() -> None:
        with staged_file(target) as stage:
            stage.write_bytes(b"late")
            extend_gguf(source, YARN, target)

    with pytest.raises(CheckpointError, match=r"appeared meanwhile"):
        late()
    assert data_of(target) == data_of(source)
    assert names(tmp_path) == ["x.gguf", "y.gguf"]


# --- a process that is gone -------------------------------------------------------------------

BLOCKED = """
import sys, time
from pathlib import Path
from ropepatch.gguf_extending import extend_gguf, restore_gguf
from ropepatch.gguf_file import writing

def block(name, done, total):
    print(name, flush=True)
    time.sleep(600)

source, target = map(Path, sys.argv[1:])
if target.exists():
    carry = writing._carry
    writing._carry = lambda *words: carry(*words[:4], block, words[5])
    restore_gguf(target)
else:
    extend_gguf(source, {"method": "yarn", "factor": 4}, target, progress=block)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_model(tmp_path / "x.gguf")


@pytest.fixture
def target(source: Path, request: pytest.FixtureRequest) -> Path:
    """A file to be made, or one that is there to be restored."""
    path = source.with_name("y.gguf")
    if request.param == "restore":
        extend_gguf(source, YARN, path)
    return path


@pytest.fixture
def blocked(source: Path, target: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process in the middle of it."""
    command = [sys.executable, "-c", BLOCKED, str(source), str(target)]
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "x.gguf\n" or target.exists()
        yield process
        process.kill()


@pytest.mark.parametrize("target", ["extend", "restore"], indirect=True)
def test_killed_in_the_middle(blocked: subprocess.Popen[str], source: Path, target: Path) -> None:
    before = target.read_bytes() if target.exists() else None
    os.kill(blocked.pid, signal.SIGKILL)
    blocked.wait()
    assert (target.read_bytes() if target.exists() else None) == before
    (stale,) = source.parent.glob(".*")
    assert stale.name.startswith(".y.gguf.ropepatch-partial-")
    assert names(stale) == ["file"]

    if before is None:
        extend_gguf(source, YARN, target)
    restore_gguf(target)
    assert target.read_bytes() == source.read_bytes()
    assert names(source.parent) == ["x.gguf", "y.gguf"]


@pytest.mark.parametrize("target", ["extend"], indirect=True)
def test_another_run_that_still_works_is_left_alone(
    blocked: subprocess.Popen[str], source: Path, target: Path
) -> None:
    (live,) = source.parent.glob(".*")
    extend_gguf(source, YARN, source.with_name("z.gguf"))
    assert names(live) == ["file"]
    handle = os.open(live, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)
    assert blocked.poll() is None
    assert not target.exists()
