"""Tiny real models of every family: extended, proven, reloaded by plain transformers, and run."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from ropepatch import Recipe, extend, read_layout
from ropepatch.extending import Extension
from ropepatch.model.logits import compare_logits
from ropepatch.model.skeleton import quiet
from tests.families.layouts import LAYOUTS
from tests.families.outcomes import FORCED, OUTCOMES, SCALED, WINDOWED, parameters
from tests.families.shapes import PUBLISHED, SHAPES
from tests.families.tiny import tiny
from tests.tiny import fill

QUICK = ("llama-3.2-1b", "phi-3-mini-128k", "pythia-1.4b", "smollm3-3b")
"""Run always; the other families only with the slow tests."""

every_family = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in PUBLISHED],
)

FIRST_CHOICES = ("yarn", "pi", "longrope")
"""The first that works is what a family is extended by."""


@cache
def folder_of(name: str, base: Path) -> Path:
    """Weights, beside the config as it was published (only smaller)."""
    folder = base / name
    folder.mkdir()
    config = folder / "config.json"
    config.write_text(json.dumps(tiny(SHAPES[name])), encoding="utf-8")
    with quiet():
        parsed = AutoConfig.from_pretrained(folder)
        fill(template(parsed).from_config(parsed), seed=0).save_pretrained(folder)
    config.write_text(json.dumps(tiny(SHAPES[name])), encoding="utf-8")
    return folder


def template(config: Any) -> Any:
    causal = type(config) in AutoModelForCausalLM._model_mapping
    return AutoModelForCausalLM if causal else AutoModelForImageTextToText


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def load(folder: Path) -> Any:
    """As anyone would who has never heard of ropepatch."""
    with quiet():
        config = AutoConfig.from_pretrained(folder)
        return template(config).from_pretrained(folder, dtype=torch.float32).eval()


def extended(name: str, base: Path, method: str, target: Path) -> Extension:
    layers = "all" if OUTCOMES[name] is WINDOWED else "auto"
    turns = LAYOUTS[name].turns
    turn = turns.get("full_attention") or turns[""]
    words = parameters(method, (turn.rotary_dim or turn.head_dim) // 2)
    asked = Recipe.named(method, layers=layers, **words)
    return extend(folder_of(name, base), asked, target, replace=True)


def works(name: str, method: str) -> bool:
    table = FORCED if OUTCOMES[name] is WINDOWED else OUTCOMES
    return table[name][method] is None


@every_family
def test_a_reload_sees_further_and_turns_by_our_numbers(
    name: str, base: Path, tmp_path: Path
) -> None:
    method = next(m for m in FIRST_CHOICES if works(name, m))
    done = extended(name, base, method, tmp_path / "long")
    moved = compare_logits(tmp_path / "long", done.change.before, done.change.target_length)
    assert moved.long > 1e-3
    if method == "longrope":  # which set is in force depends on the input
        return
    reloaded = logits(load(tmp_path / "long"), 4096)
    original = load(folder_of(name, base))
    apart = (logits(original, 4096) - reloaded).abs().max().item()
    turn_by(original, done)
    assert (logits(original, 4096) - reloaded).abs().max().item() < 0.01 * apart


@every_family
def test_dynamic_ntk_leaves_short_inputs_alone(name: str, base: Path, tmp_path: Path) -> None:
    if not works(name, "dynamic-ntk"):
        return  # refused, as test_methods has it
    done = extended(name, base, "dynamic-ntk", tmp_path / "long")
    moved = compare_logits(tmp_path / "long", done.change.before, done.change.target_length)
    assert moved.long > 1e-3
    scaled = name in SCALED or name.startswith("llama-4")
    assert (moved.short == 0.0) != scaled  # what was there before moved short inputs too


@every_family
def test_as_many_layers_turn_as_the_layout_says(name: str, base: Path) -> None:
    folder = folder_of(name, base)
    groups = read_layout(tiny(SHAPES[name])).groups
    model = load(folder)
    with counted(model) as calls:
        logits(model, 64)
    turning = sum(len(g.layers) for g in groups if g.rotates)
    each = 2 if name.startswith("gemma-4") else 1  # queries and keys one after the other
    assert len(calls) == each * turning


def logits(model: Any, length: int) -> torch.Tensor:
    """(64, vocabulary): the second half of the tokens stands at the end of `length`."""
    positions = torch.cat([torch.arange(32), torch.arange(length - 32, length)])[None]
    ids = torch.arange(64)[None] % 61
    with torch.no_grad():
        out = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            position_ids=positions,
            use_cache=False,
        )
    found: torch.Tensor = out.logits[0]
    return found


def turn_by(model: Any, done: Extension) -> None:
    """Put the method's own numbers into a loaded model: no config of ours is read."""
    assert done.proof is not None
    change = done.change
    text_type = type(model.config.get_text_config(decoder=True))
    of_text = [m for m in model.modules() if isinstance(getattr(m, "config", None), text_type)]
    for module in of_text:
        for label, method in change.methods.items():
            prefix = f"{label}_" if label else ""
            buffer = getattr(module, f"{prefix}inv_freq", None)
            if buffer is not None:
                numbers = method.frequencies(change.layout.schedules[label].geometry, 1)
                buffer.copy_(torch.tensor(numbers.inv_freq, dtype=torch.float64))
                setattr(module, f"{prefix}attention_scaling", numbers.attention_factor)
        if isinstance(getattr(module, "scaling", None), float):
            module.scaling *= done.proof.softmax_scale_ratio


@contextmanager
def counted(model: Any) -> Iterator[list[str]]:
    """Calls of the functions that turn queries and keys, in the text model's module."""
    modules = {sys.modules[type(part).__module__] for part in model.modules()}
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for word in dir(module):
                if word.startswith("apply_") and "rotary" in word and "vision" not in word:
                    turn = getattr(module, word)

                    def count(*args: Any, _turn: Any = turn, **words: Any) -> Any:
                        calls.append(_turn.__name__)
                        return _turn(*args, **words)

                    patch.setattr(module, word, count)
        yield calls
