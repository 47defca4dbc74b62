"""Gradients through a patched model, and what gradient checkpointing can do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ropepatch.errors import CacheError
from tests.live.subjects import FIRST, GROWING, Case, make, name_of, patched, pin_of, text

EXPRESSIBLE = [case for case in FIRST if case[0] != "dynamic-yarn"]
FOLLOWING: list[Case] = [
    ("dynamic-ntk", {"factor": 4.0}),
    ("yarn", {"factor": 4.0, "short_exact": True}),
]
IDS = text(150)


def gradients(model: Any, ids: torch.Tensor = IDS) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    return {name: value.grad.clone() for name, value in model.named_parameters()}


def close(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor], atol: float = 1e-5) -> None:
    assert list(one) == list(two)
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-3, atol=atol)


@pytest.mark.parametrize("case", EXPRESSIBLE, ids=name_of)
def test_gradients_are_those_of_the_model_that_was_written(case: Case, tmp_path: Path) -> None:
    model = make()
    with patched(model, case) as handle:
        model.save_pretrained(tmp_path)
        plain: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tmp_path).train()
        model.train()
        with pin_of(handle, 150):
            close(gradients(model), gradients(plain))


@pytest.mark.parametrize("case", FOLLOWING, ids=name_of)
def test_gradients_across_a_change_are_slopes(case: Case) -> None:
    """Along one direction, in float64, where the keys of earlier pieces were turned again."""
    model = make().double().train()
    chance = torch.Generator().manual_seed(0)
    names = [n for n, _ in model.named_parameters() if "k_proj" in n or "embed" in n]
    parameters = dict(model.named_parameters())
    steps = {n: torch.randn(parameters[n].shape, generator=chance).double() for n in names}

    def loss() -> torch.Tensor:
        logits = model(input_ids=IDS).logits[0]
        return torch.nn.functional.cross_entropy(logits[:-1], IDS[0, 1:])

    def loss_at(size: float) -> float:
        with torch.no_grad():
            for n, step in steps.items():
                parameters[n].add_(step, alpha=size)
            found = float(loss())
            for n, step in steps.items():
                parameters[n].sub_(step, alpha=size)
        return found

    with patched(model, case):
        loss().backward()
        slope = sum(float((parameters[n].grad * step).sum()) for n, step in steps.items())
        measured = (loss_at(5e-4) - loss_at(-5e-4)) / 1e-3
    assert slope == pytest.approx(measured, rel=1e-3)


@pytest.mark.parametrize("case", FOLLOWING, ids=name_of)
def test_checkpointing_is_refused_where_it_would_need_a_cache(case: Case) -> None:
    model = make().train()
    with patched(model, case) as handle:
        with handle.pinned(150):
            wanted = gradients(model)
        model.activation_checkpointing_enable()
        with pytest.raises(CacheError, match="gradient checkpointing"):
            gradients(model)
        with handle.pinned(150):
            close(gradients(model), wanted)
        gradients(model, IDS[:, :60])  # within the first regime
    gradients(model)


@pytest.mark.parametrize(
    "case", [c for c in FIRST if c[0] not in (*GROWING, "longrope")], ids=name_of
)
def test_checkpointing_a_static_patch_changes_no_gradient(case: Case) -> None:
    model = make().train()
    with patched(model, case):
        wanted = gradients(model)
        model.activation_checkpointing_enable()
        close(gradients(model), wanted)


def test_training_leaves_a_patch_that_reverts() -> None:
    model: Any = make().train()
    stock = model.model.rotary_emb
    handle = patched(model, FOLLOWING[0])
    step = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = model.lm_head.weight.detach().clone()
    for _ in range(2):
        gradients(model)
        step.step()
    handle.revert()
    assert model.model.rotary_emb is stock
    assert not torch.equal(model.lm_head.weight, before)
    assert all(module.training for module in model.modules())
