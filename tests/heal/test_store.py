"""Token ids on disk, against each document tokenised alone."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.errors import HealingError
from ropepatch.healing import documents, store
from ropepatch.healing.documents import Sources
from ropepatch.healing.store import Encoder, Store, write_store
from tests.heal import parts

BOS, EOS = 0, 1


@cache
def texts() -> list[str]:
    chance = random.Random(0)
    words = ["the", "river", "sang", "Zoë", "42", "\n", "end.\n\n", "—"]
    return [" ".join(chance.choices(words, k=n)) for n in (30, 1, 200, 7, 90, 55, 3, 120)]


def alone(text: str) -> list[int]:
    ids: list[int] = parts.tokenizer()(text, add_special_tokens=False).input_ids
    return [BOS, *ids, EOS]


def encoder(vocabulary: int = 2048) -> Encoder:
    return Encoder(parts.tokenizer(), vocabulary)


def sources(folder: Path, found: Sequence[str] | None = None, files: int = 1) -> Sources:
    folder.mkdir(exist_ok=True)
    rows = [json.dumps(text) + "\n" for text in (texts() if found is None else found)]
    for i in range(files):
        (folder / f"{i}.jsonl").write_text("".join(rows[i::files]))
    return Sources([str(folder)])


def written(tmp_path: Path, name: str = "store", found: Any = None, **words: Any) -> Store:
    given_ = {"wanted": 10_000, "held_out": 16, "seq_len": 8, **words}
    return write_store(tmp_path / name, sources(tmp_path / "data", found), encoder(), **given_)


def whole_text() -> list[int]:
    return [i for text in texts() for i in alone(text)]


# --- what is written -----------------------------------------------------------------------------


def test_ids_are_those_of_each_document_alone(tmp_path: Path) -> None:
    made = written(tmp_path)
    assert made.ids.tolist() == whole_text()
    assert made.ends.tolist() == np.cumsum([len(alone(text)) for text in texts()]).tolist()
    about = made.about
    assert about.whole
    assert (about.documents, about.long_documents, about.left_out) == (8, 8, 0)
    assert about.tokens + about.held_out == len(made.ids)


def test_a_long_file_is_tokenised_in_pieces_as_if_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at the ends of lines, where this tokenizer cuts as well."""
    text = "the river sang 42 songs\n" * 500
    path = tmp_path / "a.txt"
    path.write_text(text)
    monkeypatch.setattr(documents, "_PIECE", 1000)
    made = write_store(
        tmp_path / "store", Sources([str(path)]), encoder(), wanted=10**6, held_out=8, seq_len=8
    )
    assert made.ids.tolist() == alone(text)
    assert made.ends.tolist() == [len(made.ids)]


def test_empty_documents_are_left_out(tmp_path: Path) -> None:
    found = ["", *texts()[:3], "", ""]
    made = written(tmp_path, found=found)
    assert made.ids.tolist() == [i for text in texts()[:3] for i in alone(text)]
    assert made.about.documents == 3


class Letters:
    """A tokenizer without any special tokens, or with an end only."""

    def __init__(self, end: int | None = None, begin: int | None = None) -> None:
        self.eos_token_id, self.bos_token_id = end, begin

    def __call__(self, text: Any, **words: Any) -> Any:
        rows = [text] if isinstance(text, str) else text
        found = [[ord(c) for c in row] for row in rows]

        class Made:
            input_ids = found[0] if isinstance(text, str) else found

        return Made


@pytest.mark.parametrize(
    ("end", "begin", "lead", "tail"),
    [
        (None, None, [], []),
        (7, None, [], [7]),
        (7, 5, [], [7]),  # a beginning that it has, and does not put before a text
    ],
)
def test_other_tokenizers(
    tmp_path: Path, end: int | None, begin: int | None, lead: list[int], tail: list[int]
) -> None:
    made = write_store(
        tmp_path / "store",
        sources(tmp_path / "data", ["abc", "defgh"]),
        Encoder(Letters(end, begin), 256),
        wanted=100,
        held_out=0,
        seq_len=2,
    )
    texts_ = ([ord(c) for c in text] for text in ("abc", "defgh"))
    assert made.ids.tolist() == [i for text in texts_ for i in [*lead, *text, *tail]]


def test_no_more_is_written_than_is_wanted(tmp_path: Path) -> None:
    made = written(tmp_path, wanted=100, held_out=16)
    assert made.ids.tolist() == whole_text()[:116]
    assert (made.about.tokens, made.about.held_out) == (100, 16)
    assert not made.about.whole
    assert made.ends[-1] == 116
    assert made.train.tolist() == whole_text()[:100]
    assert made.held_out.tolist() == whole_text()[100:116]


def test_no_more_is_read_than_is_wanted(tmp_path: Path) -> None:
    read = []

    class Endless(Sources):
        def documents(self, seed: int) -> Iterator[Any]:
            for i in range(10**9):
                read.append(i)
                yield ["the river sang"]

    path = tmp_path / "a.txt"
    path.touch()
    write_store(
        tmp_path / "store", Endless([str(path)]), encoder(), wanted=100, held_out=0, seq_len=8
    )
    assert len(read) < 200


