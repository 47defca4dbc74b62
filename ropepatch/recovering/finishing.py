"""From trained weights to a checkpoint that is proven to be what was trained."""

import gc
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ropepatch.checkpoint.trained import write_trained
from ropepatch.errors import VerificationError
from ropepatch.healing.run_folder import RunFolder
from ropepatch.healing.store import Store
from ropepatch.healing.weights import dtype_of, put_into, shards_of
from ropepatch.loading import load
from ropepatch.merging import merged_weights
from ropepatch.recovering.case import Case
from ropepatch.recovering.trained import Trained, logits_of

_EXACT, _ROUNDED = 1e-4, 0.5
"""Of the largest logit: how far the reloaded model may be off, without and with rounding to 16
bits. Rounded weights are known to be the trained ones, tensor by tensor; but they may send a token
to other experts, so the second bound only catches another model."""


def finish(case: Case, folder: RunFolder, store: Store, found: Trained) -> Mapping[str, Any]:
    """Merge, round, write, read back, measure.

    Raises:
        VerificationError: the reloaded model is not the trained one.
        CheckpointError: the target cannot be written.
    """
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if case.adapter:
        from ropepatch.recovering.adapter_folder import write_adapter

        return write_adapter(case, folder, training_words(case, store, found))
    trained = folder.trained
    if case.plan.lora is not None:
        case.way.say("merging the adapter")
        trained = folder.path / "merged"
        shutil.rmtree(trained, ignore_errors=True)
        merged_weights(case.patient.folder, folder.trained, trained)
    weights = folder.path / "weights"
    put_into(case.patient.folder, trained, weights)
    dtype = dtype_of(shards_of(case.patient.folder))

    def proved(stage: Path) -> Mapping[str, Any]:
        case.way.say("reading the result back")
        model: Any = load(stage, remote_code=case.way.remote_code, dtype=torch.float32).eval()
        exact = dtype == torch.float32 and not found.rounded
        error = compared(model, found, exact=exact)
        after = found.measured(model, found.steps)
        words = training_words(case, store, found)
        words["measured"]["after"] = after
        words["notes"] += _worse(case.plan.metric, found.before, after)
        return {**words, "proof": {"logits_error": error, "dtype": str(dtype).partition(".")[2]}}

    return write_trained(
        case.patient.checkpoint,
        case.patient.source,
        weights,
        case.target,
        proved=proved,
        lines=card_lines,
        remote_code=case.way.remote_code,
    )


def _worse(metric: str, before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Said loudly, where a training did harm."""
    if metric not in before or metric not in after:
        return []
    was, now = before[metric], after[metric]
    if now >= was if metric.startswith("needle") else now <= was:
        return []
    return [
        f"the training made it worse: {metric} {was:.3f} before, {now:.3f} after; take a lower "
        "learning rate, more data, or a teacher."
    ]


def compared(model: Any, found: Trained, *, exact: bool) -> float:
    """How far the logits of a reloaded model are from those of the trained one.

    Raises:
        VerificationError: farther than rounding explains.
    """
    logits = logits_of(model, found.probe[None])
    error = float((logits - found.logits).abs().max())
    allowed = (_EXACT if exact else _ROUNDED) * max(float(found.logits.abs().max()), 1.0)
    if not error <= allowed:  # also NaN
        raise VerificationError(
            f"the saved model gives other logits than the trained one (by {error:.2g}, at most "
            f"{allowed:.2g} is rounding); nothing was written. The trained weights are in the "
            "folder of the run."
        )
    return error


def training_words(case: Case, store: Store, found: Trained) -> dict[str, Any]:
    """The training, for the record."""
    plan = case.plan
    return {
        "plan": plan.to_dict(),
        "steps": found.steps,
        "best_step": found.best_step,
        "reached": found.reached if plan.until else None,
        "tokens": found.steps * plan.batch * plan.seq_len,
        "passes": round(found.passes, 3),
        "data": {
            "sources": list(case.sources.names),
            "fingerprint": store.about.fingerprint,
            "tokens": store.about.tokens,
            "held_out": store.about.held_out,
            "documents": store.about.documents,
            "left_out": store.about.left_out,
        },
        "teacher": None
        if case.master is None
        else {"model": case.master.name, "fingerprint": case.master.fingerprint()},
        "measured": {
            "lengths": list(found.lengths),
            "original": dict(found.original),
            "before": dict(found.before),
        },
        "losses": found.losses,
        "checks": [{"step": 0, **found.before}, *found.checks],
        "command": case.way.command,
        "notes": list(found.notes),
    }


def card_lines(training: Mapping[str, Any]) -> list[str]:
    """For people, in the model card."""
    plan, measured = training["plan"], training["measured"]
    what = "all weights" if plan["lora"] is None else f"adapters of rank {plan['lora']}, merged"
    lines = [
        "## Recovery training",
        "",
        f"Trained with ropepatch after the change above: {training['steps']} steps, "
        f"{training['tokens']:,} tokens in sequences of up to {plan['seq_len']:,}; {what}.",
        "",
    ]
    for name in measured.get("after", {}):
        before, after = measured["before"].get(name), measured["after"][name]
        was = "" if before is None else f"{before:.4g} before, "
        lines.append(f"- {name}: {was}{after:.4g} after")
    return lines
