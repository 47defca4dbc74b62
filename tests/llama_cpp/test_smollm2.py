"""SmolLM2 extended by metadata: llama.cpp's logits against the patched transformers model's.

Measured on 2026-11-30 (llama-cpp-python 0.3.36, transformers 5.24.0, two cores, 12 minutes), the
largest difference of any logit after 2,048, 8,000, 8,500 and 8,704 tokens:

    plain                   9e-5  7e-4  3e-4  1.2e-3
    pi x4                   5e-5  2e-4  9e-5  3e-4
    yarn x4                 2e-4  7e-4  6e-4  1.8e-3
    pi x4 against plain     11.3  10.9  10.5  9.3
    yarn x4 against plain   2.0   3.8   2.9   4.7
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ropepatch
from tests.llama_cpp.engine import Logits, float32_copy, last_logits

PLACES = [2048, 8000, 8500, 8704]
"""Tokens read before each comparison; trained on 8,192."""
TOLERANCE = 5e-3
"""Logits reach 40. Angles of 8,704 radians err by 5e-4 in float32, in either program."""


def smollm2() -> Path:
    cache = os.environ.get("ROPEPATCH_CACHE") or Path.home() / ".cache" / "ropepatch"
    file = Path(cache) / "quickstart" / "smollm2.gguf"
    if not file.is_file():
        pytest.skip("SmolLM2 is fetched by recipes/quickstart.sh")
    return file


def text_tokens(count: int) -> list[int]:
    """English of this repository, over and over in another order."""
    from transformers import AutoTokenizer

    file = smollm2()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    ids: list[int] = tokenizer(readme)["input_ids"]
    while len(ids) < count:
        ids = ids + ids[101:]
    return ids[:count]


def transformers_logits(model: Any, tokens: list[int]) -> list[Logits]:
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state
        rows = hidden[0, [place - 1 for place in PLACES]]
        return list(model.lm_head(rows).float().numpy())


@pytest.mark.slow
def test_logits(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    file = float32_copy(smollm2(), tmp_path / "f32.gguf")
    tokens = text_tokens(PLACES[-1])
    model: Any = ropepatch.load(smollm2(), dtype=torch.float32)
    plain = last_logits(file, tokens, PLACES, 16384)
    said = {"plain": differences(plain, transformers_logits(model, tokens))}
    for method in ("pi", "yarn"):
        recipe = {"method": method, "factor": 4}
        done = ropepatch.extend_gguf(file, recipe, tmp_path / f"{method}.gguf")
        ours = last_logits(done.target, tokens, PLACES, 16384)
        patch = ropepatch.patch(model, recipe)
        said[method] = differences(ours, transformers_logits(model, tokens))
        patch.revert()
        said[f"{method} against plain"] = differences(ours, plain)
        done.target.unlink()
    print(said)
    for name in ("plain", "pi", "yarn"):
        assert max(said[name]) < TOLERANCE, said
    for name in ("pi against plain", "yarn against plain"):
        assert min(said[name]) > 0.5, said


def differences(some: list[Logits], others: list[Logits]) -> list[float]:
    return [float(np.abs(a - b).max()) for a, b in zip(some, others, strict=True)]
