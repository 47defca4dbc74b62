"""Adapters with the small weights beside them, as PEFT makes them of ours."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import ropepatch
from ropepatch.errors import HealingError
from ropepatch.healing.adapters import applied, with_adapters
from ropepatch.healing.loss import Weights
from ropepatch.healing.plan import HealPlan
from ropepatch.healing.student import Student, attach, head_of
from ropepatch.healing.trainable import attention_linears, freeze_others, norms, trained_numbers
from ropepatch.healing.weights import dtype_of
from tests.heal import parts

pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings(  # PEFT asks for what transformers has renamed
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)

KINDS = ["Llama", "Llama tied", "Gemma3Text", "Qwen2", "Llama ALiBi"]


def model_of(kind: str) -> Any:
    name, _, how = kind.partition(" ")
    model = parts.model(name, **({"tie_word_embeddings": True} if how == "tied" else {}))
    if how == "ALiBi":
        ropepatch.convert(model, "alibi")
    return model


def plan_of(**words: Any) -> HealPlan:
    return HealPlan(**{"seq_len": 16, "steps": 3, "lora": 4, **words})


def ids_of(rows: int = 2, tokens: int = 16) -> torch.Tensor:
    return torch.randint(3, 128, (rows, tokens), generator=torch.Generator().manual_seed(0))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids_of(), use_cache=False).logits
    return found


def train(wrapped: Any, steps: int = 4) -> None:
    """A few large steps, so that every trained weight moves away from where it began."""
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.0)
    ids = ids_of()
    for _ in range(steps):
        optimizer.zero_grad()
        wrapped(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        assert all(p.grad is not None for p in trained)
        optimizer.step()


def adapted(wrapped: Any) -> set[str]:
    """Layers with adapters, by name in the model."""
    return {
        name.removeprefix("base_model.model.").partition(".lora_A")[0]
        for name, _ in wrapped.named_modules()
        if name.endswith("lora_A")
    }


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_linears_of_the_attention_get_adapters(kind: str) -> None:
    wrapped = with_adapters(model_of(kind), plan_of())
    wanted = {
        f"model.layers.{i}.self_attn.{name}_proj" for i in range(2) for name in ("q", "k", "v", "o")
    }
    assert adapted(wrapped) == wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("train_norms", [False, True])
@pytest.mark.parametrize("train_embeddings", [False, True])
def test_what_is_trained(kind: str, train_norms: bool, train_embeddings: bool) -> None:
    model = model_of(kind)
    before = {n for n, _ in model.named_parameters()}
    plan = plan_of(train_norms=train_norms, train_embeddings=train_embeddings)
    wanted = trained_numbers(model_of(kind), plan)
    wrapped = with_adapters(model, plan)
    trained = {n for n, p in wrapped.named_parameters() if p.requires_grad}
    others = {n for n in trained if ".lora_" not in n}
    assert any("norm" in n for n in others) is train_norms
    assert any("embed_tokens" in n for n in others) is train_embeddings
    assert not any("mlp" in n for n in trained)
    # every norm that the model has, and no more
    if train_norms:
        expected = {n.removesuffix(".weight") for n in before if "norm" in n}
        found = {
            n.removeprefix("base_model.model.").partition(".modules_to_save")[0]
            for n in others
            if "norm" in n
        }
        assert found == expected
    # PEFT counts as we do: a tied embedding, which it wraps twice, is one parameter
    count, _ = wrapped.get_nb_trainable_parameters()
    assert wanted == count
    assert wanted == sum(p.numel() for p in wrapped.parameters() if p.requires_grad)


def test_numbers_by_hand() -> None:
    """64 wide, 4 heads of 16, 2 of them for keys; 128 words; 2 layers."""
    model = parts.model("Llama")
    linears = 4 * (64 + 64) + 2 * 4 * (64 + 32) + 4 * (64 + 64)  # q, k and v, o at rank 4
    norms_ = 2 * 2 * 64 + 64
    assert trained_numbers(model, plan_of(train_norms=False, train_embeddings=False)) == 2 * linears
    assert trained_numbers(model, plan_of()) == 2 * linears + norms_ + 128 * 64
    mlp = 3 * 64 * 96
    attention = 64 * 64 + 2 * 64 * 32 + 64 * 64
    whole = 2 * (attention + mlp) + norms_ + 2 * 128 * 64
    assert trained_numbers(model, plan_of(lora=None)) == whole


def test_numbers_are_known_without_weights() -> None:
    with torch.device("meta"):
        from transformers import AutoModelForCausalLM

        bare = AutoModelForCausalLM.from_config(parts.model("Gemma3Text").config)
    for plan in (plan_of(), plan_of(lora=None)):
        assert trained_numbers(bare, plan) == trained_numbers(parts.model("Gemma3Text"), plan)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_begins_where_the_model_is(kind: str) -> None:
    model = model_of(kind)
    before = logits(model)
    torch.testing.assert_close(logits(with_adapters(model, plan_of())), before)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_is_applied_and_what_was_trained(kind: str, tmp_path: Path) -> None:
    """The adapter is saved, put around a fresh model, and put into its weights."""
    base = model_of(kind)
    start = logits(base)
    wrapped = with_adapters(base, plan_of()).train()
    train(wrapped)
    wrapped.eval()
    wanted = logits(wrapped)
    near = 1e-5 * float(wanted.abs().max())
    assert (wanted - start).abs().max() > 0.1
    wrapped.save_pretrained(tmp_path / "adapter")

    around = applied(model_of(kind), tmp_path / "adapter")
    torch.testing.assert_close(logits(around), wanted, rtol=1e-5, atol=near)
    assert not any(p.requires_grad for p in around.parameters())
    merged = around.merge_and_unload()
    torch.testing.assert_close(logits(merged), wanted, rtol=1e-5, atol=near)
    fresh = model_of(kind)
    assert type(merged) is type(fresh)
    assert [n for n, _ in merged.named_parameters()] == [n for n, _ in fresh.named_parameters()]
    moved = {
        name
        for (name, p), (_, q) in zip(
            merged.named_parameters(), fresh.named_parameters(), strict=True
        )
        if not torch.equal(p, q)
    }
    every = {name for name, _ in fresh.named_parameters()}
    still = {n for n in every if "mlp" in n or n == "lm_head.weight" or n.endswith("proj.bias")}
    assert moved == every - still


@pytest.mark.parametrize("kind", ["Llama tied", "Gemma3Text"])
def test_what_is_tied_stays_tied(kind: str, tmp_path: Path) -> None:
    base = model_of(kind)
    wrapped = with_adapters(base, plan_of()).train()
    train(wrapped)
    words, head = wrapped.get_input_embeddings(), wrapped.get_output_embeddings()
    assert words.weight.data_ptr() == head.weight.data_ptr()
    wrapped.eval().save_pretrained(tmp_path / "adapter")
    merged = applied(model_of(kind), tmp_path / "adapter").merge_and_unload()
    assert merged.lm_head.weight.data_ptr() == merged.model.embed_tokens.weight.data_ptr()
    assert not torch.equal(merged.lm_head.weight, model_of(kind).lm_head.weight)
    merged.save_pretrained(tmp_path / "merged")
    from transformers import AutoModelForCausalLM

    read = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", attn_implementation="eager")
    torch.testing.assert_close(logits(read.eval()), logits(merged))


@pytest.mark.parametrize("kind", ["Llama tied", "Gemma3Text"])
def test_what_is_tied_stays_tied_above_a_base_of_half_precision(kind: str) -> None:
    wrapped = with_adapters(model_of(kind).to(torch.bfloat16), plan_of())
    words, head = wrapped.get_input_embeddings(), wrapped.get_output_embeddings()
    assert words.weight.dtype == head.weight.dtype == torch.float32
    assert words.weight.data_ptr() == head.weight.data_ptr()


def test_what_is_untied_stays_apart() -> None:
    model = model_of("Llama")
    wrapped = with_adapters(model, plan_of()).train()
    head = wrapped.get_output_embeddings().weight.detach().clone()
    train(wrapped)
    assert torch.equal(wrapped.get_output_embeddings().weight, head)


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_learn_from_our_loss(kind: str) -> None:
    """The forward that gives the loss is put in before the adapters."""
    model = model_of(kind)
    ids = ids_of()
    labels = torch.full_like(ids, -100)
    labels[:, :-1] = ids[:, 1:]
    head, block = head_of(model)
    assert head is not None
    attach(model, Student(head, block, Weights()))
    wrapped = with_adapters(model, plan_of()).train()
    train(wrapped, 2)
    wanted = wrapped(input_ids=ids, labels=ids, use_cache=False).loss
    wrapped.zero_grad()
    wanted.backward()
    right = {n: p.grad.clone() for n, p in wrapped.named_parameters() if p.grad is not None}
    wrapped.zero_grad()
    found = wrapped(input_ids=ids, shift_labels=labels)["loss"]
    found.backward()
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    for name, p in wrapped.named_parameters():
        if name in right:
            torch.testing.assert_close(p.grad, right[name], rtol=1e-3, atol=2e-5, msg=name)


def test_what_is_trained_is_kept_in_float32() -> None:
    wrapped = with_adapters(parts.model("Llama").to(torch.bfloat16), plan_of())
    kinds = {(p.requires_grad, p.dtype) for p in wrapped.parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}


@pytest.mark.parametrize(("alpha", "scale"), [(None, 2.0), (1, 0.25)])
def test_the_scale(alpha: int | None, scale: float) -> None:
    wrapped = with_adapters(parts.model("Llama"), plan_of(lora_alpha=alpha))
    layer = wrapped.base_model.model.model.layers[0].self_attn.q_proj
    assert layer.scaling["default"] == scale


def test_a_model_whose_attention_shares_names_with_others() -> None:
    """Then each layer is named in full."""
    model = parts.model("Llama")
    for layer in model.model.layers:
        layer.mlp.o_proj = layer.mlp.down_proj
        del layer.mlp.down_proj
    wrapped = with_adapters(model, plan_of())
    assert len(adapted(wrapped)) == 8
    assert not any("mlp" in name for name in adapted(wrapped))


def test_without_an_attention_there_are_no_adapters() -> None:
    class Other(torch.nn.Module):
        pass

    model = parts.model("Llama")
    for layer in model.model.layers:
        layer.self_attn = Other()
    with pytest.raises(HealingError, match=r"no linear layer .* of LlamaForCausalLM.*--full"):
        attention_linears(model)


def test_without_a_rank_there_are_no_adapters() -> None:
    with pytest.raises(HealingError, match="need a rank"):
        with_adapters(parts.model("Llama"), plan_of(lora=None))


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    wrapped = with_adapters(parts.model("Llama"), plan_of())
    wrapped.save_pretrained(tmp_path / "adapter")
    wider = parts.model("Llama", hidden_size=32)
    with pytest.raises(HealingError, match=r"adapter .* does not fit the model: "):
        applied(wider, tmp_path / "adapter")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(HealingError, match=r"nothing does not fit the model: "):
        applied(parts.model("Llama"), tmp_path / "nothing")


# --- all weights ---------------------------------------------------------------------------------


def test_all_weights_of_a_text_model_are_trained() -> None:
    model = parts.model("Gemma3Text").requires_grad_(False)
    freeze_others(model)
    assert all(p.requires_grad for p in model.parameters())


def test_towers_are_frozen(tmp_path: Path) -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = parts.model("Gemma3Text").config.to_dict()
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    model = Gemma3ForConditionalGeneration(config)
    freeze_others(model)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen
    assert all("vision" in n or "multi_modal_projector" in n for n in frozen)
    assert not any("vision" in n or "multi_modal_projector" in n for n in trained)
    assert not any("vision" in n for n in attention_linears(model))
    assert not any("vision" in n for n in norms(model))
    text_only = trained_numbers(parts.model("Gemma3Text"), plan_of(lora=None))
    assert trained_numbers(model, plan_of(lora=None)) == text_only
    wrapped = with_adapters(model, plan_of())
    assert not any("vision" in n for n, p in wrapped.named_parameters() if p.requires_grad)
    wanted = trained_numbers(parts.model("Gemma3Text"), plan_of())
    assert wrapped.get_nb_trainable_parameters()[0] == wanted
    # and an adapter of it is found again
    wrapped.save_pretrained(tmp_path / "adapter")
    merged = applied(Gemma3ForConditionalGeneration(config), tmp_path / "adapter")
    assert merged.merge_and_unload() is not None


# --- the precision of what is written ------------------------------------------------------------


def test_the_precision_of_most_numbers(tmp_path: Path) -> None:
    one, two = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    save_file({"a": torch.zeros(10, dtype=torch.bfloat16), "b": torch.zeros(5)}, one)
    save_file({"c": torch.zeros(3, 2)}, two)
    assert dtype_of([one]) == torch.bfloat16
    assert dtype_of([one, two]) == torch.float32
    save_file({"c": torch.zeros(99, dtype=torch.int8)}, two)
    assert dtype_of([two]) == torch.float32
    assert dtype_of([]) == torch.float32
