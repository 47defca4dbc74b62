"""What a patched model really turns by, read back from its modules and compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ropepatch.config_json.write import Change
from ropepatch.errors import VerificationError
from ropepatch.geometry import Frequencies
from ropepatch.model.following import Follower
from ropepatch.model.proof import Proof, ScheduleProof, compare, slowest
from ropepatch.model.rotary import PatchedRotaryEmbedding
from ropepatch.model.turning import Turn, stock_numbers


@dataclass(frozen=True)
class Description:
    """A patch, as it stands."""

    proof: Proof
    """At the length it is meant for."""
    recipe: dict[str, Any]
    trained_length: int
    target_length: int
    changes: str
    """Whether frequencies follow the length: never, once, growing."""
    short_exact: bool
    live_only: str | None
    """Why plain transformers could not do the same from a saved checkpoint."""
    advice: tuple[str, ...]

    def __str__(self) -> str:
        """A few lines for people."""
        words = dict(self.recipe)
        method = words.pop("method")
        lines = [
            f"{method} on {self.proof.model_class}: {self.trained_length:,} to "
            f"{self.target_length:,} tokens, "
            f"{self.proof.layers_changed} of {self.proof.layer_count} layers",
        ]
        if words:
            lines.append("  " + ", ".join(f"{k} {_short(v)}" for k, v in words.items()))
        for one in self.proof.schedules:
            if one.method is None:
                lines.append(f"  {one.label or 'all layers'}: as before ({one.layers} layers)")
                continue
            lines.append(
                f"  {one.label or 'all layers'}: {one.changed_pairs} of {one.pairs} pairs changed, "
                f"slowest wave {_tokens(one.slowest_before)} to {_tokens(one.slowest_after)} "
                f"tokens, attention factor {one.attention_factor:.6g}, within "
                f"{one.worst_error:.0e} of the method's numbers"
            )
        follow = {
            "never": "the same frequencies at every length",
            "once": f"other frequencies up to {self.trained_length:,} tokens than beyond",
            "growing": f"frequencies follow the length from {self.trained_length:,} tokens on",
        }
        lines.append(f"  {follow[self.changes]}")
        if self.short_exact:
            lines.append(f"  up to {self.trained_length:,} tokens the pretrained frequencies")
        if self.proof.softmax_scale_ratio != 1:
            lines.append(f"  softmax scale × {self.proof.softmax_scale_ratio:.6f}")
        if self.live_only:
            lines.append("  saved, it loads with ropepatch.load only")
        return "\n".join(lines)


def describe(
    model: PreTrainedModel,
    change: Change,
    modules: Sequence[PatchedRotaryEmbedding],
    follower: Follower,
    scale_ratio: float,
) -> Description:
    """Read every rotary module back, at the length the patch is meant for and at the trained one.

    Raises:
        VerificationError: a module turns by other numbers than the method's.
    """
    schedules = []
    for label, schedule in change.layout.schedules.items():
        holding = [m for m in modules if label in m.fixed or _varies(m, label)]
        if not holding or not (change.layout.groups_of(label) or label in change.methods):
            continue
        method = change.methods.get(label)
        was = schedule.frequencies(change.target_length)
        found, error = was, 0.0
        for module in holding:
            for length in (change.target_length, change.layout.trained_length):
                want = _wanted(change, label, length, module.stock)
                found = read_back(_turn(module, label, length, follower))
                tolerance = 1e-6 if method is None else method.float32_tolerance
                error = max(error, compare(label, found, want, tolerance))
        found = read_back(_turn(holding[0], label, change.target_length, follower))
        changed = sum(
            not math.isclose(a, b, rel_tol=1e-6)
            for a, b in zip(found.inv_freq, was.inv_freq, strict=True)
        )
        if (
            method
            and not changed
            and math.isclose(found.attention_factor, was.attention_factor, rel_tol=1e-6)
            and follower.is_static
        ):
            raise VerificationError(f"the patched model turns as before ({label or 'all layers'}).")
        schedules.append(
            ScheduleProof(
                label=label,
                method=method.name if method else None,
                layers=sum(len(g.layers) for g in change.layout.groups_of(label)),
                pairs=len(found.inv_freq),
                changed_pairs=changed if method else 0,
                slowest_before=slowest(was),
                slowest_after=slowest(found),
                attention_factor=found.attention_factor,
                worst_error=error,
            )
        )
    return Description(
        proof=Proof(
            schedules=tuple(schedules),
            layers_changed=sum(s.layers for s in schedules if s.method),
            layer_count=change.layout.layer_count,
            softmax_scale_ratio=scale_ratio,
            model_class=type(model).__name__,
            length=change.target_length,
        ),
        recipe=change.recipe.to_dict(),
        trained_length=change.layout.trained_length,
        target_length=change.target_length,
        changes=follower.regimes.changes,
        short_exact=change.recipe.short_exact,
        live_only=change.live_only,
        advice=change.advice,
    )


def read_back(turn: Turn) -> Frequencies:
    """Frequencies and attention factor from the cos and sin that a turning gives at position 1.

    They are measured on what comes out, not copied from the table that went in.

    Raises:
        VerificationError: one token alone is turned otherwise than among others.
    """
    device = turn.inv_freq.device
    alone, second = (turn.by_pair(torch.tensor([p], device=device)) for p in ([1], [0, 1]))
    if not all(torch.equal(a[:, -1], b[:, -1]) for a, b in zip(alone, second, strict=True)):
        raise VerificationError(
            "the patched model turns one token by other frequencies than several."
        )
    cos, sin = (part.double().flatten() for part in alone)
    factor = torch.sqrt(cos.square() + sin.square()).mean().item()
    return Frequencies(tuple(torch.atan2(sin, cos).tolist()), factor)


def _wanted(change: Change, label: str, length: int, stock: torch.nn.Module) -> Frequencies:
    schedule = change.layout.schedules[label]
    method = change.methods.get(label)
    if method is None:  # as it was, blurred or not
        table, factor = stock_numbers(stock, label)
        if table.is_meta:
            return schedule.frequencies(length)
        return Frequencies(tuple(table.double().tolist()), factor)
    if change.recipe.short_exact and length <= schedule.geometry.trained_length:
        return schedule.geometry.base_frequencies()
    return method.frequencies(schedule.geometry, length)


def _varies(module: PatchedRotaryEmbedding, label: str) -> bool:
    return module.varying is not None and label in module.varying.labels


def _turn(module: PatchedRotaryEmbedding, label: str, length: int, follower: Follower) -> Turn:
    if module.varying is not None and label in module.varying.labels:
        return module.varying.turn(label, follower.regimes.at(length))
    return module.fixed[label]


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) < 40 else text[:37] + "..."


def _tokens(length: float | None) -> str:
    return "none" if length is None else f"{length:,.0f}"