@pytest.mark.parametrize("seq_len", [8, 16])
@pytest.mark.parametrize("held_out", [0, 16, 10_000])
def test_what_is_held_out_is_the_end_in_whole_sequences(
    tmp_path: Path, seq_len: int, held_out: int
) -> None:
    made = written(tmp_path, held_out=held_out, seq_len=seq_len)
    whole = len(whole_text())
    twentieth = max(whole // 20 // seq_len, 1) * seq_len + 1
    assert made.about.held_out == min(held_out, twentieth)
    assert made.held_out.tolist() == whole_text()[whole - made.about.held_out :]
    assert [*made.train, *made.held_out] == whole_text()


def test_data_of_one_sequence_hold_nothing_out(tmp_path: Path) -> None:
    size = len(whole_text())
    made = written(tmp_path, held_out=size, seq_len=size - 1)
    assert (made.about.tokens, made.about.held_out) == (size, 0)
    assert made.held_out.tolist() == []


def test_less_than_a_sequence_is_refused(tmp_path: Path) -> None:
    size = len(whole_text())
    with pytest.raises(
        HealingError, match=rf"have {size:,} tokens, one sequence needs {size + 1:,};"
    ):
        written(tmp_path, seq_len=size)
    with pytest.raises(
        HealingError, match=r"0 tokens \(8 documents below min_doc_len 5,000 were left out\)"
    ):
        written(tmp_path, min_doc_len=5000)
    assert os.listdir(tmp_path) == ["data"]


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    written(tmp_path, wanted=100, held_out=16, report=lambda *pair: told.append(pair))
    assert told == sorted(told)
    assert told[-1] == (116, 116)


# --- its name ------------------------------------------------------------------------------------


def test_the_fingerprint_depends_on_the_content(tmp_path: Path) -> None:
    base = written(tmp_path).about.fingerprint
    assert re.fullmatch("[0-9a-f]{16}", base)
    assert written(tmp_path, "again").about.fingerprint == base
    for i, found in enumerate(
        [
            texts()[::-1],
            texts()[1:],
            [*texts()[:-1], texts()[-1] + "."],
        ]
    ):
        assert written(tmp_path, f"other{i}", found).about.fingerprint != base


def test_the_fingerprint_tells_documents_apart(tmp_path: Path) -> None:
    """The same tokens, cut elsewhere."""
    prints = []
    for i, found in enumerate((["abc", "defgh"], ["abcde", "fgh"])):
        made = write_store(
            tmp_path / f"store{i}",
            sources(tmp_path / f"data{i}", found),
            Encoder(Letters(), 256),
            wanted=100,
            held_out=0,
            seq_len=2,
        )
        assert made.ids.tolist() == [ord(c) for c in "abcdefgh"]
        prints.append(made.about.fingerprint)
    assert prints[0] != prints[1]


def test_the_order_follows_the_seed(tmp_path: Path) -> None:
    data = sources(tmp_path / "data", files=8)
    made = [
        write_store(
            tmp_path / f"{i}", data, encoder(), wanted=10_000, held_out=0, seq_len=8, seed=seed
        )
        for i, seed in enumerate((0, 0, 1))
    ]
    prints = [found.about.fingerprint for found in made]
    assert prints[0] == prints[1] != prints[2]
    assert sorted(made[0].ids) == sorted(made[2].ids) == sorted(whole_text())


# --- long documents ------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    least=st.integers(1, 50),
    share=st.floats(0, 1),
    part=st.integers(1, 20),
)
@settings(deadline=None, max_examples=300)
def test_long_documents_keep_their_share(
    sizes: list[int], least: int, share: float, part: int
) -> None:
    """At every moment, and whatever is left out would have broken it."""
    choice = store._Choice(least, share)
    long = short = 0
    for size in sizes:
        ids = np.zeros(size)
        cut = iter([ids[i : i + part] for i in range(0, size, part)])
        taken = sum(len(found) for found in choice.taken(cut))
        if size >= least:
            assert taken == size
            long += size
        elif taken:
            assert taken == size
            short += size
            assert long >= share * (long + short) - 1e-6
        else:
            assert long <= share * (long + short + size) + 1e-6
    assert (choice.long, choice.short) == (long, short)
    assert choice.documents == sum(size >= least for size in sizes)


@pytest.mark.parametrize(
    ("share", "wanted"), [(1.0, [2, 4, 5, 7]), (0.0, list(range(8))), (0.95, [2, 3, 4, 5, 6, 7])]
)
def test_short_documents_fill_what_long_ones_leave(
    tmp_path: Path, share: float, wanted: list[int]
) -> None:
    sizes = [len(alone(text)) for text in texts()]
    assert [i for i in range(8) if sizes[i] >= 100] == [2, 4, 5, 7]
    made = written(tmp_path, min_doc_len=100, long_share=share)
    assert made.ids.tolist() == [i for n in wanted for i in alone(texts()[n])]
    assert made.about.long_documents == 4
    assert made.about.left_out == 8 - len(wanted)


