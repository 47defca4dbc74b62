"""What an extension leaves behind is believed only as far as it fits the file."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType as Kind
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ropepatch.errors import CheckpointError, NoEffectError, RopepatchError
from ropepatch.gguf_extending import extend_gguf, inspect_gguf, restore_gguf
from ropepatch.gguf_file.draft import Draft, Value
from ropepatch.gguf_file.reading import read_survey
from ropepatch.gguf_file.stamp import STAMP
from ropepatch.gguf_file.writing import write
from tests.gguf_file.made import (
    EXPRESSIBLE,
    LLAMA3,
    TRAINED,
    YARN,
    make_model,
    one_line,
    read,
    with_text,
)

Record = dict[str, Any]


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a tensor, so that a record has something of everything; not to be changed."""
    source = make_model(tmp_path_factory.mktemp("model") / "x.gguf")
    return extend_gguf(source, LLAMA3).target


@pytest.fixture(scope="module")
def record(extended: Path) -> Record:
    found: Record = json.loads(read(extended)[STAMP])
    return found


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "x.gguf"


def attempts(extended: Path, path: Path, words: str) -> list[str]:
    """How the file is refused that says so, by those who read its record."""
    path.unlink(missing_ok=True)
    with_text(extended, path, words)
    content = path.read_bytes()
    said = []
    for attempt in (
        restore_gguf,
        inspect_gguf,
        lambda p: extend_gguf(p, YARN, dry_run=True, replace=True),
    ):
        try:
            attempt(path)
        except RopepatchError as error:
            said.append(one_line(error))
        else:
            said.append("")
    assert said[0], "restored by a damaged record"
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    return said


def test_a_record(extended: Path, record: Record) -> None:
    found = inspect_gguf(extended).record
    assert found == record
    assert found["recipe"] == LLAMA3
    assert (found["trained_length"], found["target_length"]) == (TRAINED, 4 * TRAINED)
    assert found["added"] == ["rope_freqs.weight"]
    assert found["before"]["llama.context_length"] == ["UINT32", "00200000"]
    assert found["before"]["llama.rope.scaling.original_context_length"] is None


def test_none(tmp_path: Path) -> None:
    path = make_model(tmp_path / "x.gguf")
    assert inspect_gguf(path).record is None
    with pytest.raises(CheckpointError, match=r"carries no record of ropepatch") as caught:
        restore_gguf(path)
    one_line(caught.value)


@pytest.mark.parametrize("words", ["", "{", "[]", "1", "null", "true", "{}", '"x"', "[" * 9999])
def test_no_json_or_no_mapping(words: str, extended: Path, other: Path) -> None:
    for said in attempts(extended, other, words):
        assert "the record of ropepatch in" in said
        assert "is damaged" in said


