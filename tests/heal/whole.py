"""Small models, texts and trainings for the tests of whole runs."""

import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ropepatch.recovering import heal
from ropepatch_cli.app import main
from tests.end_to_end.program import Answer
from tests.tiny import GEMMA3

ROOT = Path(__file__).parents[2]
RETRIEVER = ROOT / "recipes" / "models" / "tiny-retriever"
WINDOW = 64
"""Tokens of pretraining of the small models."""
PLAN: dict[str, Any] = {
    "seq_len": 128,
    "steps": 4,
    "batch": 4,
    "micro_batch": 2,
    "learning_rate": 3e-3,
    "warmup": 1,
    "check_prompts": 0,
    "check_windows": 2,
    "precision": "float32",
}
_SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": WINDOW,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def built(family: str = "llama", **words: Any) -> Any:
    """A small random model; its loss is near that of guessing."""
    from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig

    if family == "gemma3":
        ropes = {"rope_parameters": GEMMA3["rope_parameters"], "sliding_window": 32}
        kinds = {"layer_types": GEMMA3["layer_types"], "query_pre_attn_scalar": 16}
        config: Any = Gemma3TextConfig(**{**_SIZES, **ropes, **kinds, **words})
    else:
        config = LlamaConfig(**{**_SIZES, "tie_word_embeddings": False, **words})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=words.get("dtype", torch.float32)).eval()


def with_tokenizer(folder: Path) -> Path:
    """The tokenizer of the tiny retriever beside a model."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(RETRIEVER / name, folder / name)
    return folder


def saved(folder: Path, family: str = "llama", *, shard: str = "5GB", **words: Any) -> Path:
    """A small model on disk, with its tokenizer and a card."""
    built(family, **words).save_pretrained(folder, max_shard_size=shard)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n", encoding="utf-8")
    return with_tokenizer(folder)


def documents(path: Path, *, count: int = 30, sentences: int = 40, seed: int = 0) -> Path:
    """JSONL of texts that hide a code and ask for it at their end."""
    import json

    drawn = random.Random(seed)
    nouns = ("lantern", "harbour", "garden", "letter", "bridge", "window", "river", "market")
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            noun, code = drawn.choice(nouns), drawn.randrange(10_000, 100_000)
            lines = [
                f"The {drawn.choice(nouns)} was {drawn.choice(('old', 'dark', 'quiet'))}."
                for _ in range(sentences)
            ]
            lines.insert(drawn.randrange(sentences), f"The code of {noun} is {code}.")
            text = f"{' '.join(lines)}\n\nThe code of {noun} is {code}"
            file.write(json.dumps({"text": text}) + "\n")
    return path


def healed(model: Path, data: Path, output: Path, words: Any = None, **others: Any) -> Any:
    """The record of a training, by the library in this process."""
    done = heal(model, data, {**PLAN, **(words or {})}, output, **others)
    assert done.training is not None
    assert done.target == output
    return done.training


def program(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Answer:
    """The program in this process."""
    before = sys.argv
    sys.argv = ["ropepatch", *map(str, arguments)]
    capsys.readouterr()
    try:
        with pytest.raises(SystemExit) as left:
            main()
    finally:
        sys.argv = before
    said = capsys.readouterr()
    code = left.value.code
    return Answer(code if isinstance(code, int) else 0, said.out, said.err)


def options(**words: Any) -> list[str]:
    """A plan as options of the program."""
    return list(_options({**PLAN, **words}))


def _options(words: dict[str, Any]) -> Iterator[str]:
    for name, value in words.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            yield option
        elif value is not None:
            yield from (option, str(value))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, whatever its files."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    assert found
    return found


def farthest(one: Path, other: Path) -> float:
    """The largest difference between the weights of two checkpoints."""
    ours, theirs = weights_of(one), weights_of(other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[k].float() - theirs[k].float()).abs().max()) for k in ours)


@torch.no_grad()
def logits(model: Any, *, length: int = 96) -> torch.Tensor:
    """Of the same random tokens, whatever the model."""
    ids = torch.randint(2, 2048, (1, length), generator=torch.Generator().manual_seed(3))
    found: torch.Tensor = model.eval()(input_ids=ids, use_cache=False).logits.float()
    return found


def left(folder: Path) -> list[str]:
    """Every name in a folder, hidden ones too."""
    return sorted(path.name for path in folder.iterdir())
