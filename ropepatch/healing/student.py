"""The model that learns: its own forward replaced by one that gives the loss.

The loss is computed inside the forward, so that DDP, FSDP, autocast and adapters, which wrap the
model, see nothing unusual; and the head is called on a few tokens at a time.
"""

import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ropepatch.errors import HealingError
from ropepatch.heads import Head, find_head
from ropepatch.healing.loss import Read, Weights, block_of, summed_loss

Pin = Callable[[int], AbstractContextManager[Any]]
"""Holds a model, whose frequencies follow the length, to those of one length."""


_AS_IT_IS: Head = torch.nn.Identity()
"""The head of states that are logits already."""


@dataclass(eq=False)
class Teacher:
    """A model that is only asked."""

    model: Any
    window: int
    """Tokens up to which its opinion counts."""
    pin: Pin | None = None

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)
        device = self.model.get_input_embeddings().weight.device
        found = find_head(self.model, device)
        if found is None:
            raise HealingError(
                f"the head of the teacher, a {type(self.model).__name__}, cannot be told apart "
                "from its text model, so its logits would fill the memory; train without a teacher."
            )
        self.head: Head = found

    @torch.no_grad()
    def read(
        self, ids: torch.Tensor, positions: torch.Tensor | None, *, layers: bool
    ) -> tuple[Read, torch.Tensor]:
        """States of the sequences as far as its window, and where it may teach.

        Where documents are kept apart, each has a window of its own.
        """
        if positions is None:
            ids = ids[:, : self.window]
            taught = torch.ones_like(ids, dtype=torch.bool)
        else:
            taught = positions < self.window
        length = min(ids.shape[1], self.window)
        with self.pin(length) if self.pin else nullcontext():
            return read(self.model, ids, positions, layers=layers), taught


@dataclass(eq=False)
class Student:
    """How a model that learns is read; `attach` puts it into the model."""

    head: Head | None
    block: int
    weights: Weights
    teacher: Teacher | None = None
    pin: Pin | None = None
    pinned_to: Callable[[int], int] = field(default=lambda length: length)
    """The length whose frequencies are in force for sequences of some length."""

    def loss(self, model: Any, own: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        """Nats of all tokens of a batch together.

        Args:
            model: That learns.
            own: Its own forward.
            batch: `input_ids`, `shift_labels` and perhaps `position_ids`.
        """
        ids, labels = batch["input_ids"], batch["shift_labels"]
        positions = batch.get("position_ids")
        layers = self.teacher is not None and self.weights.hidden > 0
        with self.pin(self.pinned_to(ids.shape[1])) if self.pin else nullcontext():
            if self.head is None:
                given = {} if positions is None else {"position_ids": positions}
                output = own(input_ids=ids, use_cache=False, return_dict=True, **given)
                student, head = Read(output.logits), _AS_IT_IS
            else:
                student, head = read(model, ids, positions, layers=layers), self.head
        if self.teacher is None or not (self.weights.teacher or self.weights.hidden):
            return summed_loss(student, head, labels, self.weights, block=self.block)
        theirs, taught = self.teacher.read(ids, positions, layers=layers)
        return summed_loss(
            student,
            head,
            labels,
            self.weights,
            theirs,
            self.teacher.head,
            taught,
            block=self.block,
        )


def attach(model: Any, student: Student) -> Callable[[], None]:
    """Let a model give its loss where it is given `shift_labels`; returns what undoes it.

    Args:
        model: Of transformers, not yet wrapped by adapters or by accelerate.
        student: How it is read.
    """
    before = model.__dict__.get("forward")
    own = model.forward

    def forward(self: Any, *args: Any, **words: Any) -> Any:
        if words.get("shift_labels") is None:
            words.pop("shift_labels", None)
            return own(*args, **words)
        items = words.get("num_items_in_batch")
        total = student.loss(self, own, words)
        return {"loss": total / (items if items is not None else _count(words["shift_labels"]))}

    model.forward = types.MethodType(forward, model)

    def detach() -> None:
        del model.forward
        if before is not None:
            model.forward = before

    return detach


def head_of(model: Any) -> tuple[Head | None, int]:
    """The head of a model, and the tokens whose logits it may hold at once."""
    embedding = model.get_output_embeddings()
    if embedding is None:
        raise HealingError(f"{type(model).__name__} has no language-model head to train.")
    weight = embedding.weight
    return find_head(model, weight.device), block_of(int(weight.shape[0]))


def read(model: Any, ids: torch.Tensor, positions: torch.Tensor | None, *, layers: bool) -> Read:
    """The states of a text model before its head."""
    words: dict[str, Any] = {} if positions is None else {"position_ids": positions}
    output = model.base_model(
        input_ids=ids, use_cache=False, return_dict=True, output_hidden_states=layers, **words
    )
    return Read(output.last_hidden_state, output.hidden_states[1:] if layers else ())


def _count(labels: torch.Tensor) -> torch.Tensor:
    return (labels >= 0).sum().clamp_min(1)
