"""Files, folders and datasets as documents."""

import itertools
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.errors import HealingError
from ropepatch.healing import documents
from ropepatch.healing.documents import Sources

MIB = 1 << 20


def texts(*names: Path | str, seed: int = 0, column: str | None = None) -> list[str]:
    sources = Sources([str(name) for name in names], column)
    return ["".join(document) for document in sources.documents(seed)]


def pieces(path: Path) -> list[str]:
    (document,) = Sources([str(path)]).documents(0)
    return list(document)


def prose(characters: int, seed: int = 0) -> str:
    """Words with line breaks here and there, some of them several."""
    chance = random.Random(seed)
    words = ["one", "two", "three", "größer", "四", "🙂", "\n", "\n\n", "  end.\n"]
    made = " ".join(chance.choices(words, k=characters // 3))
    return made[:characters]


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# --- text files ----------------------------------------------------------------------------------


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\nthree", encoding="utf-8")
    assert texts(path) == ["one\n\ntwo\nthree"]


def test_a_file_in_pieces_is_the_whole_text(tmp_path: Path) -> None:
    text = prose(int(2.5 * MIB))
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    found = pieces(path)
    assert "".join(found) == text
    assert len(found) >= 3
    assert all(piece.endswith("\n") for piece in found[:-1])
    assert max(map(len, found)) < 1.1 * MIB


def test_a_line_longer_than_a_piece_is_cut_between_words(tmp_path: Path) -> None:
    text = prose(int(2.5 * MIB)).replace("\n", " ")
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    found = pieces(path)
    assert "".join(found) == text
    assert len(found) >= 3
    for before, after in itertools.pairwise(found):
        assert not before[-1].isspace()
        assert after[0].isspace()


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 9 * MIB + 7])
def test_a_file_without_any_space(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * size, encoding="utf-8")
    found = pieces(path)
    assert "".join(found) == "x" * size
    assert max(map(len, found), default=0) <= 5 * MIB  # not all of it at once


@pytest.mark.parametrize("lead", ["", "\ufeff"])
@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r"])
def test_line_breaks_and_byte_order_marks(tmp_path: Path, lead: str, breaks: str) -> None:
    """Line breaks are read as Python reads any text: as one character."""
    path = tmp_path / "a.md"
    text = prose(MIB + 1000)
    path.write_bytes((lead + text.replace("\n", breaks)).encode())
    assert "".join(pieces(path)) == text


@given(st.text(st.sampled_from("ab \n\t\u3000é"), max_size=60), st.integers(1, 9))
@settings(deadline=None, max_examples=200)
def test_small_pieces_join_to_the_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "small.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_PIECE", size)
        found = pieces(path)
    assert "".join(found) == text
    assert all(found)


# --- folders -------------------------------------------------------------------------------------


def make_folder(folder: Path, count: int = 30) -> set[str]:
    wanted = set()
    for i in range(count):
        path = folder / "abc"[i % 3] / str(i % 2) / f"{i}{documents.TEXT[i % 4]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {i}", encoding="utf-8")
        wanted.add(f"text {i}")
    return wanted


def test_a_folder_gives_every_file_once_in_an_order_of_the_seed(tmp_path: Path) -> None:
    wanted = make_folder(tmp_path)
    orders = [texts(tmp_path, seed=seed) for seed in (0, 0, 1)]
    assert all(set(order) == wanted and len(order) == len(wanted) for order in orders)
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_the_order_does_not_depend_on_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path)
    before = texts(tmp_path)
    rglob = Path.rglob

    def turned(self: Path, pattern: str) -> Iterator[Path]:
        return iter(list(rglob(self, pattern))[::-1])

    monkeypatch.setattr(Path, "rglob", turned)
    assert texts(tmp_path) == before


def test_what_a_folder_does_not_give(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("seen")
    (tmp_path / "b.py").write_text("another kind")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "c.txt").write_text("in a hidden folder")
    (tmp_path / "folder.txt").mkdir()
    assert texts(tmp_path) == ["seen"]


