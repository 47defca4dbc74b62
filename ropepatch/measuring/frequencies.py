"""What a model turns by, as plain numbers for the record and its pictures."""

from typing import Any

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.measuring.subject import Subject


def frequencies_of(subject: Subject) -> dict[str, Any]:
    """The recipe in force, the length it is meant for, and each schedule before and now."""
    from ropepatch.model.patching import patch_of

    layout, patch = subject.layout, patch_of(subject.model)
    if layout is None:
        return {"recipe": None, "target_length": None}
    target = layout.configured_length if patch is None else patch.target_length
    schedules: dict[str, Any] = {}
    for label, schedule in layout.schedules.items():
        now = schedule.frequencies(target)
        if patch is not None and label in patch.change.methods:
            now = patch.change.methods[label].frequencies(schedule.geometry, target)
        schedules[label] = _words(schedule.geometry, now)
    return {
        "recipe": None if patch is None else patch.recipe.to_dict(),
        "target_length": target,
        "frequencies": schedules,
    }


def _words(geometry: RotaryGeometry, now: Frequencies) -> dict[str, Any]:
    return {
        "geometry": {
            "head_dim": geometry.head_dim,
            "rotary_dim": geometry.rotary_dim,
            "theta": geometry.theta,
            "trained_length": geometry.trained_length,
            **({"turning_pairs": still} if (still := geometry.turning_pairs) else {}),
        },
        "base": list(geometry.base_frequencies().inv_freq),
        "now": list(now.inv_freq),
        "attention_factor": now.attention_factor,
    }
