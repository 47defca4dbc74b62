"""Models in several files: the first one's header changes, the others travel as they are."""

import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import GGUFValueType as Kind

from ropepatch.errors import CheckpointError
from ropepatch.gguf_extending import (
    changes_metadata,
    extend_gguf,
    inspect_gguf,
    restore_gguf,
)
from ropepatch.gguf_file.draft import Draft, Value
from ropepatch.gguf_file.reading import read_survey
from ropepatch.gguf_file.stamp import STAMP
from ropepatch.gguf_file.writing import write
from tests.gguf_file.made import (
    EXPRESSIBLE,
    LLAMA3,
    LONGROPE,
    NTK,
    TRAINED,
    YARN,
    kinds,
    make_model,
    one_line,
    read,
    tensors_of,
)
from tests.gguf_file.test_numbers import agree

NAMES = [f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
FIRST, SECOND = NAMES


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with two files of two tensors each, by gguf's own writer."""
    folder = tmp_path / "model"
    folder.mkdir()
    make_model(folder / "m.gguf", part_size=2)
    assert sorted(os.listdir(folder)) == NAMES
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def is_loadable(folder: Path) -> None:
    """llama.cpp counts the tensors of all files against what the first one says."""
    found = [tensors_of(folder / name) for name in NAMES]
    assert sum(map(len, found)) == len(found[0] | found[1])
    assert read(folder / FIRST)["split.tensors.count"] == sum(map(len, found))
    for number, name in enumerate(NAMES):
        words = read(folder / name)
        assert (words["split.no"], words["split.count"]) == (number, 2)


def test_the_model_is_whole(model: Path) -> None:
    is_loadable(model)
    found = inspect_gguf(model / FIRST)
    assert (found.parts, found.rotation.context_length) == (2, TRAINED)


@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_extend_and_restore(case: str, model: Path, tmp_path: Path) -> None:
    before = contents(model)
    done = extend_gguf(model / FIRST, EXPRESSIBLE[case], tmp_path / "out")
    assert (done.target, done.parts) == (tmp_path / "out", 2)
    assert contents(model) == before
    assert sorted(os.listdir(done.target)) == NAMES
    assert (done.target / SECOND).read_bytes() == before[SECOND]
    agree(done.target / FIRST, EXPRESSIBLE[case])
    is_loadable(done.target)
    key = "split.tensors.count"
    assert kinds(done.target / FIRST)[key] is kinds(model / FIRST)[key] is Kind.INT32

    assert restore_gguf(done.target / FIRST) == EXPRESSIBLE[case]["method"]
    assert contents(done.target) == before


@pytest.mark.parametrize(
    "chain",
    [
        (YARN, LLAMA3, NTK),
        (LLAMA3, YARN, LLAMA3),
        (LLAMA3, LLAMA3 | {"factor": 8}),
        (LLAMA3, EXPRESSIBLE["p-rope"], YARN),
        (LLAMA3, LONGROPE),
        (LONGROPE, LLAMA3),
        (LONGROPE, NTK),
    ],
    ids=lambda chain: " ".join(step["method"] for step in chain),
)
def test_one_in_place_of_another(
    chain: tuple[dict[str, Any], ...], model: Path, tmp_path: Path
) -> None:
    last = model
    for number, words in enumerate(chain):
        target = tmp_path / str(number)
        extend_gguf(last / FIRST, words, target, replace=number > 0)
        agree(target / FIRST, words)
        is_loadable(target)
        last = target
    restore_gguf(last / FIRST)
    assert contents(last) == contents(model)


@pytest.mark.parametrize(("how", "links"), [("auto", 2), ("link", 2), ("copy", 1)])
def test_how_the_others_travel(how: Any, links: int, model: Path, tmp_path: Path) -> None:
    done = extend_gguf(model / FIRST, YARN, tmp_path / "out", how=how)
    assert (done.target / SECOND).stat().st_nlink == links
    assert (done.target / FIRST).stat().st_nlink == 1


@pytest.mark.parametrize("how", ["auto", "link", "copy"])
def test_files_that_are_links(how: Any, model: Path, tmp_path: Path) -> None:
    """As in a cache of the hub; what is written needs the cache no longer."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for number, name in enumerate(NAMES):
        (model / name).rename(cache / f"blob{number}")
        (model / name).symlink_to(Path("..") / "cache" / f"blob{number}")
    before = contents(model)
    target = extend_gguf(model / FIRST, LLAMA3, tmp_path / "out", how=how).target
    assert contents(cache) == {"blob0": before[FIRST], "blob1": before[SECOND]}
    shutil.rmtree(cache)
    is_loadable(target)
    restore_gguf(target / FIRST)
    assert contents(target) == before


def test_the_default_place(model: Path) -> None:
    """Beside the files, without the number."""
    dry = extend_gguf(model / FIRST, YARN, dry_run=True)
    assert sorted(os.listdir(model)) == NAMES
    done = extend_gguf(model / FIRST, YARN)
    assert done.target == dry.target == model / "m-yarn-32k"
    assert sorted(os.listdir(done.target)) == NAMES


# --- refused ----------------------------------------------------------------------------------


def refused(path: Path, said: str, **more: Any) -> None:
    for attempt in (
        lambda: extend_gguf(path, YARN, **more),
        lambda: extend_gguf(path, YARN, dry_run=True, **more),
        *(() if more else (lambda: inspect_gguf(path), lambda: restore_gguf(path))),
    ):
        with pytest.raises(CheckpointError, match=said) as caught:
            attempt()
        one_line(caught.value)
    assert not [p for p in path.parent.iterdir() if "yarn" in p.name or p.name.startswith(".")]


def test_a_later_file(model: Path) -> None:
    refused(model / SECOND, f"is not the first of 2 files; give {FIRST}")


def test_a_file_that_is_missing(model: Path) -> None:
    (model / SECOND).unlink()
    refused(model / FIRST, f"{SECOND} is missing; the model is split into 2 files")


def test_another_name(model: Path) -> None:
    for name in ("m.gguf", "m-00001-of-00003.gguf", "m-1-of-2.gguf", "m-00001-of-00002.GGUF"):
        path = model / name
        shutil.copy(model / FIRST, path)
        refused(path, r"is not called NAME-00001-of-00002\.gguf as llama\.cpp wants it")
        path.unlink()


def test_files_that_changed_places(model: Path) -> None:
    for one, other in ((FIRST, "x"), (SECOND, FIRST), ("x", SECOND)):
        (model / one).rename(model / other)
    refused(model / FIRST, "is not the first of 2 files")


def test_the_first_one_twice(model: Path) -> None:
    shutil.copy(model / FIRST, model / SECOND)
    refused(model / FIRST, f"{SECOND} is not part 2 of the model")


def test_a_later_file_that_is_cut_short(model: Path) -> None:
    with (model / SECOND).open("r+b") as stream:
        stream.truncate((model / SECOND).stat().st_size - 64)
    refused(model / FIRST, f"{SECOND} is damaged or cut short")


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (Kind.UINT32, 5000),
        (Kind.INT32, -1),
        (Kind.STRING, "2"),
        (Kind.BOOL, True),
        (Kind.FLOAT32, 2.0),
    ],
)
def test_counts_that_make_no_sense(kind: Kind, count: Any, model: Path, tmp_path: Path) -> None:
    path = tmp_path / FIRST
    write(Draft(read_survey(model / FIRST), {"split.count": Value.of(kind, count)}), path)
    refused(path, r"split\.count of .* makes no sense")


def test_one_of_one(tmp_path: Path) -> None:
    """As the splitter writes it for a small model: an ordinary file."""
    path = make_model(tmp_path / "m-00001-of-00001.gguf")
    done = extend_gguf(path, LLAMA3)
    assert done.target == tmp_path / "m-llama3-32k.gguf"
    assert done.parts == 1


def test_outputs(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.gguf"
    refused(model / FIRST, "--output names a folder, not", output=output)
    assert not output.exists()
    (tmp_path / "out").mkdir()
    refused(model / FIRST, "exists already", output=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_split_models_are_metadata_by_their_name(model: Path, tmp_path: Path) -> None:
    assert changes_metadata(model / FIRST, None)
    assert changes_metadata(model / FIRST, tmp_path / "folder")
    single = make_model(tmp_path / "x.gguf")
    assert not changes_metadata(single, None)
    assert not changes_metadata(single, tmp_path / "folder")
    assert changes_metadata(single, "y.gguf")


def test_the_record_stands_in_the_first_alone(model: Path, tmp_path: Path) -> None:
    done = extend_gguf(model / FIRST, YARN, tmp_path / "out")
    assert STAMP in read(done.target / FIRST)
    assert STAMP not in read(done.target / SECOND)
    assert gguf.GGUFReader(done.target / SECOND).tensors