def test_another_kind_of_value(extended: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write(Draft(read_survey(extended), {STAMP: Value.of(Kind.UINT32, 7)}), path)
    with pytest.raises(CheckpointError, match=r"is damaged"):
        restore_gguf(path)


def test_of_a_newer_ropepatch(extended: Path, record: Record, other: Path) -> None:
    words = json.dumps(record | {"format": 2, "ropepatch": "9.9"})
    for said in attempts(extended, other, words):
        assert "written by a newer ropepatch; update" in said


DAMAGED: list[Any] = [
    {"format": "1"},
    {"format": True},
    {"recipe": {}},
    {"recipe": {"method": 3}},
    {"recipe": []},
    {"before": []},
    {"before": {"llama.context_length": ["UINT32", "zz"]}},
    {"before": {"llama.context_length": ["UINT99", "00200000"]}},
    {"before": {"llama.context_length": ["ARRAY", "00"]}},
    {"before": {"llama.context_length": ["UINT32"]}},
    {"before": {"llama.context_length": 8192}},
    {"before": {"llama.context_length": ["STRING", "00"]}},
    {"before": {"llama.context_length": ["STRING", "ff000000000000006162"]}},
    {"before": {"llama.context_length": ["UINT32", "00"]}},
    {"before": {"llama.context_length": ["UINT32", "0020000000"]}},
    {"before": {"general.name": ["STRING", "010000000000000061"]}},
    {"before": {"general.architecture": None}},
    {"before": {"general.alignment": ["UINT32", "01000000"]}},
    {"before": {"tokenizer.ggml.tokens": None}},
    {"before": {"qwen2.context_length": None}},
    {"before": {}},
    {"overwritten": []},
    {"overwritten": {"token_embd.weight": "00" * 9 * 64 * 4}},
    {"overwritten": {"rope_freqs.weight": "00"}},
    {"overwritten": {"rope_freqs.weight": 5}},
    {"overwritten": {"rope_factors_long.weight": "00" * 128}},
    {"added": ["output.weight"]},
    {"added": ["rope_freqs.weight"] * 2},
    {"added": ["rope_freqs.weight"] * 99},
    {"added": ["rope_factors_long.weight"]},
    {"added": [["rope_freqs.weight"]]},
    {"added": [None]},
    {"added": {}},
    {"added": []},
    {"data_size": -1},
    {"data_size": 0},
    {"data_size": 1.0},
    {"data_size": None},
    {"data_size": 2**70},
    {"trained_length": 0},
    {"trained_length": "8192"},
    {"target_length": True},
    {"header_sha256": "00" * 32},
    {"header_sha256": None},
    {"format": 2, "ropepatch": "9\n9"},
]


@pytest.mark.parametrize("change", DAMAGED, ids=str)
def test_damaged_records(change: Record, extended: Path, record: Record, other: Path) -> None:
    attempts(extended, other, json.dumps(record | change))


@pytest.mark.parametrize(
    "change",
    [
        {"before": {"general.name": ["STRING", "010000000000000061"]}},
        {"before": {"general.architecture": None}},
        {"before": {"qwen2.context_length": None}},
        {"overwritten": {"token_embd.weight": "00" * 9 * 64 * 4}},
        {"added": ["output.weight"]},
    ],
    ids=str,
)
def test_what_is_not_ours(change: Record, extended: Path, record: Record, other: Path) -> None:
    """A record must not reach for other keys and tensors, by way of --replace neither."""
    restored, _, replaced = attempts(extended, other, json.dumps(record | change))
    assert "the record of ropepatch does not fit" in restored
    assert "the record of ropepatch does not fit" in replaced


@pytest.mark.parametrize("key", ["format", "recipe", "before", "overwritten", "added"])
def test_parts_that_are_missing(key: str, extended: Path, record: Record, other: Path) -> None:
    attempts(extended, other, json.dumps({k: v for k, v in record.items() if k != key}))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["STRING", "BOOL", "rope_freqs.weight", "", "00"])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(deadline=None, derandomize=True, max_examples=100, database=None)
@given(key=st.sampled_from(["before", "overwritten", "added"]), value=anything)
def test_any_value(key: str, value: Any, extended: Path, record: Record, other: Path) -> None:
    assume(value != record[key])
    attempts(extended, other, json.dumps(record | {key: value}))


# --- a file that was edited since -------------------------------------------------------------


@pytest.mark.parametrize("key", ["general.name", "somebody.elses.key", "general.new"])
def test_edited_since(key: str, extended: Path, tmp_path: Path) -> None:
    """Other words stand in the header now; the old one cannot come back to the byte."""
    path = with_text(extended, tmp_path / "x.gguf", "other words", key)
    content = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"was changed since .* extend the original again"):
        restore_gguf(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("case", ["yarn", "llama3", "ntk", "ntk-by-parts"])
def test_edited_since_and_replaced(case: str, extended: Path, tmp_path: Path) -> None:
    """An edit of something else is carried on, and is what a restore then gives back."""
    path = with_text(extended, tmp_path / "x.gguf", "other words", "general.name")
    if case == "llama3":
        with pytest.raises(NoEffectError, match=r"turns by llama3 with these parameters already"):
            extend_gguf(path, LLAMA3, replace=True)
        return
    done = extend_gguf(path, EXPRESSIBLE[case], replace=True)
    assert read(done.target)["general.name"] == "other words"
    restore_gguf(done.target)
    found = read(done.target)
    assert found["general.name"] == "other words"
    assert found["llama.context_length"] == TRAINED
    assert STAMP not in found


def test_edited_where_the_extension_wrote(extended: Path, tmp_path: Path) -> None:
    """A length raised by hand goes with the rest, since the record knows the old one."""
    path = tmp_path / "x.gguf"
    key = "llama.context_length"
    write(Draft(read_survey(extended), {key: Value.of(Kind.UINT32, 2**20)}), path)
    restore_gguf(path)
    assert read(path)[key] == TRAINED
