"""Models of which some layers were converted and others still turn."""

from typing import Any

import numpy as np
import pytest
import torch

import ropepatch
from tests.convert.by_hand import llama_by_hand
from tests.convert.definition import SLOPES
from tests.families.small import build
from tests.live.subjects import cache_for, close, make, read, read_on, text, untouched

IDS = text(150)
SIZES: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}

MIXTURES: list[tuple[dict[str, Any], str]] = [
    ({}, "cccc"),
    ({"layers": [0]}, "crrr"),
    ({"layers": 3}, "rrrc"),
    ({"layers": "1,2"}, "rccr"),
    ({"layers": "all", "keep_rope_every": 4}, "cccr"),
    ({"keep_rope_every": 2}, "crcr"),
    ({"layers": (1, 2, 3), "keep_rope_every": 3}, "rcrc"),
]
"""What is asked for, and what becomes of each layer: c converted, r still turning."""


def converted(group: Any) -> bool:
    return bool(group.encoding != "RoPE")


@pytest.mark.parametrize(("asked", "pattern"), MIXTURES, ids=[p for _, p in MIXTURES])
@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_each_layer_places_tokens_in_its_own_way(
    asked: dict[str, Any], pattern: str, to: str
) -> None:
    """By a model in numpy: a layer that lost or kept its rotation would be far off."""
    model = make(**SIZES)
    name = "alibi" if to == "alibi" else "none"
    ways = ["rope" if letter == "r" else name for letter in pattern]
    wanted = llama_by_hand(model, IDS[0].tolist(), ways, SLOPES[4])
    with untouched(model), ropepatch.convert(model, to=to, **asked) as handle:
        found = read(model, IDS)[0].numpy()
        proof = handle.describe()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    changed = [i for g in proof.groups if converted(g) for i in g.layers]
    assert sorted(changed) == [i for i, letter in enumerate(pattern) if letter == "c"]
    assert {g.encoding for g in proof.groups} == {
        {"r": "RoPE", "c": "ALiBi" if to == "alibi" else "none"}[letter] for letter in pattern
    }
    assert (proof.layers_changed, proof.layer_count) == (pattern.count("c"), 4)
    assert proof.attentions == pattern.count("c")


@pytest.mark.parametrize("kernel", ["channels", "mask"])
def test_layers_that_turn_beside_either_kernel(kernel: Any) -> None:
    model = make(**SIZES)
    ways = ["rope", "alibi", "rope", "alibi"]
    wanted = llama_by_hand(model, IDS[0].tolist(), ways, SLOPES[4])
    with ropepatch.convert(model, to="alibi", layers=[1, 3], kernel=kernel):
        np.testing.assert_allclose(read(model, IDS)[0].numpy(), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("to", ["alibi", "nope"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("size", [1, 13])
def test_a_mixture_reads_on_with_a_cache(to: str, kind: str, size: int) -> None:
    model = make(**SIZES)
    with ropepatch.convert(model, to=to, keep_rope_every=2):
        found, _ = read_on(model, IDS, size, cache_for(model, kind))
        close(found, read(model, IDS, use_cache=False), 5e-5)


@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_stretched_places_move_layers_that_turn_alone(to: str) -> None:
    """Places two apart slow nothing but a rotation down."""
    model, places = make(**SIZES), 2 * torch.arange(150)[None]
    words = {"position_ids": places, "attention_mask": torch.ones_like(IDS)}
    with ropepatch.convert(model, to=to):
        assert torch.equal(read(model, IDS, **words), read(model, IDS))
    with ropepatch.convert(model, to=to, layers=[0]):
        assert (read(model, IDS, **words) - read(model, IDS)).abs().max() > 0.1


# --- other families -----------------------------------------------------------------------------


def groups_of(handle: Any) -> list[tuple[str, tuple[int, ...], str]]:
    return [(g.layer_type, g.layers, g.encoding) for g in handle.describe().groups]


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize(("to", "word"), [("alibi", "ALiBi"), ("nope", "none")])
def test_layers_of_one_type(kind: str, to: str, word: str) -> None:
    model = make("gemma3")
    with untouched(model), ropepatch.convert(model, to=to, layers=kind) as handle:
        own = {"sliding_attention": "RoPE", "full_attention": "RoPE"} | {kind: word}
        assert groups_of(handle) == [
            ("sliding_attention", (0,), own["sliding_attention"]),
            ("full_attention", (1,), own["full_attention"]),
        ]
        windows = {g.layer_type: g.window for g in handle.describe().groups}
        assert windows["sliding_attention"] == 32
        found = read(model, IDS)
        close(read_on(model, IDS, 13)[0], found)
    with ropepatch.convert(model, to=to):
        assert (read(model, IDS) - found).abs().max() > 1e-3
    assert (read(model, IDS) - found).abs().max() > 1e-3


def test_layers_of_one_type_are_those_of_their_numbers() -> None:
    model = make("gemma3")
    with ropepatch.convert(model, to="alibi", layers="full_attention"):
        found = read(model, IDS)
    with ropepatch.convert(model, to="alibi", layers=[1]):
        assert torch.equal(read(model, IDS), found)


def test_biases_where_a_model_had_no_encoding() -> None:
    """Every fourth layer of SmolLM3 does not turn; 'all' means those too."""
    model = build("smollm3")
    with untouched(model), ropepatch.convert(model, to="alibi") as handle:
        assert groups_of(handle) == [
            ("full_attention", (0, 1, 2), "ALiBi"),
            ("full_attention", (3,), "none"),
        ]
        turning = read(model, IDS)
    with untouched(model), ropepatch.convert(model, to="alibi", layers="all") as handle:
        found = {i: encoding for _, layers, encoding in groups_of(handle) for i in layers}
        assert found == dict.fromkeys(range(4), "ALiBi")
        assert (read(model, IDS) - turning).abs().max() > 0.1
    with untouched(model), ropepatch.convert(model, to="alibi", layers=[3]) as handle:
        assert groups_of(handle) == [
            ("full_attention", (0, 1, 2), "RoPE"),
            ("full_attention", (3,), "ALiBi"),
        ]
        assert (read(model, IDS) - turning).abs().max() > 0.1
