"""`ropepatch.json`: what was done to a checkpoint, as data for people and for `restore`."""

import datetime
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropepatch._version import __version__
from ropepatch.checkpoint.folder import Checkpoint, read_json
from ropepatch.checkpoint.source import Source
from ropepatch.config_json.paths import text_part
from ropepatch.config_json.plan import POSITION_KEYS
from ropepatch.config_json.write import Change
from ropepatch.errors import CheckpointError, ConfigError

RECORD = "ropepatch.json"
FORMAT = 1
_CHANGED_KEYS = {
    "config.json": {"auto_map"},
    "tokenizer_config.json": {"model_max_length"},
    "generation_config.json": {"max_length"},
}
"""All that the record has to remember; the stamp in config.json does so for positions."""


def make_record(
    change: Change,
    checkpoint: Checkpoint,
    source: Source,
    *,
    carried: Mapping[str, str],
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Mapping[str, Any]],
    proof: Mapping[str, Any] | None,
    history: list[dict[str, Any]],
) -> dict[str, Any]:
    """The record of one extension.

    Args:
        change: What was written into config.json.
        checkpoint: What was read.
        source: Where it came from.
        carried: How each weight file travelled.
        before: Old values of changed keys, by file other than config.json; None where absent.
        after: Their new values.
        proof: What verification found; None if it was skipped.
        history: The `earlier_records` of what was read.
    """
    layout = change.layout
    return {
        "format": FORMAT,
        "ropepatch": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version.split(maxsplit=1)[0],
        "source": {
            "model": source.name,
            "revision": source.revision,
            "fingerprint": checkpoint.fingerprint(),
            "weights": dict(carried),
        },
        "recipe": change.recipe.to_dict(),
        "methods": {label or "*": _plain(m.parameters()) for label, m in change.methods.items()},
        "lengths": {
            "trained": layout.trained_length,
            "configured_before": layout.configured_length,
            "target": change.target_length,
        },
        "dialect": change.dialect,
        "config": {
            "before": _positions(change, change.before),
            "after": _positions(change, change.after),
        },
        "schedules": {label or "*": _schedule(change, label) for label in change.methods},
        "before": {name: dict(values) for name, values in before.items()},
        "after": {name: dict(values) for name, values in after.items()},
        "advice": list(change.advice),
        "proof": proof,
        **({"history": history} if history else {}),
    }


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a folder; None where there is none.

    Raises:
        CheckpointError: it is of a newer format, or cannot be read.
        ConfigError: it is not JSON, or damaged.
    """
    if not (folder / RECORD).is_file():
        return None
    try:
        record, _ = read_json(folder / RECORD)
    except ConfigError:
        raise ConfigError(
            f"{folder / RECORD} is damaged; remove it, config.json can be restored without it."
        ) from None
    if not isinstance(record.get("format"), int) or record["format"] > FORMAT:
        raise CheckpointError(
            f"{folder / RECORD} was written by a newer ropepatch "
            f"({record.get('ropepatch', 'unknown version')}); update to read it."
        )
    before = record.get("before", {})
    if not isinstance(before, dict) or not all(
        isinstance(values, dict) and set(values) <= _CHANGED_KEYS.get(name, set())
        for name, values in before.items()
    ):
        raise ConfigError(
            f"{folder / RECORD} is damaged; remove it, config.json can be restored without it."
        )
    return record


def earlier_records(folder: Path) -> list[dict[str, Any]]:
    """The record of a folder and those before it, oldest first, each without its own history.

    Raises:
        RopepatchError: as `read_record`.
    """
    record = read_record(folder)
    if record is None:
        return []
    earlier = record.pop("history", [])
    return [*(earlier if isinstance(earlier, list) else []), record]


def _positions(change: Change, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config that speak of positions."""
    text = text_part(config, change.layout.path)
    return {key: text[key] for key in POSITION_KEYS if key in text}


def _schedule(change: Change, label: str) -> dict[str, Any]:
    schedule, method = change.layout.schedules[label], change.methods[label]
    base, new = (
        schedule.geometry.base_frequencies(),
        method.frequencies(schedule.geometry, change.target_length),
    )

    def slowest(waves: tuple[float, ...]) -> float | None:
        turning = [w for w in waves if math.isfinite(w)]
        return max(turning) if turning else None

    return {
        "rope_theta": schedule.geometry.theta,
        "head_dim": schedule.geometry.head_dim,
        "rotary_dim": schedule.geometry.rotary_dim,
        "layers": sum(len(g.layers) for g in change.layout.groups_of(label)),
        "slowest_wavelength_before": slowest(base.wavelengths()),
        "slowest_wavelength_after": slowest(new.wavelengths()),
        "attention_factor": new.attention_factor,
    }


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in parameters.items()
        if value is not None
    }
