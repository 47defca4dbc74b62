"""The loss inside a model's forward, against transformers' own loss of the same sequences."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ropepatch
from ropepatch.errors import HealingError
from ropepatch.healing.loss import Weights
from ropepatch.healing.student import Student, Teacher, attach, head_of
from tests.heal import parts

KINDS = ["Llama", "Qwen2", "Granite", "Cohere", "Gemma2", "Gemma3Text"]
PACKED = [3, 9, 4]
"""Documents of one row."""


def ids_of(rows: int, tokens: int, seed: int = 0) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(3, 128, (rows, tokens), generator=chance)


def shifted(ids: torch.Tensor) -> torch.Tensor:
    labels = torch.full_like(ids, -100)
    labels[:, :-1] = ids[:, 1:]
    return labels


def student_of(model: Any, **words: Any) -> Student:
    head, _ = head_of(model)
    return Student(head, **{"block": 5, "weights": Weights(), **words})


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_alike(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert set(found) == set(wanted)
    for name, right in wanted.items():
        torch.testing.assert_close(found[name], right, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_transformers(kind: str) -> None:
    model = parts.model(kind)
    ids = ids_of(2, 20)
    wanted = model(input_ids=ids, labels=ids, use_cache=False).loss
    right = gradients(model, wanted)
    assert float(wanted.detach()) > 1
    student = student_of(model)
    assert student.head is not None
    attach(model, student)
    found = model(input_ids=ids, labels=ids, shift_labels=shifted(ids))["loss"]
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert_alike(gradients(model, found), right)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_cost_what_they_cost_alone(kind: str) -> None:
    """Two rows, only one of which has several documents; a window of 8 tokens slides."""
    model = parts.model(kind)
    documents = [ids_of(1, size, seed=size) for size in PACKED]
    other = ids_of(1, sum(PACKED), seed=99)
    alone = [
        model(input_ids=ids, labels=ids, use_cache=False).loss * (ids.shape[1] - 1)
        for ids in (*documents, other)
    ]
    count = sum(PACKED) - len(PACKED) + sum(PACKED) - 1
    wanted = torch.stack(alone).sum() / count
    right = gradients(model, wanted)
    attach(model, student_of(model))
    ids = torch.cat([torch.cat(documents, 1), other])
    labels = torch.cat([torch.cat([shifted(d) for d in documents], 1), shifted(other)])
    positions = torch.stack(
        [torch.cat([torch.arange(size) for size in PACKED]), torch.arange(sum(PACKED))]
    )
    batch = {"input_ids": ids, "position_ids": positions}
    found = model(**batch, shift_labels=labels)["loss"]
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert_alike(gradients(model, found), right)
    mixed = model(input_ids=ids, shift_labels=labels)["loss"]
    assert abs(float(mixed.detach()) - float(wanted.detach())) > 1e-4  # they do see each other


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_behind_the_last_document_changes_nothing(attention: str) -> None:
    model = parts.model("Llama", attn_implementation=attention)
    attach(model, student_of(model))
    ids, pad = ids_of(1, 12), torch.zeros(1, 4, dtype=torch.long)
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    bare = model(input_ids=ids, position_ids=positions, shift_labels=shifted(ids))["loss"]
    padded = model(
        input_ids=torch.cat([ids, pad], 1),
        position_ids=torch.cat([torch.arange(5), torch.arange(11)])[None],
        shift_labels=torch.cat([shifted(ids), pad - 100], 1),
    )["loss"]
    assert float(padded.detach()) == pytest.approx(float(bare.detach()), rel=1e-6)


def test_a_loss_over_the_tokens_of_a_whole_step() -> None:
    """As the trainer divides where gradients accumulate."""
    model = parts.model("Llama")
    attach(model, student_of(model))
    ids = ids_of(4, 10)
    labels = shifted(ids)
    labels[0, :7] = -100
    with torch.no_grad():
        whole = model(input_ids=ids, shift_labels=labels)["loss"]
        items = (labels >= 0).sum()
        halves = [
            model(input_ids=i, shift_labels=n, num_items_in_batch=items)["loss"]
            for i, n in zip(ids.split(1), labels.split(1), strict=True)
        ]
    assert float(torch.stack(halves).sum()) == pytest.approx(float(whole), rel=1e-5)
    assert float(model(input_ids=ids, shift_labels=labels * 0 - 100)["loss"].detach()) == 0


def test_without_labels_the_model_is_as_it_was() -> None:
    model = parts.model("Llama")
    ids = ids_of(2, 10)
    own = model.forward
    with torch.no_grad():
        before = model(ids)
        detach = attach(model, student_of(model))
        after = model(ids)
        assert torch.equal(after.logits, before.logits)
        assert torch.equal(model(input_ids=ids, labels=ids).loss, own(ids, labels=ids).loss)
        assert torch.equal(model(ids, shift_labels=None).logits, before.logits)
        assert "forward" in model.__dict__
        made = model.generate(ids, max_new_tokens=3, do_sample=False)
        detach()
        assert "forward" not in model.__dict__
        assert model.forward == own
        assert torch.equal(model(ids).logits, before.logits)
        assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False), made)


def test_a_forward_that_somebody_else_put_there_comes_back() -> None:
    model = parts.model("Llama")
    called = []
    own = model.forward

    def theirs(*args: Any, **words: Any) -> Any:
        called.append(words)
        return own(*args, **words)

    model.forward = theirs
    detach = attach(model, student_of(model))
    called.clear()
    model(ids_of(1, 4))
    assert len(called) == 1
    detach()
    assert model.forward is theirs


@pytest.mark.parametrize("kind", ["Llama", "Gemma3Text"])
def test_gradients_are_the_same_with_checkpointing(kind: str) -> None:
    model = parts.model(kind).train()
    attach(model, student_of(model))
    batch = {
        "input_ids": ids_of(2, 16),
        "position_ids": torch.cat([torch.arange(6), torch.arange(10)]).expand(2, 16),
    }
    labels = shifted(batch["input_ids"])
    wanted = gradients(model, model(**batch, shift_labels=labels)["loss"])
    # its name changed within transformers 5
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    calls = []
    model.model.layers[0].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    found = gradients(model, model(**batch, shift_labels=labels)["loss"])
    assert len(calls) == 2  # it was computed again on the way back
    assert_alike(found, wanted)


def test_a_head_that_is_not_ours() -> None:
    """As of a model that adds something behind its head: its own logits are taken."""
    model = parts.model("Llama")
    bias = torch.linspace(-2, 2, 128)

    def after(_: Any, __: Any, output: Any) -> Any:
        output["logits"] = output["logits"] + bias
        return output

    model.register_forward_hook(after)
    head, _ = head_of(model)
    assert head is None


def test_a_model_without_a_known_head_learns_from_its_own_logits() -> None:
    model = parts.model("Llama")
    ids = ids_of(2, 20)
    wanted = model(input_ids=ids, labels=ids, use_cache=False).loss
    right = gradients(model, wanted)
    attach(model, Student(None, 5, Weights()))
    found = model(input_ids=ids, shift_labels=shifted(ids))["loss"]
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert_alike(gradients(model, found), right)


def test_a_model_that_foretells_nothing() -> None:
    model = parts.model("Llama").model
    with pytest.raises(HealingError, match="LlamaModel has no language-model head"):
        head_of(model)


# --- with a teacher ------------------------------------------------------------------------------


def distilled(student: Any, teacher: Any, batch: dict[str, Any], inside: torch.Tensor) -> Any:
    """Of whole logits, where the teacher reads whole sequences: inside its window it may."""
    labels = batch["shift_labels"]
    words = {k: v for k, v in batch.items() if k != "shift_labels"}
    mine = student(**words, use_cache=False).logits.float()
    with torch.no_grad():
        other = teacher(**words, use_cache=False).logits.float()
    entropy = F.cross_entropy(mine.flatten(0, 1), labels.flatten(), reduction="none")
    heat = 2.0
    apart = F.kl_div(
        (mine / heat).log_softmax(-1),
        (other / heat).log_softmax(-1),
        log_target=True,
        reduction="none",
    ).sum(-1)
    each = torch.where(inside, 0.3 * heat**2 * apart + 0.7 * entropy.view_as(apart), 0)
    each = torch.where(inside, each, entropy.view_as(apart))
    return each[labels >= 0].sum() / (labels >= 0).sum()


@pytest.mark.parametrize("kind", ["Llama", "Gemma2"])
@pytest.mark.parametrize("window", [6, 64])
@pytest.mark.parametrize("packed", [False, True])
def test_a_teacher_counts_inside_its_window(kind: str, window: int, packed: bool) -> None:
    model, other = parts.model(kind), parts.model(kind, seed=1)
    ids = ids_of(2, 16)
    batch = {"input_ids": ids, "shift_labels": shifted(ids)}
    if packed:
        batch["position_ids"] = torch.stack(
            [torch.cat([torch.arange(9), torch.arange(7)]), torch.arange(16)]
        )
    inside = batch.get("position_ids", torch.arange(16).expand(2, 16)) < window
    wanted = distilled(model, other, batch, inside)
    right = gradients(model, wanted)
    teacher = Teacher(other, window)
    attach(model, student_of(model, weights=Weights(0.3, 2.0), teacher=teacher))
    found = model(**batch)["loss"]
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert_alike(gradients(model, found), right)
    assert all(p.grad is None for p in other.parameters())


def test_hidden_states_of_every_layer_are_compared() -> None:
    model, other = parts.model("Llama"), parts.model("Llama", seed=1)
    ids = ids_of(1, 8)
    mine = model(ids, output_hidden_states=True).hidden_states[1:]
    theirs = other(ids, output_hidden_states=True).hidden_states[1:]
    apart = [
        ((a - b).square().sum(-1) / b.square().sum(-1))[0, :-1]
        for a, b in zip(mine, theirs, strict=True)
    ]
    assert len(apart) == 2
    wanted = 0.5 * float(torch.stack(apart).mean(0).mean().detach())
    weights = Weights(hidden=0.5)
    attach(model, student_of(model, weights=weights, teacher=Teacher(other, 64)))
    batch = {"input_ids": ids, "shift_labels": shifted(ids)}
    found = float(model(**batch)["loss"].detach())
    entropy = F.cross_entropy(model(ids).logits[0], batch["shift_labels"][0])
    assert found - float(entropy.detach()) == pytest.approx(wanted, rel=1e-4)


def test_a_teacher_that_does_not_count_is_not_asked() -> None:
    model, other = parts.model("Llama"), parts.model("Llama", seed=1)
    attach(model, student_of(model, teacher=Teacher(other, 64)))
    other.model.register_forward_hook(lambda *_: pytest.fail("asked"))
    model(input_ids=ids_of(1, 8), shift_labels=shifted(ids_of(1, 8)))


def test_a_teacher_whose_head_is_not_known_is_refused() -> None:
    other = parts.model("Llama")
    other.lm_head.register_forward_hook(lambda _, __, output: output.square())
    teacher = Teacher(other, 8)  # a hook belongs to the head, which is called as it is
    assert not teacher.model.training
    other = parts.model("Llama")

    def after(_: Any, __: Any, output: Any) -> Any:
        output["logits"] = output["logits"] * 3
        return output

    other.register_forward_hook(after)
    with pytest.raises(HealingError, match="head of the teacher, a LlamaForCausalLM"):
        Teacher(other, 8)


# --- frequencies that follow the length ----------------------------------------------------------


def test_models_are_read_under_the_frequencies_of_a_length() -> None:
    held: list[tuple[str, int]] = []

    def pin_of(who: str) -> Any:
        @contextmanager
        def pin(length: int) -> Iterator[None]:
            held.append((who, length))
            yield

        return pin

    model, other = parts.model("Llama"), parts.model("Llama", seed=1)
    teacher = Teacher(other, 6, pin_of("teacher"))
    student = student_of(
        model,
        weights=Weights(0.5),
        teacher=teacher,
        pin=pin_of("student"),
        pinned_to=lambda length: 10 * length,
    )
    attach(model, student)
    model(input_ids=ids_of(1, 9), shift_labels=shifted(ids_of(1, 9)))
    assert held == [("student", 90), ("teacher", 6)]


@pytest.mark.parametrize("method", ["yarn", "ntk"])
def test_a_patched_model_learns_through_its_patch(method: str) -> None:
    model = parts.model("Llama")
    ids = ids_of(2, 20)
    plain = float(model(input_ids=ids, labels=ids).loss.detach())
    ropepatch.patch(model, method, factor=4)
    wanted = model(input_ids=ids, labels=ids, use_cache=False).loss
    right = gradients(model, wanted)
    assert abs(float(wanted.detach()) - plain) > 1e-4
    attach(model, student_of(model))
    found = model(input_ids=ids, shift_labels=shifted(ids))["loss"]
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert_alike(gradients(model, found), right)


def test_packed_documents_of_a_model_without_rotation() -> None:
    """ALiBi: distances within a document, not from the beginning of the row."""
    model = parts.model("Llama")
    ropepatch.convert(model, "alibi")
    documents = [ids_of(1, size, seed=size) for size in PACKED]
    with torch.no_grad():
        alone = [
            model(input_ids=d, labels=d, use_cache=False).loss * (d.shape[1] - 1) for d in documents
        ]
        wanted = float(torch.stack(alone).sum() / (sum(PACKED) - len(PACKED)))
        attach(model, student_of(model))
        found = model(
            input_ids=torch.cat(documents, 1),
            position_ids=torch.cat([torch.arange(size) for size in PACKED])[None],
            shift_labels=torch.cat([shifted(d) for d in documents], 1),
        )["loss"]
    assert float(found) == pytest.approx(wanted, rel=1e-5)