def test_a_hidden_folder_that_is_named_is_read(tmp_path: Path) -> None:
    folder = tmp_path / ".cache"
    folder.mkdir()
    (folder / "a.txt").write_text("seen")
    assert texts(folder) == ["seen"]


def test_several_sources(tmp_path: Path) -> None:
    make_folder(tmp_path / "folder", 3)
    (tmp_path / "b.py").write_text("named, so read")
    write_lines(tmp_path / "c.jsonl", ["row 0", "row 1"])
    found = texts(tmp_path / "folder", tmp_path / "b.py", tmp_path / "c.jsonl")
    assert sorted(found) == ["named, so read", "row 0", "row 1", "text 0", "text 1", "text 2"]


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "ndjson"])
def test_json_lines(tmp_path: Path, ending: str) -> None:
    path = write_lines(tmp_path / f"a.{ending}", ["one\ntwo", {"text": "three\u2028four"}])
    path.write_text(path.read_text() + '\n  \n{"n": 1, "text": "five"}', encoding="utf-8-sig")
    assert texts(path) == ["one\ntwo", "three\u2028four", "five"]


def test_another_column(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "no", "body": "yes"}, "as it is"])
    assert texts(path, column="body") == ["yes", "as it is"]


def test_half_a_character_of_two_is_replaced(tmp_path: Path) -> None:
    """JSON may hold it, a tokenizer cannot read it."""
    path = tmp_path / "a.jsonl"
    path.write_text('"a\\ud83d\\ude00b"\n{"text": "c\\ud83dd"}\n')
    assert texts(path) == ["a😀b", "c?d"]


def test_rows_of_several_files_take_turns(tmp_path: Path) -> None:
    for name in "abc":
        rows = [f"{name}{i}" for i in range(3 if name == "b" else 50)]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    found = texts(tmp_path)
    assert sorted({text[0] for text in found[:3]}) == ["a", "b", "c"]
    for name in "abc":
        own = [text for text in found if text[0] == name]
        assert own == [f"{name}{i}" for i in range(len(own))]
    assert len(found) == 103


def test_more_files_with_rows_than_are_open_at_once(tmp_path: Path) -> None:
    for i in range(40):
        write_lines(tmp_path / f"{i}.jsonl", [f"{i} {j}" for j in range(i % 3)])
    found = texts(tmp_path)
    assert sorted(found) == sorted(f"{i} {j}" for i in range(40) for j in range(i % 3))


@pytest.mark.parametrize("line", ["{", "not json", '"a" "b"', "[" * 100_000])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'"fine"\n\n{line}\n"fine"\n')
    with pytest.raises(HealingError, match=r"a\.jsonl, line 3, are no JSON"):
        texts(path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"body": "x", "title": "y"}, "there is: body, title"),
        ({"text": ["x"]}, "no text in column 'text'"),
        (5, "there is: int"),
        (["x"], "there is: list"),
    ],
)
def test_a_row_without_its_text(tmp_path: Path, row: Any, said: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", ["fine", row])
    with pytest.raises(HealingError) as caught:
        texts(path)
    assert f"{path}, line 2: no text in column 'text'" in str(caught.value)
    assert said in str(caught.value)
    assert "--text-column" in str(caught.value)


def test_a_row_of_no_text_is_an_empty_document(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ["fine", {"text": None}, {"text": "too"}])
    assert texts(path) == ["fine", "", "too"]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [f"row {i}" for i in range(150)]  # in more than one batch
    table = pyarrow.table({"body": rows, "n": list(range(150))})
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path)
    assert texts(path, column="body") == rows
    with pytest.raises(HealingError, match=r"column 'text'; there is: body, n\. Name it"):
        texts(path)
    with pytest.raises(HealingError, match="no text in column 'n'"):
        texts(path, column="n")


