"""Every method that metadata can say, as llama.cpp turns by it, on a tiny random Llama."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import ropepatch
from tests.end_to_end.test_gguf import HEAD, make_gguf
from tests.llama_cpp.engine import Logits, last_logits
from tests.tiny import TRAINED

FACTOR = 4.0
PLACES = [100, TRAINED, TRAINED + 44, 1000]
TOKENS = torch.arange(PLACES[-1]) * 7 % 120 + 4
TOLERANCE = 2e-4
"""Logits of about 3; both in float32."""

LONG = [1 + i / 4 for i in range(HEAD // 2)]
RECIPES: dict[str, dict[str, Any]] = {
    "yarn": {"method": "yarn"},
    "yarn, attention factor": {"method": "yarn", "attention_factor": 1.0},
    "yarn, other ramp": {"method": "yarn", "beta_fast": 8.0, "beta_slow": 2.0},
    "yarn, ends not rounded": {"method": "yarn", "truncate": False},
    "pi": {"method": "pi"},
    "pi, half kept": {"method": "pi", "keep": 0.5},
    "ntk": {"method": "ntk"},
    "llama3": {"method": "llama3"},
    "ntk-by-parts": {"method": "ntk-by-parts"},
    "p-rope": {"method": "p-rope", "keep": 0.5},
    "no rotation": {"method": "p-rope", "keep": 0.0},
    "longrope": {"method": "longrope", "long_factor": LONG},
}


def transformers_logits(model: Any, places: list[int]) -> list[Logits]:
    with torch.no_grad():
        return [
            model(input_ids=TOKENS[None, :place], use_cache=False).logits[0, -1].numpy()
            for place in places
        ]


def largest(some: list[Logits], others: list[Logits]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(some, others, strict=True))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setenv("ROPEPATCH_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", RECIPES)
def test_method(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name] | {"factor": FACTOR}
    plain = make_gguf(tmp_path / "plain.gguf")
    done = ropepatch.extend_gguf(plain, recipe, tmp_path / "extended.gguf")
    model: Any = ropepatch.load(plain, dtype=torch.float32)
    tokens = TOKENS.tolist()
    # the size of the context, not the length of a prompt, takes the long factors
    places = [p for p in PLACES if p > TRAINED] if name == "longrope" else PLACES
    assert (
        largest(last_logits(plain, tokens, places, 1024), transformers_logits(model, places))
        < TOLERANCE
    )
    before = transformers_logits(model, places)
    if name == "longrope":  # a patch reads the start of a text with the short factors
        folder = ropepatch.extend(plain, recipe, tmp_path / "folder", verify=False).target
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
    else:
        ropepatch.patch(model, recipe)
    wanted = transformers_logits(model, places)
    found = last_logits(done.target, tokens, places, 1024)
    assert largest(found, wanted) < TOLERANCE
    assert largest(found, before) > 100 * TOLERANCE
    if name == "longrope":
        short = last_logits(done.target, tokens, [100, TRAINED], TRAINED)
        assert largest(short, transformers_logits(model, [100, TRAINED])) < TOLERANCE


def test_the_way_back(tmp_path: Path) -> None:
    plain = make_gguf(tmp_path / "plain.gguf")
    done = ropepatch.extend_gguf(plain, RECIPES["llama3"] | {"factor": FACTOR}, tmp_path / "e.gguf")
    ropepatch.restore_gguf(done.target)
    tokens = TOKENS.tolist()
    one, other = (last_logits(file, tokens, PLACES, 1024) for file in (plain, done.target))
    assert largest(one, other) == 0.0
