"""Converted checkpoints, and what they are made of."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

import ropepatch
from ropepatch import convert_checkpoint
from ropepatch.errors import RopepatchError
from tests import tiny
from tests.families.small import build
from tests.tiny import read_json, tree, write_json

IDS = torch.randint(3, 128, (2, 72), generator=torch.Generator().manual_seed(7))
"""Longer than a sliding window of the small models."""
MODULE = "modeling_ropepatch.py"

NATIVE: dict[str, dict[str, Any]] = {
    "bloom": {"vocab_size": 128, "hidden_size": 64, "n_layer": 2, "n_head": 4, "seq_length": 64},
    "mpt": {
        "vocab_size": 128,
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 4,
        "max_seq_len": 96,
        "attn_config": {"alibi": True},
    },
    "falcon": {
        "vocab_size": 128,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "alibi": True,
    },
}
"""Families with linear biases of their own."""
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def model_of(kind: str) -> PreTrainedModel:
    """A filled model of a family, of those with own biases, or 'gemma3' with a tower for images."""
    if kind in NATIVE:
        config = AutoConfig.for_model(kind, **copy.deepcopy(NATIVE[kind]), **_ENDS)
        return tiny.build(config)
    if kind == "gemma3":
        return tiny.fill(_composite(), 0)
    return build(kind)


def _composite() -> PreTrainedModel:
    text = {k: v for k, v in tiny.GEMMA3.items() if k not in ("architectures", "model_type")}
    config = transformers.Gemma3Config(
        text_config=copy.deepcopy({**text, **_ENDS}),
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=1,
    )
    made: PreTrainedModel = transformers.Gemma3ForConditionalGeneration(config)
    return made


def read(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    """Logits of every token; the last hidden states where there is no head."""
    with torch.no_grad():
        found = model(input_ids=ids, use_cache=False)
    values: torch.Tensor = found["logits"] if "logits" in found else found["last_hidden_state"]
    return values


def saved(folder: Path, kind: str = "llama", **words: Any) -> tuple[Path, torch.Tensor]:
    """What a converted live model saves, and its logits."""
    model = model_of(kind)
    ropepatch.convert(model, **words)
    model.save_pretrained(folder)
    return folder, read(model)


def converted(source: Path, name: str = "out", **words: Any) -> Path:
    """A conversion of a folder on disk, beside it; the source stays as it was."""
    recipe = {k: words.pop(k) for k in list(words) if k in _RECIPE}
    before = tree(source)
    done = convert_checkpoint(source, recipe, source.parent / name, **words)
    assert tree(source) == before
    return done.target


_RECIPE = ("to", "layers", "keep_rope_every", "alibi_bias_max", "slope_scale", "factor")


def bare_converted(place: Path, **words: Any) -> Path:
    """A converted folder with weights of zeros, not verified: for what only handles files."""
    return converted(
        tiny.bare_checkpoint(place / "model"), **{"to": "alibi", "verify": False, **words}
    )


def refusal(source: Path, **words: Any) -> RopepatchError:
    """How a conversion is refused: in one line, and with nothing changed anywhere near."""
    recipe = {k: words.pop(k) for k in list(words) if k in _RECIPE}
    before = tree(source.parent)
    with pytest.raises(RopepatchError) as caught:
        convert_checkpoint(source, recipe, **{"output": source.parent / "refused", **words})
    assert tree(source.parent) == before
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def tamper(folder: Path, *path: str | int, value: Any = None) -> Path:
    """Set one value of config.json; None takes a key away."""
    config = read_json(folder / "config.json")
    part: Any = config
    for key in path[:-1]:
        part = part[key]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    write_json(folder / "config.json", config)
    return folder
