"""Position interpolation of linear biases, and the lengths that follow from it."""

from typing import Any

import pytest
import torch

import ropepatch
from tests.convert.definition import SLOPES, every_layer, logits_by_definition
from tests.live.subjects import TRAINED, close, make, read, text, traces, untouched

IDS = text(150)


@pytest.mark.parametrize("factor", [1.5, 4, 32.0])
@pytest.mark.parametrize("kernel", ["channels", "mask"])
def test_slopes_are_divided(factor: float, kernel: Any) -> None:
    model = make(num_attention_heads=4)
    own = [slope / factor for slope in SLOPES[4]]
    wanted = logits_by_definition(model, IDS, every_layer(model, own))
    with ropepatch.convert(model, to="alibi", factor=factor, kernel=kernel) as handle:
        close(read(model, IDS), wanted)
        proof = handle.describe()
    assert proof.steepest == pytest.approx(max(own))
    assert proof.flattest == pytest.approx(min(own))


def test_a_factor_and_a_scale_multiply() -> None:
    model = make(num_attention_heads=4)
    with ropepatch.convert(model, to="alibi", slope_scale=0.25):
        wanted = read(model, IDS)
    with ropepatch.convert(model, to="alibi", slope_scale=2.0, factor=8.0):
        close(read(model, IDS), wanted, 0)


@pytest.mark.parametrize("factor", [4.0, 2.5])
def test_lengths_are_raised_and_come_back(factor: float) -> None:
    model: Any = make()
    model.generation_config.max_length = TRAINED
    before, config, generation = traces(model), model.config, model.generation_config
    with ropepatch.convert(model, to="alibi", factor=factor) as handle:
        assert model.config.max_position_embeddings == round(TRAINED * factor)
        assert model.generation_config.max_length == round(TRAINED * factor)
        assert model.model.config.max_position_embeddings == round(TRAINED * factor)
        assert handle.plan.trained_length == TRAINED
        assert handle.plan.target_length == round(TRAINED * factor)
        assert config.max_position_embeddings == TRAINED
        assert generation.max_length == TRAINED
    assert traces(model) == before
    assert model.generation_config is generation


def test_a_generation_length_of_ones_own_stays() -> None:
    model: Any = make()
    model.generation_config.max_length = 17
    with ropepatch.convert(model, to="alibi", factor=4):
        assert model.generation_config.max_length == 17
    assert model.generation_config.max_length == 17


@pytest.mark.parametrize("words", [{"to": "nope"}, {"to": "alibi"}])
def test_without_a_factor_lengths_stay(words: dict[str, Any]) -> None:
    model: Any = make()
    model.generation_config.max_length = TRAINED
    with untouched(model), ropepatch.convert(model, **words):
        assert model.config.max_position_embeddings == TRAINED
        assert model.generation_config.max_length == TRAINED


def test_generating_goes_on_to_the_raised_length() -> None:
    model: Any = make()
    model.generation_config.max_length = TRAINED
    ids = text(TRAINED - 4)
    words = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None}
    with ropepatch.convert(model, to="alibi", factor=2):
        assert model.generate(ids, **words).shape == (1, 2 * TRAINED)
    assert model.generate(ids, **words).shape == (1, TRAINED)


def test_the_attention_factor_of_a_scaled_model_stays() -> None:
    """YaRN multiplies cos and sin, so scores grow by its square; a conversion keeps that."""
    scaling = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    block = {**scaling, "original_max_position_embeddings": TRAINED, "attention_factor": 1.25}
    scaled = make(rope_parameters=block, max_position_embeddings=4 * TRAINED)
    with ropepatch.convert(scaled, to="nope"):
        found = read(scaled, IDS)
    plain: Any = make()
    with torch.no_grad():
        for layer in plain.model.layers:
            layer.self_attn.q_proj.weight.mul_(1.25**2)
    with ropepatch.convert(plain, to="nope"):
        close(found, read(plain, IDS), 5e-5)
