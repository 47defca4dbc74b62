"""Tiny checkpoints, made on the spot.

`bare_*` needs no torch: a config and a safetensors file of zeros, enough for everything that
handles files. `make_llama` is the real thing, made and saved by transformers.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

TRAINED = 256
"""Tokens: what every tiny model says it was trained on."""

_SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": TRAINED,
}
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **_SIZES,
    "head_dim": 32,
}

V4: dict[str, Any] = {
    **_LLAMA,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "transformers_version": "4.57.6",
}
"""A config.json as transformers 4 wrote it."""

V5: dict[str, Any] = {
    **_LLAMA,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "transformers_version": "5.24.0",
}
"""A config.json as transformers 5 writes it."""

GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    **_SIZES,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "transformers_version": "5.24.0",
}
"""One schedule per layer type."""

COMPOSITE: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {k: v for k, v in GEMMA3.items() if k != "architectures"},
    "image_token_index": 99,
    "transformers_version": "5.24.0",
}
"""The text model as a part of another."""


def write_json(path: Path, value: Any) -> Path:
    """Write a value as JSON, in a way that no code of ours would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path


def read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def safetensors_bytes(values: int = 16, name: str = "lm_head.weight") -> bytes:
    """A whole safetensors file: one float32 tensor of zeros."""
    header = json.dumps(
        {name: {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4 * values)


def bare_checkpoint(
    folder: Path, config: Mapping[str, Any] = V5, *, shards: int = 1, values: int = 16
) -> Path:
    """A folder that `read_checkpoint` takes: config, weights, and an index if sharded."""
    write_json(folder / "config.json", config)
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(values))
        return folder
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    for i, name in enumerate(names):
        (folder / name).write_bytes(safetensors_bytes(values, f"part.{i}"))
    weight_map = {f"part.{i}": name for i, name in enumerate(names)}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return folder


def tree(folder: Path) -> dict[str, str]:
    """Every path below a folder with a hash of what it holds, hidden ones too."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def fill(model: "PreTrainedModel", seed: int) -> "PreTrainedModel":
    """Seeded weights that depend on names and shapes alone, not on torch's generator.

    The rule of the reference logits (tests/data/logits.json).
    """
    import numpy as np
    import torch

    gemma = "gemma" in model.config.model_type
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            chance = np.random.default_rng([seed, zlib.crc32(name.encode())])
            x = chance.standard_normal(tuple(parameter.shape))
            if parameter.ndim == 1:
                is_norm = ("norm" in name or "ln_" in name) and name.endswith("weight")
                x = 0.1 * x + (1 if is_norm and not gemma else 0)
            elif "embed" in name or "wte" in name:
                x = 0.5 * x
            else:
                x = x * 1.5 / np.sqrt(parameter.shape[-1])
            parameter.copy_(torch.from_numpy(x.astype(np.float32)))
    model.eval()
    return model


def build(config: "PreTrainedConfig", seed: int = 0) -> "PreTrainedModel":
    """A filled causal language model of this config."""
    from transformers import AutoModelForCausalLM

    return fill(AutoModelForCausalLM.from_config(config), seed)


def llama_config(**words: Any) -> "PreTrainedConfig":
    from transformers import LlamaConfig

    sizes = {k: v for k, v in V5.items() if k not in ("architectures", "transformers_version")}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaConfig(**{**sizes, **ends, "tie_word_embeddings": False, **words})


def make_llama(folder: Path, *, max_shard_size: str = "5GB", **words: Any) -> Path:
    """A real tiny Llama with a tokenizer; both files that speak of length say `TRAINED`."""
    model = build(llama_config(**words))
    if model.generation_config is not None:
        model.generation_config.max_length = TRAINED
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    make_tokenizer(folder)
    return folder


def make_tokenizer(folder: Path) -> None:
    """A tokenizer of single letters, saved by transformers."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", *(chr(c) for c in range(32, 127))]
    level = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>")
    tokenizer = Tokenizer(level)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=TRAINED,
    ).save_pretrained(folder)
