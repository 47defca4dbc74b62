"""An inspection, as words for a program or as tables for a person."""

import math
from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.layout import Layout, Schedule
from ropepatch.extending import Inspection, Preview
from ropepatch_cli.converting import encoding_words, encodings
from ropepatch_cli.difference import config_difference
from ropepatch_cli.terminal import Listing, bold, difference, dim, line, notes, print_json, tokens


def inspection(found: Inspection, previews: Mapping[str, Preview], *, as_json: bool) -> None:
    """How a checkpoint places its tokens."""
    if as_json:
        print_json(words(found, previews))
    else:
        show(found, previews)


def show(found: Inspection, previews: Mapping[str, Preview]) -> None:
    """Tables: lengths, schedules, layers, and what `extend` would do."""
    if found.rotary is None:
        _show_native(found)
        return
    layout = found.rotary
    sure = "" if layout.trained_length_known else " (a guess, see note)"
    line(
        f"{bold(found.source.name)}  {layout.family.model_type}, "
        f"{layout.dialect} config, {layout.layer_count} layers"
    )
    line(f"trained length {layout.trained_length:,}{sure}, configured {layout.configured_length:,}")
    if found.stamp is not None:
        recipe = found.stamp["recipe"]
        still = "asked" in found.stamp
        done = (
            "converted by ropepatch: nope"
            if still
            else f"extended by ropepatch: {recipe['method']}"
        )
        line(
            f"{done}, {tokens(found.stamp.get('trained_length'))} → "
            f"{tokens(found.stamp.get('target_length'))} tokens"
        )
        if "live_only" in found.stamp:
            line("only ropepatch.load reads it so; plain transformers refuses it (see below)")
    if found.conversion is not None:
        _show_conversion(found.conversion)
    schedules = Listing(
        "schedule", "in force", ">θ", ">head", ">rotated", ">slowest wave", ">incomplete"
    )
    for label, schedule in layout.schedules.items():
        row = _schedule_words(schedule, layout)
        schedules.add(
            label or "all layers",
            _in_force(schedule),
            f"{schedule.geometry.theta:g}",
            str(schedule.geometry.head_dim),
            str(schedule.geometry.rotary_dim),
            tokens(row["slowest_wavelength"]),
            f"{row['incomplete_pairs']} of {row['pairs']}",
        )
    schedules.show()
    line(dim("incomplete: pairs that never complete a turn in the trained length"))
    encodings(found.encodings)
    live = (found.stamp or {}).get("live_only")
    notes((*layout.notes, *([f"live only: {live}"] if live else ())))
    for name, preview in previews.items():
        _show_preview(name, preview, found)


def words(found: Inspection, previews: Mapping[str, Preview]) -> dict[str, Any]:
    """The same as plain data."""
    layout = found.rotary
    if layout is None:
        return {
            "model": found.source.name,
            "model_type": found.config.get("model_type"),
            "encodings": encoding_words(found.encodings),
            "conversion": found.conversion,
        }
    return {
        "model": found.source.name,
        "model_type": layout.family.model_type,
        "dialect": layout.dialect,
        "trained_length": layout.trained_length,
        "trained_length_known": layout.trained_length_known,
        "configured_length": layout.configured_length,
        "layers": layout.layer_count,
        "schedules": {
            label or "*": _schedule_words(schedule, layout)
            for label, schedule in layout.schedules.items()
        },
        "layer_types": [
            {
                "layer_type": group.layer_type,
                "schedule": group.label or "*",
                "layers": list(group.layers),
                "rotates": group.rotates,
                "attends": group.attends,
                "window": group.window,
            }
            for group in layout.groups
        ],
        "encodings": encoding_words(found.encodings),
        "notes": list(layout.notes),
        "ropepatch": found.stamp,
        "conversion": found.conversion,
        "extend": {name: _preview_words(preview) for name, preview in previews.items()},
    }


def _show_native(found: Inspection) -> None:
    """A family with linear biases of its own."""
    line(f"{bold(found.source.name)}  {found.config.get('model_type')}")
    if found.conversion is not None:
        _show_conversion(found.conversion)
    encodings(found.encodings)
    notes(
        (
            "it has linear biases (ALiBi) and nothing turns; `ropepatch convert --to alibi "
            "--factor N` divides their slopes.",
        )
    )


def _show_conversion(stamp: Mapping[str, Any]) -> None:
    asked = ", ".join(f"{key} {value}" for key, value in stamp["conversion"].items())
    line(f"converted by ropepatch: {asked}")


def _schedule_words(schedule: Schedule, layout: Layout) -> dict[str, Any]:
    geometry = schedule.geometry
    frequencies = schedule.frequencies(layout.configured_length)
    turning = [w for w in frequencies.wavelengths() if math.isfinite(w)]
    method = schedule.method
    return {
        "rope_type": schedule.block["rope_type"],
        "method": method.name if method else None,
        "factor": method.factor if method else 1.0,
        "rope_theta": geometry.theta,
        "head_dim": geometry.head_dim,
        "rotary_dim": geometry.rotary_dim,
        "pairs": geometry.pairs,
        "turning_pairs": geometry.turning,
        "incomplete_pairs": geometry.incomplete_pairs(),
        "slowest_wavelength": max(turning) if turning else None,
        "attention_factor": frequencies.attention_factor,
        "layers": sum(len(g.layers) for g in layout.groups_of(schedule.label)),
    }


def _in_force(schedule: Schedule) -> str:
    geometry = schedule.geometry
    still = geometry.pairs - geometry.turning
    base = f"plain, {still} of {geometry.pairs} pairs stopped" if still else "plain"
    if schedule.method is None:
        return base
    return f"{schedule.method.name} ×{schedule.method.factor:g}"


def _show_preview(name: str, preview: Preview, found: Inspection) -> None:
    if preview.change is None:
        line(f"\n{bold(f'extend --method {name}')} is refused: {preview.refusal}")
        return
    change = preview.change
    replacing = " --replace" if change.layout.scaled or found.stamp is not None else ""
    line(
        f"\n{bold(f'extend --method {name}{replacing}')}: {change.layout.trained_length:,} → "
        f"{change.target_length:,} tokens"
    )
    difference(config_difference(found.config, change.after), indent="  ")
    notes(change.advice)


def _preview_words(preview: Preview) -> dict[str, Any]:
    if preview.change is None:
        return {"refused": preview.refusal}
    change = preview.change
    return {
        "layer_types": [label or "*" for label in change.methods],
        "target_length": change.target_length,
        "dialect": change.dialect,
        "notes": list(change.advice),
    }
