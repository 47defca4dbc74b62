"""What a token costs, without the logits of a whole sequence.

A vocabulary of 49,152 words makes 800 MB of float32 logits of 4,096 tokens, and a training by a
teacher holds those of two models with their gradients. So the heads read a few tokens at a time,
and read them once more on the way back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ropepatch.heads import Head

BLOCK_BYTES = 48 * 1024**2
"""Of float32 logits at once; a loss with a teacher holds about eight times as much.

More than 32 MiB, up to which the C library may keep what is freed instead of giving it back: with
smaller blocks the peak is three times as high."""


@dataclass(frozen=True)
class Weights:
    """What counts how much."""

    teacher: float = 0.0
    """Share of the teacher's opinion in what a taught token costs."""
    temperature: float = 1.0
    hidden: float = 0.0


@dataclass(frozen=True, eq=False)
class Read:
    """What a model makes of some sequences."""

    states: torch.Tensor
    """(rows, tokens, hidden), before the head."""
    layers: Sequence[torch.Tensor] = ()
    """The same of every layer, if they are compared."""


def summed_loss(
    student: Read,
    head: Head,
    labels: torch.Tensor,
    weights: Weights,
    teacher: Read | None = None,
    teacher_head: Head | None = None,
    taught: torch.Tensor | None = None,
    *,
    block: int,
) -> torch.Tensor:
    """Nats of all tokens together.

    A token costs its cross-entropy; inside the teacher's window it costs
    `(1 - w) * CE + w * T^2 * KL(teacher || student)` at temperature T (Hinton et al.,
    arXiv:1503.02531, section 2), and `hidden` times the mean over layers of
    `|student - teacher|^2 / |teacher|^2`.

    Args:
        student: With gradients.
        head: Its logits.
        labels: (rows, tokens), the token that follows, or -100 for none.
        weights: Of the parts.
        teacher: Of the first tokens of the same sequences, perhaps fewer.
        teacher_head: Its logits.
        taught: (rows, tokens of the teacher), whether it may teach there.
        block: Tokens whose logits are held at once.
    """
    flat, wanted = student.states.flatten(0, 1), labels.flatten()
    if teacher is None or teacher_head is None or taught is None:
        chosen = (wanted >= 0).nonzero()[:, 0]
        return _summed(
            [
                checkpoint(_plain, flat[part], wanted[part], head, use_reentrant=False)
                for part in chosen.split(block)
            ],
            flat,
        )
    rows, tokens = labels.shape
    padding = tokens - taught.shape[1]
    is_taught = F.pad(taught, (0, padding)).flatten() & (wanted >= 0)
    places = torch.arange(rows, device=labels.device)[:, None] * taught.shape[1]
    places = (places + torch.arange(tokens, device=labels.device)).flatten()
    theirs = teacher.states.flatten(0, 1)
    parts = [
        checkpoint(_plain, flat[part], wanted[part], head, use_reentrant=False)
        for part in (~is_taught & (wanted >= 0)).nonzero()[:, 0].split(block)
    ]
    for part in is_taught.nonzero()[:, 0].split(block):
        seen = theirs[places[part]]
        arguments = (flat[part], wanted[part], head, seen, teacher_head, weights)
        parts.append(checkpoint(_taught, *arguments, use_reentrant=False))
    total = _summed(parts, flat)
    if weights.hidden:
        inside = F.pad(taught, (0, padding)) & (labels >= 0)
        total = total + weights.hidden * _apart(student.layers, teacher.layers, inside)
    return total


def block_of(vocabulary: int) -> int:
    """Tokens whose logits are held at once."""
    return max(BLOCK_BYTES // (4 * vocabulary), 1)


def _summed(parts: list[torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    if not parts:
        return states.sum() * 0.0  # every process takes part in the step
    return torch.stack(parts).sum()


def _plain(states: torch.Tensor, wanted: torch.Tensor, head: Head) -> torch.Tensor:
    return F.cross_entropy(head(states).float(), wanted, reduction="sum")


def _taught(
    states: torch.Tensor,
    wanted: torch.Tensor,
    head: Head,
    seen: torch.Tensor,
    teacher_head: Head,
    weights: Weights,
) -> torch.Tensor:
    logits = head(states).float()
    share, heat = weights.teacher, weights.temperature
    with torch.no_grad():
        theirs = teacher_head(seen).float()
    total = logits.new_zeros(())
    if share < 1:
        total = total + (1 - share) * F.cross_entropy(logits, wanted, reduction="sum")
    if share > 0:
        own = (logits / heat if heat != 1 else logits).log_softmax(-1)
        other = (theirs / heat if heat != 1 else theirs).log_softmax(-1)
        divergence = F.kl_div(own, other, log_target=True, reduction="sum")
        total = total + share * heat**2 * divergence
    return total


def _apart(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], inside: torch.Tensor
) -> torch.Tensor:
    """Distance of the states, summed over the tokens inside, a mean over layers."""
    parts = []
    for own, other in zip(ours, theirs, strict=True):
        own = own[:, : other.shape[1]].float()
        other = other.float()
        mask = inside[:, : other.shape[1]]
        distance = (own - other).square().sum(-1) / other.square().sum(-1).clamp_min(1e-12)
        parts.append((distance * mask).sum())
    return torch.stack(parts).mean()
