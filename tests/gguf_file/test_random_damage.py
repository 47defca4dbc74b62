"""Whatever becomes of a file's bytes, no other error than one of ours comes out."""

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from gguf import GGUFValueType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.errors import RopepatchError
from ropepatch.gguf_extending import extend_gguf, inspect_gguf
from ropepatch.gguf_file.reading import read_survey
from tests.gguf_file.made import YARN, array, entry, file_bytes, llama_entries, tensor, text

profile = settings(deadline=None, derandomize=True, max_examples=200, database=None)

PARTS = [
    *llama_entries(),
    entry("llama.rope.scaling.type", Kind.STRING, text("none")),
    entry("llama.rope.scaling.factor", Kind.FLOAT64, struct.pack("<d", 1)),
    entry("tokens", Kind.ARRAY, array(Kind.STRING, 3, text("a") + text("b") + text(""))),
    entry("flag", Kind.BOOL, b"\1"),
]
FACTORS = struct.pack("<16f", *(1.0,) * 16)
WHOLE = file_bytes(
    *PARTS,
    tensors=(tensor("rope_freqs.weight", (16,)), tensor("last", (4, 2), 64)),
    data=FACTORS + bytes(32),
)
"""Without general.alignment: how a huge one is taken is a test of its own."""

KEYS = [
    "context_length",
    "embedding_length",
    "attention.head_count",
    "attention.key_length",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.alpha",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "x.gguf"


def attempts(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with suppress(RopepatchError):
        read_survey(path)
    with suppress(RopepatchError):
        inspect_gguf(path)
    for recipe in (YARN, {"method": "p-rope", "factor": 2, "keep": 0.5}):
        with suppress(RopepatchError):
            extend_gguf(path, recipe, dry_run=True, replace=True)
    assert path.read_bytes() == content


def test_the_file_is_whole(path: Path) -> None:
    path.write_bytes(WHOLE)
    assert extend_gguf(path, YARN, dry_run=True).change.target_length == 1024


@profile
@given(
    flips=st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(1, 255)), min_size=1, max_size=4
    )
)
def test_changed_bits(path: Path, flips: list[tuple[int, int]]) -> None:
    content = bytearray(WHOLE)
    for place, change in flips:
        content[place] ^= change
    attempts(path, bytes(content))


@profile
@given(
    begin=st.integers(24, len(WHOLE)),
    length=st.integers(0, 64),
    instead=st.binary(max_size=32) | st.sampled_from([b"\xff" * 8, bytes(8), b"\xff" * 4]),
)
def test_spans_that_are_replaced(path: Path, begin: int, length: int, instead: bytes) -> None:
    attempts(path, WHOLE[:begin] + instead + WHOLE[begin + length :])


@profile
@given(
    key=st.sampled_from(KEYS),
    value=st.one_of(
        st.integers(0, 2**64 - 1).map(lambda n: struct.pack("<IQ", Kind.UINT64, n)),
        st.integers(-(2**63), 2**63 - 1).map(lambda n: struct.pack("<Iq", Kind.INT64, n)),
        st.floats().map(lambda x: struct.pack("<Id", Kind.FLOAT64, x)),
        st.sampled_from(["yarn", "linear", "longrope", "none", "dynamic", ""]).map(
            lambda word: struct.pack("<I", Kind.STRING) + text(word)
        ),
        st.lists(st.integers(0, 2**32 - 1), max_size=3).map(
            lambda row: (
                struct.pack("<I", Kind.ARRAY)
                + array(Kind.UINT32, len(row), struct.pack(f"<{len(row)}I", *row))
            )
        ),
    ),
    kind=st.sampled_from(["yarn", "linear", "longrope", "none"]),
)
def test_values_of_any_size_and_kind(path: Path, key: str, value: bytes, kind: str) -> None:
    """Well-formed, and possibly nonsense."""
    name = f"llama.{key}"
    parts = [p for p in PARTS if not p.startswith(text(name)) and b"scaling.type" not in p]
    if key != "rope.scaling.type":
        parts.append(entry("llama.rope.scaling.type", Kind.STRING, text(kind)))
    attempts(path, file_bytes(*parts, text(name) + value))
