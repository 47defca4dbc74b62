"""Gradients through converted models, compiled ones, and ones with adapters."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import ropepatch
from tests.convert.definition import every_layer, logits_by_definition
from tests.families.small import build
from tests.live.subjects import close, make, read, text, untouched

IDS = text(100, rows=2)


def name_of(way: dict[str, Any]) -> str:
    return "-".join(map(str, way.values()))


WAYS: list[dict[str, Any]] = [
    {"to": "alibi"},
    {"to": "nope"},
    {"to": "alibi", "layers": [0]},
    {"to": "nope", "layers": [1]},
]

every_way = pytest.mark.parametrize("way", WAYS, ids=name_of)


def gradients(model: Any, **words: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(input_ids=IDS, labels=IDS, **words).loss.backward()
    return {name: value.grad.clone() for name, value in model.named_parameters()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert list(one) == list(two)
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-3, atol=1e-5)
        assert value.abs().max() > 0


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma3_text"])
def test_gradients_are_those_of_the_full_mask(family: str) -> None:
    model = build(family).train()
    with ropepatch.convert(model, to="alibi", kernel="channels"):
        found = gradients(model)
    with ropepatch.convert(model, to="alibi", kernel="mask"):
        same(found, gradients(model))


def test_gradients_are_slopes() -> None:
    """Of the loss along one direction, in float64."""
    model: Any = make(num_attention_heads=4).double().train()
    chance = torch.Generator().manual_seed(0)
    parameters: dict[str, Any] = {
        n: p for n, p in model.named_parameters() if "q_proj" in n or "k_proj" in n
    }
    steps = {n: torch.randn(p.shape, generator=chance).double() for n, p in parameters.items()}

    def loss() -> torch.Tensor:  # the model's own is float32
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

    with ropepatch.convert(model, to="alibi"):
        loss().backward()
        slope = sum(float((parameters[n].grad * step).sum()) for n, step in steps.items())
        measured = (loss_at(5e-4) - loss_at(-5e-4)) / 1e-3
    assert slope == pytest.approx(measured, rel=5e-3)


@every_way
@pytest.mark.parametrize("kernel", ["channels", "mask"])
def test_checkpointing_changes_no_gradient(way: dict[str, Any], kernel: Any) -> None:
    if way["to"] == "nope" and kernel == "mask":
        kernel = "auto"
    model = make(num_attention_heads=4).train()
    with ropepatch.convert(model, **way, kernel=kernel):
        wanted = gradients(model, use_cache=False)
        model.activation_checkpointing_enable()
        same(gradients(model, use_cache=False), wanted)


def test_training_steps_move_a_model_that_still_reverts() -> None:
    model = make().train()
    before = copy.deepcopy(model.state_dict())
    handle = ropepatch.convert(model, to="alibi")
    step = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        step.zero_grad()
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        losses.append(loss.item())
        step.step()
    assert losses[-1] < losses[0]
    handle.revert()
    assert all(module.training for module in model.modules())
    assert list(model.state_dict()) == list(before)
    assert all(not torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_dropout_of_attention_is_on_in_training_alone() -> None:
    model = make(attention_dropout=0.5)
    with ropepatch.convert(model, to="alibi"):
        assert torch.equal(read(model, IDS), read(model, IDS))
        model.train()
        assert not torch.equal(read(model, IDS), read(model, IDS))


# --- torch.compile ------------------------------------------------------------------------------


@pytest.fixture
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


compiling = pytest.mark.filterwarnings("ignore")  # what torch says while it compiles


@compiling
@pytest.mark.usefixtures("_nothing_compiled")
@pytest.mark.parametrize(
    "way",
    [*WAYS, {"to": "alibi", "kernel": "mask"}],
    ids=name_of,
)
def test_a_converted_model_compiles_whole(way: dict[str, Any]) -> None:
    model: Any = make(num_attention_heads=4)
    base = read(model, IDS)
    with ropepatch.convert(model, **way) as handle:
        fast = torch.compile(model, fullgraph=True, backend="eager")
        found = read(fast, IDS)
        close(found, read(model, IDS), 2e-5)
        assert handle.active
    close(read(fast, IDS), base, 2e-5)


@compiling
@pytest.mark.usefixtures("_nothing_compiled")
def test_what_is_compiled_first_has_the_biases_too() -> None:
    """Nothing that an uncompiled pass keeps may be missing."""
    model = make(num_attention_heads=4)
    wanted = logits_by_definition(model, IDS, every_layer(model))
    with ropepatch.convert(model, to="alibi"):
        fast = torch.compile(model, fullgraph=True, backend="eager")
        close(read(fast, IDS), wanted)
        close(read(fast, text(37)), read(model, text(37)))


@compiling
@pytest.mark.usefixtures("_nothing_compiled")
def test_compiled_decoding_in_a_static_cache() -> None:
    from transformers import StaticCache

    model: Any = make(num_attention_heads=4)
    ids = IDS[:1]
    with ropepatch.convert(model, to="alibi"), torch.no_grad():
        wanted = read(model, ids)
        cache = StaticCache(config=model.config, max_cache_len=128)
        model(input_ids=ids[:, :90], cache=cache)
        fast: Any = torch.compile(model, fullgraph=True, backend="eager")
        for place in range(90, 100):
            found = fast(input_ids=ids[:, place : place + 1], cache=cache).logits
            close(found[:, 0], wanted[:, place])


@compiling
@pytest.mark.slow
@pytest.mark.usefixtures("_nothing_compiled")
def test_compiled_to_machine_code() -> None:
    model = make(num_attention_heads=4)
    with ropepatch.convert(model, to="alibi"):
        wanted = read(model, IDS)
        close(read(torch.compile(model, fullgraph=True), IDS), wanted)


# --- PEFT ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("way", WAYS[:3], ids=name_of)
def test_an_adapted_model_is_converted_trained_merged_and_saved(
    way: dict[str, Any], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    base = make()
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    outer = peft.get_peft_model(base, config).eval()
    names = list(outer.state_dict())
    with untouched(base):
        before = read(outer, IDS)
        with ropepatch.convert(outer, **way) as handle:
            assert handle.model is base
            assert list(outer.state_dict()) == names
            assert (read(outer, IDS) - before).abs().max() > 0.01
            with outer.disable_adapter():
                plain = read(outer, IDS)
            outer.train()
            outer(input_ids=IDS, labels=IDS).loss.backward()
            outer.eval()
            trained = [n for n, p in outer.named_parameters() if p.grad is not None]
            assert len(trained) == 8
            assert all("lora" in name for name in trained)
        outer.zero_grad()
    with ropepatch.convert(make(), **way) as other:
        close(read(other.model, IDS), plain, 0)
    ropepatch.convert(outer, **way)
    wanted = read(outer, IDS)
    merged = outer.merge_and_unload()
    close(read(merged, IDS), wanted, 1e-3)
    merged.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    close(read(loaded, IDS), read(merged, IDS), 0)