# --- on disk -------------------------------------------------------------------------------------


def test_what_is_there_is_taken_as_it_is(tmp_path: Path) -> None:
    first = written(tmp_path)

    class Nothing(Sources):
        def documents(self, seed: int) -> Iterator[Any]:
            raise AssertionError("read again")

    again = write_store(
        tmp_path / "store",
        Nothing([str(tmp_path / "data")]),
        encoder(),
        wanted=1,
        held_out=0,
        seq_len=8,
    )
    assert again.about == first.about
    assert np.array_equal(again.ids, first.ids)
    assert np.array_equal(again.ends, first.ends)
    assert isinstance(again.ids, np.memmap)


def test_data_that_cannot_be_read_leave_nothing(tmp_path: Path) -> None:
    data = sources(tmp_path / "data")
    with (tmp_path / "data" / "0.jsonl").open("a") as file:
        file.write("not json\n")
    with pytest.raises(HealingError, match="line 9"):
        write_store(tmp_path / "store", data, encoder(), wanted=9999, held_out=0, seq_len=8)
    assert os.listdir(tmp_path) == ["data"]


def test_a_killed_writing_leaves_nothing_at_its_name(tmp_path: Path) -> None:
    data = sources(tmp_path / "data")
    code = f"""
import os
from ropepatch.healing import store
from ropepatch.healing.documents import Sources

class Letters:
    bos_token_id = eos_token_id = None
    def __call__(self, text, **words):
        class Made:
            input_ids = [[ord(c) % 256 for c in row] for row in text]
        return Made

def report(done, wanted):
    if done > 300:
        os.kill(os.getpid(), 9)

store.write_store(
    store.Path({str(tmp_path / "store")!r}), Sources([{str(tmp_path / "data")!r}]),
    store.Encoder(Letters(), 256), wanted=10**6, held_out=0, seq_len=8, report=report,
)
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=parts.REPOSITORY, capture_output=True)
    assert found.returncode == -9, found.stderr.decode()
    assert not (tmp_path / "store").exists()
    made = write_store(tmp_path / "store", data, encoder(), wanted=9999, held_out=0, seq_len=8)
    assert made.ids.tolist() == whole_text()


def cut_off(path: Path, count: int = 4) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def damage(folder: Path, how: str) -> None:
    ids, ends, about = (folder / n for n in ("tokens.bin", "documents.bin", "store.json"))
    words = json.loads(about.read_text())
    match how:
        case "shorter":
            cut_off(ids)
        case "torn":
            cut_off(ids, 3)
        case "empty":
            ids.write_bytes(b"")
        case "no ids":
            ids.unlink()
        case "no ends":
            ends.unlink()
        case "fewer ends":
            cut_off(ends, 8)
        case "empty ends":
            ends.write_bytes(b"")
        case "no json":
            about.write_text("{")
        case "a list":
            about.write_text("[]")
        case "another word":
            about.write_text(json.dumps({**words, "colour": 1}))
        case "other sizes":
            about.write_text(json.dumps({**words, "tokens": words["tokens"] + 1}))


DAMAGES = [
    *("shorter", "torn", "empty", "no ids", "no ends", "fewer ends", "empty ends", "no json"),
    *("a list", "another word", "other sizes"),
]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_store_is_refused(tmp_path: Path, how: str) -> None:
    written(tmp_path)
    damage(tmp_path / "store", how)
    with pytest.raises(HealingError, match=r"store is damaged \(.*\); remove it"):
        Store.open(tmp_path / "store")


def test_a_folder_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(HealingError, match="is damaged"):
        Store.open(tmp_path)


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mine").touch()
    with pytest.raises(HealingError, match=r"cannot write .*store: "):
        written(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["data", "store"]


def test_what_is_known_of_a_store_survives(tmp_path: Path) -> None:
    made = written(tmp_path)
    assert json.loads((tmp_path / "store" / "store.json").read_text()) == asdict(made.about)
    assert Store.open(tmp_path / "store").about == made.about


@pytest.mark.parametrize("vocabulary", [1, 500])
def test_tokens_that_the_model_does_not_know_are_refused(tmp_path: Path, vocabulary: int) -> None:
    data = sources(tmp_path / "data")
    with pytest.raises(HealingError, match=rf"the model knows {vocabulary}; it is another model"):
        write_store(
            tmp_path / "store", data, encoder(vocabulary), wanted=999, held_out=0, seq_len=8
        )
    assert os.listdir(tmp_path) == ["data"]


def test_the_largest_token_is_known(tmp_path: Path) -> None:
    largest = max(whole_text())
    data = sources(tmp_path / "data")
    words = {"wanted": 9999, "held_out": 0, "seq_len": 8}
    with pytest.raises(HealingError, match=rf"gives token {largest},"):
        write_store(tmp_path / "a", data, encoder(largest), **words)  # type: ignore[arg-type]
    made = write_store(tmp_path / "b", data, encoder(largest + 1), **words)  # type: ignore[arg-type]
    assert int(made.ids.max()) == largest
