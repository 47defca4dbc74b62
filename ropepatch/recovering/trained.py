"""What a training came to, before it is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Trained:
    """What a training came to."""

    steps: int
    reached: bool
    before: Mapping[str, float]
    original: Mapping[str, float]
    """The teacher's numbers."""
    losses: list[dict[str, float]]
    checks: list[dict[str, float]]
    """What was measured on the way, by step."""
    best_step: int | None
    probe: torch.Tensor
    """(tokens,) ids."""
    logits: torch.Tensor
    """(some tokens, vocabulary) of the trained model."""
    measured: Callable[[Any, int], dict[str, float]]
    lengths: tuple[int, ...]
    """Tokens that were measured at."""
    passes: float
    rounded: bool
    """Whether it was read in 16 bits."""
    notes: tuple[str, ...]


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """(16, vocabulary), of the last tokens, float32 on the CPU."""
    training = model.training
    model.eval()
    try:
        found = model(input_ids=ids, use_cache=False).logits
    finally:
        model.train(training)
    last: torch.Tensor = found[0, -16:].float().cpu()
    return last


def losses_of(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """By step, thinned to a few hundred."""
    rows = [
        {"step": int(row["step"]), "loss": round(float(row["loss"]), 5)}
        for row in history
        if "loss" in row
    ]
    return rows[:: -(-len(rows) // 200) or 1]


def checks_of(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What was measured, by step."""
    return [
        {
            "step": int(row["step"]),
            **{k.removeprefix("eval_"): float(v) for k, v in row.items() if k.startswith("eval_")},
        }
        for row in history
        if any(key.startswith("eval_") for key in row)
    ]
