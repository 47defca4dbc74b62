"""Whatever happens on the way, the target is there whole or not at all, and nothing else is."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropepatch import Recipe, extend
from ropepatch.checkpoint.sidecars import to_text
from ropepatch.checkpoint.staging import staged
from ropepatch.errors import CheckpointError, VerificationError
from tests import tiny
from tests.tiny import tree

ROOT = Path(__file__).parents[2]
YARN = Recipe.named("yarn", factor=4)
WHOLE = ["README.md", "config.json", "model.safetensors", "ropepatch.json"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def nothing_changes(folder: Path) -> Iterator[None]:
    before = tree(folder)
    yield
    assert tree(folder) == before


# --- a disk that says no ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space, or use --link"),
        (errno.EDQUOT, "free some space, or use --link"),
        (errno.EROFS, "choose an --output on a writable disk"),
        (errno.EACCES, "choose an --output you may write to"),
        (errno.EIO, "nothing was left behind"),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
@pytest.mark.parametrize("step", ["write.carry", "write.write_file", "staging._sync"])
def test_a_fault_on_the_way(
    step: str, number: int, advice: str, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number), str(bare.parent / "somewhere"))

    monkeypatch.setattr(f"ropepatch.checkpoint.{step}", fail)
    with nothing_changes(bare.parent), pytest.raises(CheckpointError) as caught:
        extend(bare, YARN, bare.parent / "a" / "out", verify=False)
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert f"cannot write {bare.parent / 'a' / 'out'}: {os.strerror(number)}" in said
    assert advice in said


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_disk_that_cannot_sync_folders(
    number: int, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def sync(handle: int) -> None:
        if os.path.isdir(f"/dev/fd/{handle}"):
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", sync)
    extend(bare, YARN, bare.parent / "out", verify=False)
    assert names(bare.parent / "out") == WHOLE


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, where we may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("may not mount")
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(disk: Path, tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "model", values=600_000)
    with nothing_changes(disk), pytest.raises(CheckpointError, match=r"No space left on device"):
        extend(folder, YARN, disk / "out", verify=False)
    with nothing_changes(disk), pytest.raises(CheckpointError, match=r"by a link"):
        extend(folder, YARN, disk / "out", verify=False, how="link")


def test_another_disk_gets_a_copy(disk: Path, bare: Path) -> None:
    done = extend(bare, YARN, disk / "out", verify=False)
    assert done.written is not None
    assert done.written.carried == {"model.safetensors": "copy"}
    assert names(disk / "out") == WHOLE


def test_a_read_only_disk(disk: Path, bare: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(CheckpointError, match=r"Read-only file system.*writable disk"):
        extend(bare, YARN, disk / "out", verify=False)
    assert names(disk) == []


@pytest.mark.usefixtures("powerless")
def test_a_folder_we_may_not_write(locked: Path) -> None:
    with (
        pytest.raises(CheckpointError, match=r"Permission denied.*you may write to"),
        staged(locked / "out"),
    ):
        pytest.fail("entered")


def test_nothing_but_an_os_error_is_blamed_on_the_disk(bare: Path) -> None:
    with (
        nothing_changes(bare.parent),
        pytest.raises(ZeroDivisionError),
        staged(bare.parent / "a" / "out"),
    ):
        raise ZeroDivisionError


# --- a result that is no good, a user who has enough ------------------------------------------


@pytest.mark.parametrize("error", [VerificationError, KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("moment", ["prove", "carry"])
def test_an_exception_leaves_nothing(
    error: type[BaseException], moment: str, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error("enough")

    where = {"prove": "extending._prove", "carry": "checkpoint.write.carry"}[moment]
    monkeypatch.setattr(f"ropepatch.{where}", fail)
    with nothing_changes(bare.parent), pytest.raises(error, match=r"enough"):
        extend(bare, YARN, bare.parent / "a" / "out")


def test_a_change_that_transformers_ignores_leaves_nothing(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real verification, on a config that lost its change on the way to the disk."""

    def lose(value: dict[str, Any]) -> str:
        return to_text({**value, **original} if "rope_parameters" in value else value)

    config = tiny.read_json(llama_folder / "config.json")
    original = {key: config[key] for key in ("rope_parameters", "max_position_embeddings")}
    monkeypatch.setattr("ropepatch.checkpoint.write.to_text", lose)
    with nothing_changes(tmp_path), pytest.raises(VerificationError, match=r"other frequencies"):
        extend(llama_folder, YARN, tmp_path / "out")


