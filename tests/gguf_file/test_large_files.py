"""Files of gigabytes: memory stays small, and what is a hole stays one."""

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType as Kind

from ropepatch.errors import RopepatchError
from ropepatch.gguf_extending import extend_gguf, inspect_gguf
from tests.gguf_file.made import (
    LLAMA3,
    YARN,
    array,
    entry,
    file_bytes,
    llama_entries,
    tensor,
)

ROOT = Path(__file__).parents[2]
SIZE = 5 * 1024**3
MEASURED = """
import json, os, resource, sys
from pathlib import Path
from ropepatch.gguf_extending import extend_gguf, restore_gguf
from ropepatch.gguf_file.reading import read_survey

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

source, target, words = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
before = peak()
read_survey(source)
extend_gguf(source, words, target)
blocks = os.stat(target).st_blocks
restore_gguf(target)
print(json.dumps([peak() - before, blocks, os.stat(target).st_blocks]))
"""


def sparse(path: Path, head: bytes, size: int, *written: tuple[int, bytes]) -> Path:
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(size)
        for place, content in written:
            stream.seek(place)
            stream.write(content)
    if path.stat().st_blocks * 512 > 2**20:
        pytest.skip("this disk keeps no holes")
    return path


@pytest.mark.parametrize("words", [YARN, LLAMA3], ids=["keys", "and a tensor"])
def test_five_gigabytes(words: dict[str, Any], tmp_path: Path) -> None:
    head = file_bytes(*llama_entries(), tensors=(tensor("big", (SIZE // 8, 2)),))
    middle = len(head) + SIZE // 3
    source = sparse(
        tmp_path / "x.gguf", head, len(head) + SIZE, (middle, b"here"), (len(head), b"first")
    )
    target = tmp_path / "y.gguf"
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, source, target, json.dumps(words)],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=True,
    )
    grown, extended, restored = json.loads(done.stdout)
    assert grown < 200
    assert max(extended, restored) * 512 < 2**20
    assert target.stat().st_size == source.stat().st_size
    with source.open("rb") as one, target.open("rb") as other:
        for place in (0, middle - 4096, source.stat().st_size - 4096):
            one.seek(place)
            other.seek(place)
            assert one.read(8192) == other.read(8192)


def test_where_data_stand_in_a_sparse_file(tmp_path: Path) -> None:
    """Data at block borders and in between come out at the places they had."""
    size = 40 * 2**20
    head = file_bytes(*llama_entries(), tensors=(tensor("big", (size // 4,)),))
    places = [0, 4095, 4096, 2**20 - 1, 2**24 - len(head), 2**24, size - 1]
    written = [(len(head) + p, b"%c" % (65 + i)) for i, p in enumerate(places)]
    source = sparse(tmp_path / "x.gguf", head, len(head) + size, *written)
    target = tmp_path / "y.gguf"
    done = extend_gguf(source, YARN, target)
    start = done.change.draft.survey.data_start
    moved = target.stat().st_size - source.stat().st_size
    assert target.read_bytes()[start + moved :] == source.read_bytes()[start:]
    assert target.stat().st_blocks <= source.stat().st_blocks + 64


# --- files whose headers claim gigabytes ------------------------------------------------------


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * 2**20


@pytest.mark.parametrize(
    "exponent",
    [
        12,
        20,
    ],
)
def test_a_huge_alignment(exponent: int, tmp_path: Path) -> None:
    """The zeros up to the data are not all held in memory."""
    claimed = entry("general.alignment", Kind.UINT32, (2**exponent).to_bytes(4, "little"))
    path = tmp_path / "x.gguf"
    path.write_bytes(file_bytes(*llama_entries(), claimed))
    with little_memory(), suppress(RopepatchError):
        extend_gguf(path, YARN, dry_run=True)


def test_a_value_that_is_a_huge_hole(tmp_path: Path) -> None:
    size = 120 * 2**20
    head = file_bytes(
        *llama_entries(), entry("hole", Kind.ARRAY, array(Kind.UINT8, size)), alignment=1
    )
    path = sparse(tmp_path / "x.gguf", head, len(head) + size)
    with little_memory(), suppress(RopepatchError):
        extend_gguf(path, YARN, dry_run=True)


def test_many_values_that_are_holes(tmp_path: Path) -> None:
    """Each small enough to be kept, all of them together not."""
    size = 2**20 - 12
    parts = [entry(f"hole{i:03}", Kind.ARRAY, array(Kind.UINT8, size)) for i in range(150)]
    front = file_bytes(*llama_entries(), *parts, alignment=1)
    front = front[: len(front) - sum(map(len, parts))]
    path = tmp_path / "x.gguf"
    at = len(front)
    written = []
    for part in parts:
        written.append((at, part))
        at += len(part) + size
    with path.open("wb") as stream:
        stream.write(front)
        for place, part in written:
            stream.seek(place)
            stream.write(part)
        stream.truncate(at)
    with little_memory(), suppress(RopepatchError):
        inspect_gguf(path)
