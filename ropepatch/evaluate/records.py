"""What is kept of each cell, whoever asked it."""

from collections.abc import Mapping
from typing import Any

from ropepatch.evaluate.cells import Prompt
from ropepatch.evaluate.tasks.table import task_named


def record_of(prompt: Prompt, score: Mapping[str, Any], forwarded: int) -> dict[str, Any]:
    """The line of one cell.

    Args:
        prompt: What was asked.
        score: How the answer scores, or why there is none as `failed`.
        forwarded: Tokens that the model read for it.
    """
    cell = prompt.cell
    return {
        "task": cell.task,
        "length": cell.length,
        "depth": cell.depth,
        "trial": cell.trial,
        "actual_depth": prompt.actual_depth,
        "needle_token": prompt.needle_token,
        "expected": list(prompt.answers),
        **score,
        "tokens": len(prompt.ids) + len(prompt.answer),
        "forwarded": forwarded,
    }


def generated(prompt: Prompt, text: str) -> dict[str, Any]:
    """How a generated answer scores."""
    found = task_named(prompt.cell.task).found(text, prompt.answers)
    return {
        "exact": int(all(found)),
        "recall": sum(found) / len(found),
        "tokens_right": None,
        "logprob": None,
        "said": " ".join(text.split())[:200],
    }


def key_of(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which cell a record is of, as `Cell.key` says it."""
    return tuple(record.get(name) for name in ("task", "length", "depth", "trial"))
