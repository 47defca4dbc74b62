"""GGUF files made on the spot: byte by byte, or by the gguf package."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGUFValueType

from ropepatch.errors import RopepatchError
from ropepatch.gguf_file.draft import Draft, Value
from ropepatch.gguf_file.reading import read_survey
from ropepatch.gguf_file.stamp import STAMP
from ropepatch.gguf_file.writing import write

TRAINED = 8192
HEAD, HEADS = 64, 2
PAIRS = HEAD // 2
WORDS = [f"word{i}" for i in range(40)]
LONG = [1.0 + i / 8 for i in range(PAIRS)]
SHORT = [1.0 + i / 512 for i in range(PAIRS)]
YARN = {"method": "yarn", "factor": 4}
NTK = {"method": "ntk", "factor": 4}
LLAMA3 = {"method": "llama3", "factor": 4}
LONGROPE = {"method": "longrope", "factor": 4, "long_factor": LONG, "short_factor": SHORT}

EXPRESSIBLE: dict[str, dict[str, Any]] = {
    "yarn": YARN,
    "yarn ×2.5": {"method": "yarn", "factor": 2.5},
    "yarn to": {"method": "yarn", "to": 20000},
    "yarn, attention": YARN | {"attention_factor": 1.0},
    "yarn, betas": YARN | {"beta_fast": 16, "beta_slow": 2},
    "yarn, no floor": YARN | {"truncate": False},
    "yarn, mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.1},
    "pi": {"method": "pi", "factor": 4},
    "pi, keep": {"method": "pi", "factor": 4, "keep": 0.5},
    "ntk": NTK,
    "ntk-by-parts": {"method": "ntk-by-parts", "factor": 8},
    "llama3": LLAMA3,
    "longrope": LONGROPE,
    "longrope, long alone": {"method": "longrope", "factor": 2, "long_factor": LONG},
    "p-rope": {"method": "p-rope", "factor": 2, "keep": 0.25},
    "p-rope, auto": {"method": "p-rope", "factor": 2},
}
"""What a llama can be told: all methods that do not follow the length."""


# --- byte by byte -----------------------------------------------------------------------------


def text(words: str | bytes) -> bytes:
    raw = words.encode() if isinstance(words, str) else words
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(of: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", of, count) + values


def tensor(
    name: str | bytes, shape: tuple[int, ...] = (4,), offset: int = 0, kind: int = 0
) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file_bytes(
    *parts: bytes,
    tensors: tuple[bytes, ...] = (),
    data: bytes = b"",
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A file of these entries and tensors; `counts` says what the front claims instead."""
    count, entries = counts or (len(tensors), len(parts))
    front = struct.pack("<4sIQQ", b"GGUF", version, count, entries)
    header = front + b"".join((*parts, *tensors))
    return header + bytes(-len(header) % alignment) + data


def llama_entries() -> list[bytes]:
    """What a llama's file must say."""
    number = GGUFValueType.UINT32
    return [
        entry("general.architecture", GGUFValueType.STRING, text("llama")),
        entry("llama.context_length", number, struct.pack("<I", 256)),
        entry("llama.embedding_length", number, struct.pack("<I", 64)),
        entry("llama.attention.head_count", number, struct.pack("<I", 2)),
        entry("llama.rope.freq_base", GGUFValueType.FLOAT32, struct.pack("<f", 10000)),
    ]


# --- by the gguf package ----------------------------------------------------------------------


def make_model(
    path: Path,
    arch: str = "llama",
    *,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, list[float]] | None = None,
    alignment: int = 32,
    without: tuple[str, ...] = (),
    part_size: int = 0,
) -> Path:
    """A small file of any architecture; `keys` are below its name, tensors are rows of float32.

    A number with a point becomes FLOAT32, one without UINT32, a list an array.
    """
    writer = gguf.GGUFWriter(str(path), arch, split_max_tensors=part_size)
    writer.add_name("a model")
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_array("tokenizer.ggml.tokens", WORDS)
    words: dict[str, Any] = {
        "context_length": TRAINED,
        "embedding_length": HEAD * HEADS,
        "attention.head_count": HEADS,
        "rope.dimension_count": HEAD,
        "rope.freq_base": 500000.0,
    }
    for key, value in (words | dict(keys or {})).items():
        if key not in without:
            add(writer, f"{arch}.{key}", value)
    writer.add_array("tokenizer.ggml.scores", [i / 7 for i in range(40)])
    writer.add_string("somebody.elses.key", "kept – as it is")
    chance = np.random.default_rng(0)
    for name, shape in {"token_embd": (9, 64), "blk.0.attn_q": (5, 32), "norm": (3,)}.items():
        writer.add_tensor(f"{name}.weight", chance.standard_normal(shape).astype(np.float32))
    for name, row in (tensors or {}).items():
        writer.add_tensor(name, np.array(row, np.float32))
    packed = chance.integers(0, 255, (2, 34), np.uint8)  # 32 weights in 34 bytes
    writer.add_tensor("output.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


# --- looking at them --------------------------------------------------------------------------


def read(path: Path) -> dict[str, Any]:
    """All keys and values, in their order, by gguf's own reader."""
    reader = gguf.GGUFReader(path)
    return {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}


def kinds(path: Path) -> dict[str, GGUFValueType]:
    reader = gguf.GGUFReader(path)
    return {k: f.types[0] for k, f in reader.fields.items() if not k.startswith("GGUF.")}


def tensors_of(path: Path) -> dict[str, tuple[list[int], int, bytes]]:
    """Shape, element type and bytes of every tensor, by gguf's own reader."""
    return {
        t.name: (t.shape.tolist(), int(t.tensor_type), t.data.tobytes())
        for t in gguf.GGUFReader(path).tensors
    }


def data_of(path: Path) -> bytes:
    """Everything behind the header."""
    start = int(gguf.GGUFReader(path).data_offset)
    return path.read_bytes()[start:]


def with_text(path: Path, target: Path, words: str, key: str = STAMP) -> Path:
    """The same file with another text under a key."""
    write(Draft(read_survey(path), {key: Value.of(GGUFValueType.STRING, words)}), target)
    return target


def one_line(error: BaseException) -> str:
    """A refusal's words, which stand on one line."""
    assert isinstance(error, RopepatchError)
    (line,) = str(error).splitlines()
    return line
