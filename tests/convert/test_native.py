"""Families that have linear biases of their own: their slopes are divided."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    MptConfig,
    PreTrainedModel,
)
from transformers.models.bloom import modeling_bloom
from transformers.models.falcon import modeling_falcon
from transformers.models.mpt import modeling_mpt

import ropepatch
from ropepatch.errors import NoEffectError, NotExpressibleError
from tests import tiny
from tests.live.subjects import bits, close, in_chunks, left_padded, read, text, untouched

HEADS, WIDTH = 6, 96
IDS = text(100)
_ENDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": 128}


def bloom() -> PreTrainedModel:
    return tiny.build(BloomConfig(hidden_size=WIDTH, n_layer=2, n_head=HEADS, **_ENDS))


def mpt() -> PreTrainedModel:
    return tiny.build(MptConfig(d_model=WIDTH, n_layers=2, n_heads=HEADS, max_seq_len=128, **_ENDS))


def falcon(way: str) -> Callable[[], PreTrainedModel]:
    def made() -> PreTrainedModel:
        sizes: dict[str, Any] = {
            "hidden_size": WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
        }
        config = FalconConfig(alibi=True, multi_query=False, **sizes, **_ENDS)
        return tiny.fill(AutoModelForCausalLM.from_config(config, attn_implementation=way), 0)

    return made


KINDS: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "bloom": (bloom, "seq_length"),
    "mpt": (mpt, "max_seq_len"),
    "falcon-sdpa": (falcon("sdpa"), "max_position_embeddings"),
    "falcon-eager": (falcon("eager"), "max_position_embeddings"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Make the families' own code build biases that are so much flatter."""

    def by(scale: float) -> None:
        for module, name in (
            (modeling_bloom, "_get_alibi_slopes"),
            (modeling_mpt, "build_mpt_alibi_tensor"),
            (modeling_falcon, "build_alibi_tensor"),
        ):
            original = getattr(module, name)
            monkeypatch.setattr(module, name, lambda *a, own=original, **w: own(*a, **w) * scale)

    return by


@every_kind
@pytest.mark.parametrize(
    ("words", "scale"),
    [({"factor": 4}, 0.25), ({"slope_scale": 3.0}, 3.0), ({"slope_scale": 3.0, "factor": 2}, 1.5)],
)
def test_slopes_are_multiplied(
    kind: str, words: dict[str, Any], scale: float, divided: Callable[[float], None]
) -> None:
    model = KINDS[kind][0]()
    batch = left_padded([text(n, seed=n)[0] for n in (70, 40)], 70)
    mask = batch["attention_mask"]
    base, padded = read(model, IDS), read(model, batch["ids"], attention_mask=mask)
    with untouched(model, 100), ropepatch.convert(model, to="alibi", **words) as handle:
        assert handle.kernel is None
        found, in_batch = read(model, IDS), read(model, batch["ids"], attention_mask=mask)
    divided(scale)
    wanted = read(model, IDS)
    close(found, wanted, 2e-5)
    assert (wanted - base).abs().max() > 0.01
    wanted = read(model, batch["ids"], attention_mask=mask)
    real = mask.bool()
    close(in_batch[real], wanted[real], 2e-5)
    assert (wanted - padded)[real].abs().max() > 0.01


@every_kind
def test_pieces_with_a_cache_are_one_pass(kind: str) -> None:
    model = KINDS[kind][0]()
    with ropepatch.convert(model, to="alibi", factor=4):
        whole = read(model, IDS)
        close(in_chunks(model, IDS, 1), whole, 5e-5)
        if kind != "mpt":  # transformers' own MPT shifts the biases of later pieces
            close(in_chunks(model, IDS, 13), whole, 5e-5)


@every_kind
def test_gradients_flow(kind: str) -> None:
    model: Any = KINDS[kind][0]().train()
    with ropepatch.convert(model, to="alibi", factor=4):
        model(input_ids=IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_kind
def test_once_around_a_folder(kind: str, tmp_path: Path) -> None:
    make, key = KINDS[kind]
    model: Any = make()
    weights, length = bits(model), getattr(model.config, key, None)
    way = "eager" if kind == "falcon-eager" else None
    model.save_pretrained(tmp_path / "plain")  # it fills in the architecture
    with untouched(model, 100):
        with ropepatch.convert(model, to="alibi", factor=4) as handle:
            found = read(model, IDS)
            trained = handle.plan.trained_length
            assert getattr(model.config, key) == 4 * trained == handle.plan.target_length
            proof = handle.describe()
            assert (proof.layers_changed, proof.layer_count, proof.attentions) == (2, 2, 2)
            assert {group.encoding for group in proof.groups} == {"ALiBi"}
            model.save_pretrained(tmp_path / "converted")
        if length is not None:
            assert trained == length
            assert getattr(model.config, key) == length
    assert bits(model) == weights
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "converted", dtype=torch.float32, attn_implementation=way
    ).eval()
    assert torch.equal(read(loaded, IDS), found)
    base = read(model, IDS)
    ropepatch.revert(loaded)
    assert torch.equal(read(loaded, IDS), base)


@every_kind
def test_what_would_change_nothing_is_refused(kind: str) -> None:
    model = KINDS[kind][0]()
    for words in ({}, {"factor": 1}, {"factor": 2, "slope_scale": 2.0}):
        with untouched(model), pytest.raises(NoEffectError, match="already"):
            ropepatch.convert(model, to="alibi", **words)


@every_kind
def test_there_is_no_rotation_to_take_out(kind: str) -> None:
    model = KINDS[kind][0]()
    with untouched(model), pytest.raises(NotExpressibleError, match="already and no rotation"):
        ropepatch.convert(model, to="nope")


@every_kind
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"layers": [0]}, "no layers with RoPE"),
        ({"keep_rope_every": 2}, "no layers with RoPE"),
        ({"alibi_bias_max": 16.0}, "makes its slopes itself"),
    ],
)
def test_what_only_rotary_models_have_is_refused(
    kind: str, words: dict[str, Any], reason: str
) -> None:
    model = KINDS[kind][0]()
    name = kind.split("-")[0]
    with untouched(model), pytest.raises(NotExpressibleError, match=f"'{name}'.*{reason}"):
        ropepatch.convert(model, to="alibi", factor=4, **words)
