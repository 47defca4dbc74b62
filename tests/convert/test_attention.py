"""Converted models of many families, against stock models that attend by the definition."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import ropepatch
from tests.convert.definition import SLOPES, every_layer, logits_by_definition, still
from tests.families.small import build
from tests.live.subjects import close, make, read, text, untouched

FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "gpt_oss",
)
"""Windows, a base per layer type, soft caps, sinks, norms of queries and keys."""
OWN_SOFTMAX = ("gemma2", "gpt_oss")
"""Caps and sinks, which no fused kernel knows."""
IDS = text(150)

every_family = pytest.mark.parametrize("family", FAMILIES)
kernels = pytest.mark.parametrize("kernel", ["channels", "mask"])


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    return {family: build(family) for family in FAMILIES}


@every_family
@kernels
def test_logits_are_the_definitions(
    family: str, kernel: Any, models: dict[str, PreTrainedModel]
) -> None:
    model = models[family]
    wanted = logits_by_definition(model, IDS, every_layer(model))
    with ropepatch.convert(model, to="alibi", kernel=kernel) as handle:
        assert handle.kernel == kernel
        found = read(model, IDS)
    close(found, wanted)
    assert (read(model, IDS) - found).abs().max() > 0.1


@every_family
@kernels
def test_what_was_converted_proves_itself(
    family: str, kernel: Any, models: dict[str, PreTrainedModel]
) -> None:
    model: Any = models[family]
    with ropepatch.convert(model, to="alibi", kernel=kernel) as handle:
        proof = handle.describe()
    count = model.config.num_hidden_layers
    assert proof.layers_changed == proof.layer_count == proof.attentions == count
    assert {group.encoding for group in proof.groups} == {"ALiBi"}
    assert sorted(i for group in proof.groups for i in group.layers) == list(range(count))
    assert proof.kernel == kernel
    assert proof.worst_error is not None
    assert proof.worst_error < 1e-5
    slopes = SLOPES[model.config.num_attention_heads]
    assert (proof.steepest, proof.flattest) == (max(slopes), min(slopes))


@pytest.mark.parametrize(("heads", "key_heads"), [(1, 1), (3, 1), (6, 2), (12, 12)])
@kernels
def test_any_count_of_heads(heads: int, key_heads: int, kernel: Any) -> None:
    words: dict[str, Any] = {
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": 16,
    }
    words["hidden_size"] = 16 * heads
    model = make(**words)
    wanted = logits_by_definition(model, IDS, every_layer(model))
    with ropepatch.convert(model, to="alibi", kernel=kernel):
        close(read(model, IDS), wanted)


@every_family
@pytest.mark.parametrize("way", ["sdpa", "eager"])
def test_no_encoding_is_the_stock_model_with_every_token_at_place_0(
    family: str, way: str, models: dict[str, PreTrainedModel]
) -> None:
    model: Any = models[family]
    before = model.config._attn_implementation
    if family not in OWN_SOFTMAX:
        model.set_attn_implementation(way)
    wanted, plain = read(model, IDS, **still(IDS)), read(model, IDS)
    with ropepatch.convert(model, to="nope") as handle:
        found = read(model, IDS)
        assert handle.kernel is None
        assert {group.encoding for group in handle.describe().groups} == {"none"}
    close(found, wanted, 3e-5)
    assert (plain - found).abs().max() > 0.1
    model.set_attn_implementation(before)


@every_family
@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_only_distances_count(family: str, to: str, models: dict[str, PreTrainedModel]) -> None:
    """Not even rounding moves: the place of a token is never looked at."""
    model, places = models[family], torch.arange(150)[None]
    with ropepatch.convert(model, to=to):
        found = read(model, IDS)
        assert torch.equal(read(model, IDS, position_ids=places + 1000), found)


@every_family
@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_taking_it_back_leaves_nothing(
    family: str, to: str, models: dict[str, PreTrainedModel]
) -> None:
    with untouched(models[family], 100):
        ropepatch.convert(models[family], to=to).revert()


@every_family
@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_a_text_of_one_token_is_as_it_was(
    family: str, to: str, models: dict[str, PreTrainedModel]
) -> None:
    """It stands at place 0 and has nobody to look back to."""
    model, ids = models[family], text(1)
    plain = read(model, ids)
    with ropepatch.convert(model, to=to):
        close(read(model, ids), plain, 2e-5)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gpt_oss"])
@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_texts_packed_into_one_row_do_not_see_each_other(
    family: str, to: str, models: dict[str, PreTrainedModel]
) -> None:
    model, texts = models[family], [text(n, seed=n) for n in (40, 75, 1, 34)]
    places = torch.cat([torch.arange(t.shape[1]) for t in texts])[None]
    with ropepatch.convert(model, to=to):
        found = read(model, torch.cat(texts, 1), position_ids=places, use_cache=False)
        apart = torch.cat([read(model, t) for t in texts], 1)
    close(found, apart)


@pytest.mark.parametrize("scale", [0.25, 3.0])
@pytest.mark.parametrize("bias_max", [4.0, 16.0])
@kernels
def test_slopes_of_ones_own(scale: float, bias_max: float, kernel: Any) -> None:
    model = make(num_attention_heads=4)
    own = [scale * 2 ** (-bias_max * i / 4) for i in (1, 2, 3, 4)]
    wanted = logits_by_definition(model, IDS, every_layer(model, own))
    words: dict[str, Any] = {"slope_scale": scale, "alibi_bias_max": bias_max}
    with ropepatch.convert(model, to="alibi", kernel=kernel, **words) as handle:
        close(read(model, IDS), wanted)
        proof = handle.describe()
    assert proof.steepest == pytest.approx(own[0])
    assert proof.flattest == pytest.approx(own[-1])