def test_a_broken_parquet_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(HealingError, match=r"cannot read the data .*a\.parquet: "):
        texts(path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(HealingError, match="need pyarrow: pip install"):
        texts(path)


def test_a_dataset_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(HealingError, match=r"some/dataset:en are no file; .*pip install"):
        texts("some/dataset:en")


class Hub:
    """What `datasets` is to us."""

    rows: tuple[Any, ...] = ({"text": "a"}, {"text": "b"}, {"body": "c"})

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def load_dataset(self, *args: Any, **words: Any) -> "Hub":
        self.asked.append((args, words))
        if args[0] == "gone":
            raise ConnectionError("no\n network")
        return self

    def shuffle(self, **words: Any) -> Iterator[Any]:
        self.asked.append(words["seed"])
        return iter(self.rows)


def test_a_dataset_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    hub.rows = ({"text": "a", "body": "b"}, {"text": "c", "body": "d"})
    assert texts("owner/name", seed=3) == ["a", "c"]
    assert hub.asked == [(("owner/name", None), {"split": "train", "streaming": True}), 3]
    assert texts("name:en:test:body") == ["b", "d"]
    assert hub.asked[2] == (("name", "en"), {"split": "test", "streaming": True})
    assert texts("name:::body", column="text") == ["b", "d"]
    assert hub.asked[4] == (("name", None), {"split": "train", "streaming": True})
    with pytest.raises(HealingError, match="gone cannot be read: ConnectionError: no network"):
        texts("gone")
    with pytest.raises(HealingError, match="name: no text in column 'x'; there is: text, body"):
        texts("name", column="x")


# --- refusals ------------------------------------------------------------------------------------


def test_no_data() -> None:
    with pytest.raises(HealingError, match="--data is missing"):
        Sources([])


@pytest.mark.parametrize(
    "name",
    [
        *("gone.txt", "./gone", "/gone/at/all", "~/gone", "~nobody-of-this-name/gone", ""),
        *("a/b/c", "two words", "x.jsonl", "a:b:c:d:e", "x\0y", "n" * 300 + ".txt", "ends/"),
    ],
)
def test_data_that_are_not_there(name: str) -> None:
    with pytest.raises(HealingError, match=r"the data .* do not exist"):
        Sources([name])


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x")
    with pytest.raises(HealingError, match=r"holds no data \(\.txt, \.md"):
        Sources([str(tmp_path)])


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_files_that_are_no_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x80\x81\xff" * 100)
    with pytest.raises(HealingError, match=rf"{name} are not UTF-8 text"):
        texts(path)


def test_a_file_that_ends_within_a_character(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("größer".encode()[:3])
    with pytest.raises(HealingError, match="not UTF-8"):
        texts(path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_file_that_goes_away(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("x")
    sources = Sources([str(path)])
    path.unlink()
    with pytest.raises(HealingError, match=rf"cannot read the data .*{name}: No such file"):
        ["".join(document) for document in sources.documents(0)]


@pytest.mark.usefixtures("powerless")
def test_a_folder_that_nobody_may_enter(locked: Path) -> None:
    with pytest.raises(HealingError, match="locked"):
        Sources([str(locked / "model" / "a.txt")])


# --- lazily --------------------------------------------------------------------------------------


def test_no_file_is_opened_before_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path)
    opened: list[str] = []
    path_open: Any = Path.open

    def watched(self: Path, *args: Any, **words: Any) -> Any:
        opened.append(self.name)
        return path_open(self, *args, **words)

    monkeypatch.setattr(Path, "open", watched)
    found = Sources([str(tmp_path)]).documents(0)
    assert opened == []
    first = [next(found) for _ in range(20)]
    assert opened == []
    "".join(first[7])
    assert len(opened) == 1


def test_an_endless_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    """A sparse one, larger than the memory."""
    path = tmp_path / "a.txt"
    path.write_text("a line\n" * 400_000)
    os.truncate(path, 1 << 38)
    (document,) = Sources([str(path)]).documents(0)
    reader = iter(document)
    assert next(reader) == "a line\n" * (MIB // 7)
    assert next(reader).startswith("a line\n")


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [f"row {i}" for i in range(100_000)])
    path.write_text(path.read_text() + "not json")
    found = Sources([str(path)]).documents(0)
    assert ["".join(next(found)) for _ in range(3)] == ["row 0", "row 1", "row 2"]
