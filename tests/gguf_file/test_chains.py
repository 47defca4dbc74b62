"""Any extension after any other, over files of any kind: right or refused, and undone to the byte.

The check is llama.cpp's arithmetic in float32, which also knows the files that would not load.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.errors import RopepatchError
from ropepatch.gguf_extending import extend_gguf, restore_gguf
from tests.gguf_file import made
from tests.gguf_file.by_ggml import FREQS, LONG, SHORT
from tests.gguf_file.made import EXPRESSIBLE, PAIRS, TRAINED, make_model, read
from tests.gguf_file.test_numbers import agree

ORIGINALS: list[dict[str, Any]] = [
    {"arch": "llama"},
    {"arch": "llama", "keys": {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}},
    {"arch": "llama", "keys": {"rope.scale_linear": 2.0}},
    {"arch": "llama", "tensors": {FREQS: [1.0] * 20 + [8.0] * 12}},
    {
        "arch": "llama",
        "keys": {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.2},
        "tensors": {LONG: made.LONG, SHORT: made.SHORT},
    },
    {"arch": "arcee"},
    {"arch": "qwen2", "keys": {"rope.scaling.factor": 2.0}},
    {"arch": "gemma3", "keys": {"rope.scaling.factor": 8.0, "attention.sliding_window": 512}},
    {"arch": "phi3"},
    {"arch": "phi3", "tensors": {LONG: made.LONG, SHORT: [1.0] * PAIRS}},
    {"arch": "mistral3", "keys": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}},
]
NEVER_LONG = [w for w in EXPRESSIBLE.values() if w["method"] != "longrope"]


@settings(deadline=None, derandomize=True, max_examples=20, database=None)
@given(
    original=st.sampled_from(ORIGINALS),
    alignment=st.sampled_from([8, 32, 4096]),
    chain=st.lists(st.sampled_from(NEVER_LONG), min_size=1, max_size=4),
)
def test_any_chain(
    original: dict[str, Any],
    alignment: int,
    chain: list[dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Without longrope, whose replacement is a known fault (test_restoring)."""
    folder = tmp_path_factory.mktemp("chain")
    source = last = make_model(folder / "x.gguf", alignment=alignment, **original)
    for number, words in enumerate(chain):
        target = folder / f"{number}.gguf"
        told = words | {"trained_length": TRAINED}
        try:
            last = extend_gguf(last, told, target, replace=True).target
        except RopepatchError:
            assert not target.exists()
            continue
        agree(last, words)
        assert list(read(last))[: len(read(source))] == list(read(source))
    if last != source:
        restore_gguf(last)
        assert last.read_bytes() == source.read_bytes()
