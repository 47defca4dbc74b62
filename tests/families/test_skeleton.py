"""Reading back what transformers does: the traps that families have shown."""

import math

import pytest

from ropepatch.config_json.layout import read_layout
from ropepatch.config_json.write import write_recipe
from ropepatch.errors import ConfigError, VerificationError
from ropepatch.model.skeleton import skeleton_of_config
from ropepatch.recipe import Recipe
from tests.families.built import skeleton
from tests.families.shapes import SHAPES
from tests.families.tiny import tiny


def test_a_long_input_read_first_does_not_colour_a_short_one() -> None:
    change = write_recipe(tiny(SHAPES["llama-2-7b"]), Recipe.named("dynamic-ntk", factor=4))
    found = skeleton(change.after)
    plain = found.frequencies("", 4096)
    assert found.frequencies("", 16384) != plain
    assert found.frequencies("", 4096) == plain


def test_the_softmax_scale_is_the_text_models_not_the_vision_towers() -> None:
    assert skeleton(tiny(SHAPES["ministral-3-8b"])).softmax_scale == 128**-0.5


def test_mla_carries_its_temperature_in_the_softmax_scale() -> None:
    before = tiny(SHAPES["deepseek-v3"])
    after = write_recipe(before, Recipe.named("yarn", factor=4), replace=True).after
    scales = [skeleton(config).softmax_scale for config in (before, after)]
    width = (16 + 64) ** -0.5
    for scale, factor in zip(scales, (40, 4), strict=True):
        assert scale == pytest.approx(width * (0.1 * math.log(factor) + 1) ** 2)


def test_a_rotary_module_that_cannot_be_called_is_a_finding() -> None:
    # By class defaults GLM-4V turns 64 pairs and splits 32 of them among its axes.
    built = skeleton_of_config({"model_type": "glm4v_text", "num_hidden_layers": 1})
    with pytest.raises(VerificationError, match="Glm4vTextRotaryEmbedding cannot be called"):
        built.frequencies("", 16)


def test_molmo_with_layers_that_no_scaling_reaches_is_refused() -> None:
    # Molmo2-O scales its global layers only; a save spells the list out for the others too.
    text = {"model_type": "molmo2_text", "num_hidden_layers": 4}
    some = {"model_type": "molmo2", "text_config": {**text, "rope_scaling_layers": [1, 3]}}
    with pytest.raises(ConfigError, match="names 2 layers"):
        read_layout(some)
    every = {"model_type": "molmo2", "text_config": {**text, "rope_scaling_layers": [0, 1, 2, 3]}}
    assert read_layout(every).layer_count == 4


def test_half_a_pair_cannot_turn() -> None:
    config = {"model_type": "glm4_moe", "head_dim": 42}
    with pytest.raises(ConfigError, match="makes 21 of 42 features turn"):
        read_layout(config)


def test_another_familys_alpha_is_not_a_base() -> None:
    # Only HunYuan's code reads it; elsewhere `dynamic` follows the length.
    config = {**SHAPES["hunyuan-7b-instruct"], "model_type": "llama"}
    schedule = read_layout(config).schedules[""]
    assert schedule.method is not None
    assert schedule.geometry.theta == 10000.0