def test_a_target_that_appears_meanwhile(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = bare.parent / "out"

    def squat(*_: Any, **__: Any) -> dict[str, Any]:
        target.mkdir()
        (target / "theirs").write_text("", encoding="utf-8")
        return {}

    monkeypatch.setattr("ropepatch.checkpoint.write.make_record", squat)
    with pytest.raises(CheckpointError, match=r"appeared meanwhile"):
        extend(bare, YARN, target, verify=False)
    assert names(target) == ["theirs"]
    assert names(bare.parent) == ["model", "out"]


# --- a process that is gone -------------------------------------------------------------------

BLOCKED = """
import signal, sys, time
from pathlib import Path
from ropepatch import Recipe, extend

# what a shell starts in the background has Ctrl-C switched off, and hands that on
signal.signal(signal.SIGINT, signal.default_int_handler)

def block(name, done, total):
    print(name, flush=True)
    time.sleep(600)

model, target = map(Path, sys.argv[1:])
extend(model, Recipe.named("yarn", factor=4), target, how="copy", verify=False, progress=block)
"""


@pytest.fixture
def blocked(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Another process in the middle of an extension of `bare` to `out`."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    command = [sys.executable, "-c", BLOCKED, str(bare), str(bare.parent / "out")]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, PYTHONPATH=path),
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "model.safetensors\n":
            process.kill()
            pytest.skip("this disk copies by reflink, in no time")
        yield process
        process.kill()


def stages(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*"))


def test_killed_in_the_middle(blocked: subprocess.Popen[str], bare: Path) -> None:
    os.kill(blocked.pid, signal.SIGKILL)
    blocked.wait()
    assert not (bare.parent / "out").exists()
    (stale,) = stages(bare.parent)
    assert re.fullmatch(r"\.out\.ropepatch-partial-\w+", stale.name)
    assert (stale / "model.safetensors").is_file()

    extend(bare, YARN, bare.parent / "out", verify=False)
    assert names(bare.parent / "out") == WHOLE
    assert names(bare.parent) == ["model", "out"]


def test_another_run_that_still_works_is_left_alone(
    blocked: subprocess.Popen[str], bare: Path
) -> None:
    (live,) = stages(bare.parent)
    extend(bare, YARN, bare.parent / "other", verify=False)
    assert stages(bare.parent) == [live]
    assert (live / "model.safetensors").is_file()
    assert names(bare.parent / "other") == WHOLE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(number: int, blocked: subprocess.Popen[str], bare: Path) -> None:
    blocked.send_signal(number)
    blocked.wait(timeout=30)
    assert not (bare.parent / "out").exists()
    if number == signal.SIGINT:
        assert names(bare.parent) == ["model"]


def test_the_sweep_takes_only_what_is_ours(bare: Path) -> None:
    parent = bare.parent
    (parent / ".out.ropepatch-partial-stale1" / "deep").mkdir(parents=True)
    (parent / ".ropepatch-partial-keep").write_text("a file", encoding="utf-8")
    (parent / ".x.ropepatch-partial-link").symlink_to(bare)
    (parent / "out.ropepatch-partial-visible").mkdir()
    (parent / ".hidden").mkdir()
    extend(bare, YARN, parent / "out", verify=False)
    assert names(parent) == [
        ".hidden",
        ".ropepatch-partial-keep",
        ".x.ropepatch-partial-link",
        "model",
        "out",
        "out.ropepatch-partial-visible",
    ]
    assert names(bare) == ["config.json", "model.safetensors"]


def test_two_at_once_make_one(bare: Path) -> None:
    """Both begin, one gets the name, the other says so and leaves nothing."""
    with (
        pytest.raises(CheckpointError, match=r"appeared meanwhile"),
        staged(bare.parent / "out"),
    ):
        extend(bare, YARN, bare.parent / "out", verify=False)
    assert names(bare.parent) == ["model", "out"]
    assert names(bare.parent / "out") == WHOLE
