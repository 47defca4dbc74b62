"""Proof of effect: what transformers reads from a folder, against the method's own numbers."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ropepatch.config_json.layout import Layout
from ropepatch.errors import VerificationError
from ropepatch.geometry import Frequencies
from ropepatch.methods.base import Method
from ropepatch.model.skeleton import Skeleton, skeleton_of_config, skeleton_of_folder


@dataclass(frozen=True)
class ScheduleProof:
    """One schedule, as transformers reads it."""

    label: str
    """Layer type; "" where one schedule serves all layers."""
    method: str | None
    """None for a schedule that was to stay as it is."""
    layers: int
    pairs: int
    changed_pairs: int
    slowest_before: float | None
    """Longest wavelength of a turning pair, tokens; None if none turns."""
    slowest_after: float | None
    attention_factor: float
    worst_error: float
    """Largest relative distance of a pair from the method's own number."""


@dataclass(frozen=True)
class Proof:
    """What was found when the folder was read back."""

    schedules: tuple[ScheduleProof, ...]
    layers_changed: int
    layer_count: int
    softmax_scale_ratio: float
    """Softmax scale after over before; not 1 for MLA models under YaRN."""
    model_class: str
    length: int
    """Tokens of the input the frequencies were read for."""

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        return asdict(self)


def prove(
    folder: Path,
    before: Mapping[str, Any],
    layout: Layout,
    methods: Mapping[str, Method],
    length: int,
    *,
    remote_code: bool = False,
) -> Proof:
    """Read a folder back through transformers and compare, schedule by schedule.

    Args:
        folder: What was written.
        before: The config without the change.
        layout: Of that config.
        methods: By label, what the folder ought to do; other schedules ought to be as before.
        length: Tokens the result is meant for.
        remote_code: Whether the folder's own Python files may run.

    Raises:
        VerificationError: transformers refuses the folder, ignores the change, or computes other
            frequencies than the method.
    """
    after = skeleton_of_folder(folder, remote_code=remote_code)
    old = skeleton_of_config(before, code_from=folder if remote_code else None)
    schedules = []
    for label, schedule in layout.schedules.items():
        if not layout.groups_of(label) and label not in methods:
            continue
        method = methods.get(label)
        found, was = _read(after, label, length), _read(old, label, length)
        want = method.frequencies(schedule.geometry, length) if method else was
        tolerance = method.float32_tolerance if method else 0.0
        error = compare(label, found, want, tolerance)
        if method and method.length_dependent:  # short inputs go by the other set
            short = schedule.geometry.trained_length
            wanted = method.frequencies(schedule.geometry, short)
            compare(label, _read(after, label, short), wanted, tolerance)
        changed = sum(a != b for a, b in zip(found.inv_freq, was.inv_freq, strict=True))
        if method and not changed and found.attention_factor == was.attention_factor:
            raise VerificationError(
                f"{after.model_class} computes the same frequencies as before{_of(label)}: the "
                "change would do nothing. Please report this family."
            )
        schedules.append(
            ScheduleProof(
                label=label,
                method=method.name if method else None,
                layers=sum(len(g.layers) for g in layout.groups_of(label)),
                pairs=len(found.inv_freq),
                changed_pairs=changed,
                slowest_before=slowest(was),
                slowest_after=slowest(found),
                attention_factor=found.attention_factor,
                worst_error=error,
            )
        )
    scales = (after.softmax_scale, old.softmax_scale)
    return Proof(
        schedules=tuple(schedules),
        layers_changed=sum(s.layers for s in schedules if s.method),
        layer_count=layout.layer_count,
        softmax_scale_ratio=scales[0] / scales[1] if scales[0] and scales[1] else 1.0,
        model_class=after.model_class,
        length=length,
    )


def _of(label: str) -> str:
    return f" for {label}" if label else ""


def _read(skeleton: Skeleton, label: str, length: int) -> Frequencies:
    if label not in skeleton.rotary:
        raise VerificationError(
            f"{skeleton.model_class} has no schedule{_of(label)}; it holds "
            f"{', '.join(skeleton.rotary) or 'one for all layers'}."
        )
    return skeleton.frequencies(label, length)


def compare(label: str, found: Frequencies, want: Frequencies, tolerance: float) -> float:
    """The worst relative error.

    Raises:
        VerificationError: it is beyond the tolerance.
    """
    if len(found.inv_freq) != len(want.inv_freq):
        raise VerificationError(
            f"transformers turns {len(found.inv_freq)} pairs{_of(label)}, the method means "
            f"{len(want.inv_freq)}."
        )
    worst, at = 0.0, 0
    for i, (is_, ought) in enumerate(zip(found.inv_freq, want.inv_freq, strict=True)):
        error = abs(is_ - ought) / ought if ought else (math.inf if is_ else 0.0)
        if error > worst:
            worst, at = error, i
    if worst > tolerance:
        raise VerificationError(
            f"transformers computes other frequencies than the method{_of(label)}: pair {at} is "
            f"{found.inv_freq[at]:.6g} instead of {want.inv_freq[at]:.6g} radians per token."
        )
    if not math.isclose(found.attention_factor, want.attention_factor, rel_tol=1e-6):
        raise VerificationError(
            f"transformers applies the attention factor {found.attention_factor:.6f}{_of(label)} "
            f"instead of {want.attention_factor:.6f}."
        )
    return worst


def slowest(frequencies: Frequencies) -> float | None:
    """Longest wavelength of a turning pair, tokens."""
    turning = [w for w in frequencies.wavelengths() if math.isfinite(w)]
    return max(turning) if turning else None
