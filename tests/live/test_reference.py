"""Patched live models against logits that ropepatch had no part in, and against the formulas."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

import ropepatch
from tests import tiny
from tests.checkpoint.test_logits import CASES, DATA, REFERENCE, logits, recipe_of
from tests.live.subjects import TRAINED, make, patched, text

MODELS = list(REFERENCE["models"])


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    """The reference's seeded models; patched and reverted by one test after the other."""
    return {
        name: tiny.build(
            getattr(transformers, words["config_class"])(**words["config"]), words["seed"]
        )
        for name, words in REFERENCE["models"].items()
    }


@pytest.fixture
def wanted() -> Iterator[Any]:
    with np.load(DATA / "logits.npz") as values:
        yield values


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_patched_model_gives_the_reference(
    case: dict[str, Any], models: dict[str, PreTrainedModel], wanted: Any
) -> None:
    model, count = models[case["model"]], case["n_tokens"]
    if case["method"] == "default":
        found = logits(model, count)
    else:
        with ropepatch.patch(model, recipe_of(case)) as handle:
            follows = handle.describe().changes != "never"
            with handle.pinned(count) if follows else nullcontext():
                found = logits(model, count)
    values = found[case["positions"]].numpy()
    np.testing.assert_allclose(values, wanted[case["id"]], rtol=0, atol=case["atol"])


@pytest.mark.parametrize("name", MODELS)
def test_reverting_gives_the_reference_of_the_plain_model(
    name: str, models: dict[str, PreTrainedModel], wanted: Any
) -> None:
    ropepatch.patch(models[name], "yarn", 4).revert()
    case = next(c for c in CASES if c["id"] == f"{name}/default")
    found = logits(models[name], case["n_tokens"])[case["positions"]].numpy()
    np.testing.assert_allclose(found, wanted[case["id"]], rtol=0, atol=case["atol"])


# --- dynamic-yarn, for which transformers has no type -------------------------------------------


def yarn_by_hand(
    scale: float, theta: float, width: int, trained: int, fast: float, slow: float, round_: bool
) -> tuple[np.ndarray[Any, Any], float]:
    """Frequencies of YaRN and its factor on cos and sin, in float64, from the paper alone."""
    pairs = np.arange(width // 2, dtype=np.float64)
    base = theta ** (-2 * pairs / width)

    def pair_that_turns(times: float) -> float:
        return width * math.log(trained / (2 * math.pi * times)) / (2 * math.log(theta))

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if round_:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    slowed = np.clip((pairs - low) / max(high - low, 1e-3), 0, 1)
    return base * (1 - slowed) + base / scale * slowed, 0.1 * math.log(scale) + 1


@pytest.mark.parametrize("length", [64, 65, 100, 200, 256, 700])
@pytest.mark.parametrize(
    "words",
    [
        {"factor": 4.0},
        {"factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        {"factor": 8.0, "tuned_factor": 4.0},
    ],
    ids=["plain", "betas", "tuned"],
)
def test_dynamic_yarn_turns_by_the_formula(words: dict[str, Any], length: int) -> None:
    model: Any = make()
    base, factor = yarn_by_hand(
        max(length / TRAINED, words.get("tuned_factor", 1.0)),
        10000.0,
        64,
        TRAINED,
        words.get("beta_fast", 32.0),
        words.get("beta_slow", 1.0),
        words.get("truncate", True),
    )
    places = torch.arange(length)[None]
    with patched(model, ("dynamic-yarn", words)) as handle, handle.pinned(length):
        cos, sin = model.model.rotary_emb(torch.zeros(1, 1, 1), places)
    angles = np.arange(length)[:, None] * np.concatenate([base, base])
    np.testing.assert_allclose(cos[0].numpy(), factor * np.cos(angles), rtol=0, atol=1e-4)
    np.testing.assert_allclose(sin[0].numpy(), factor * np.sin(angles), rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["dynamic-yarn", "yarn"])
def test_dynamic_yarn_pinned_at_the_target_is_yarn(method: str) -> None:
    model = make()
    ids = text(256)
    with patched(model, ("yarn", {"factor": 4.0})), torch.no_grad():
        wanted = model(input_ids=ids).logits
    with patched(model, (method, {"factor": 4.0})) as handle, handle.pinned(256), torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, wanted)
