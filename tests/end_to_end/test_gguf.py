"""A GGUF file becomes an extended safetensors folder; what would be lost on the way is refused."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropepatch import Recipe, extend, inspect
from ropepatch.errors import CheckpointError
from tests.tiny import TRAINED, read_json, tree

YARN = Recipe.named("yarn", factor=4)
WIDTH, HEAD, HEADS, INNER, LAYERS = 64, 32, 2, 96, 2
WORDS = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(125))]


def make_gguf(path: Path, *, scaling: str | None = None, factors: bool = False) -> Path:
    """A Llama of two layers with random float32 weights, as llama.cpp's converter lays it out."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(TRAINED)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(len(WORDS))
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
        writer.add_rope_scaling_factor(4.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([0.0] * len(WORDS))
    writer.add_token_types([2, 3, 3, *[6] * (len(WORDS) - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    chance = np.random.default_rng(0)
    shapes = {"token_embd": (len(WORDS), WIDTH), "output": (len(WORDS), WIDTH)}
    norms = ["output_norm"]
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_q": (HEADS * HEAD, WIDTH),
            f"blk.{i}.attn_k": (HEAD, WIDTH),
            f"blk.{i}.attn_v": (HEAD, WIDTH),
            f"blk.{i}.attn_output": (WIDTH, HEADS * HEAD),
            f"blk.{i}.ffn_gate": (INNER, WIDTH),
            f"blk.{i}.ffn_up": (INNER, WIDTH),
            f"blk.{i}.ffn_down": (WIDTH, INNER),
        }
        norms += [f"blk.{i}.attn_norm", f"blk.{i}.ffn_norm"]
    for name, shape in shapes.items():
        weights = chance.standard_normal(shape) / np.sqrt(shape[1])
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    if factors:
        writer.add_tensor("rope_freqs.weight", np.ones(HEAD // 2, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROPEPATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(100)[None], use_cache=False).logits
    return found


def test_extend(tmp_path: Path, cache: Path) -> None:
    path = make_gguf(tmp_path / "tiny.gguf")
    found = inspect(path)
    assert (found.layout.trained_length, found.layout.scaled) == (TRAINED, False)
    dry = extend(path, YARN, dry_run=True)
    assert dry.target == tmp_path / "tiny-yarn-1k"
    assert not cache.exists()

    said: list[str] = []
    done = extend(path, YARN, say=said.append)
    assert done.target == dry.target
    assert done.proof is not None
    assert done.proof.layers_changed == LAYERS
    assert said[0].startswith(f"dequantising tiny.gguf to safetensors, once, in {cache}")
    assert read_json(done.target / "ropepatch.json")["source"]["model"] == str(path)
    AutoTokenizer.from_pretrained(done.target)

    (folder,) = cache.iterdir()
    kept = tree(cache)
    again: list[str] = []
    extend(path, Recipe.named("pi", factor=4), tmp_path / "pi", verify=False, say=again.append)
    assert again == []
    assert tree(cache) == kept

    plain = {"gguf_file": path.name, "dtype": torch.float32}
    original = AutoModelForCausalLM.from_pretrained(path.parent, **plain).eval()
    assert torch.equal(logits(original), logits(AutoModelForCausalLM.from_pretrained(folder)))
    extended = AutoModelForCausalLM.from_pretrained(done.target)
    assert not torch.allclose(logits(original), logits(extended), atol=0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"scaling": "yarn"}, r"already scaled \(rope.scaling.type yarn\)"),
        ({"scaling": "linear"}, r"already scaled \(rope.scaling.type linear\)"),
        ({"factors": True}, r"already scaled \(rope_freqs.weight\)"),
    ],
)
def test_scaled_files_are_refused(words: dict[str, Any], said: str, tmp_path: Path) -> None:
    """transformers would read such a file as if it were plain."""
    path = make_gguf(tmp_path / "tiny.gguf", **words)
    for attempt in (lambda: inspect(path), lambda: extend(path, YARN)):
        with pytest.raises(CheckpointError, match=said):
            attempt()
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_scaling_of_none_is_plain(tmp_path: Path) -> None:
    assert not inspect(make_gguf(tmp_path / "tiny.gguf", scaling="none")).layout.scaled


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a GGUF file"),
        (b"GGML", "is not a GGUF file"),
        (b"GGUF", "is damaged or cut short"),
    ],
)
def test_damaged_files(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        inspect(tmp_path / "x.gguf")


def test_a_truncated_file(tmp_path: Path, cache: Path) -> None:
    path = make_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(CheckpointError, match=r"damaged or cut short"):
        extend(path, YARN)
    assert not cache.exists() or not list(cache.iterdir())


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setenv("ROPEPATCH_CACHE", str(path / "inside-a-file"))
    with pytest.raises(CheckpointError, match=r"cannot write the cache .* set ROPEPATCH_CACHE"):
        extend(path, YARN)
