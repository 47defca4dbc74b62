"""`ropepatch.json`: what was done to a checkpoint, as data for people and for `restore`."""

import datetime
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropepatch._version import __version__
from ropepatch.checkpoint.folder import Checkpoint, read_json
from ropepatch.checkpoint.rewrite import Rewrite
from ropepatch.checkpoint.source import Source
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
    rewrite: Rewrite,
    checkpoint: Checkpoint,
    source: Source,
    *,
    carried: Mapping[str, str],
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Mapping[str, Any]],
    proof: Mapping[str, Any] | None,
    history: list[dict[str, Any]],
) -> dict[str, Any]:
    """The record of one extension or conversion.

    Args:
        rewrite: What was written into config.json.
        checkpoint: What was read.
        source: Where it came from.
        carried: How each weight file travelled.
        before: Old values of changed keys, by file other than config.json; None where absent.
        after: Their new values.
        proof: What verification found; None if it was skipped.
        history: The `earlier_records` of what was read.
    """
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
        **rewrite.record(),
        "before": {name: dict(values) for name, values in before.items()},
        "after": {name: dict(values) for name, values in after.items()},
        "advice": list(rewrite.advice),
        "proof": proof,
        **({"history": history} if history else {}),
    }


def make_training_record(
    training: Mapping[str, Any],
    checkpoint: Checkpoint,
    source: Source,
    *,
    history: list[dict[str, Any]],
) -> dict[str, Any]:
    """The record of weights that were trained after a change.

    Args:
        training: What was done, what was measured before and after, what reading back found.
        checkpoint: What was trained.
        source: Where that came from.
        history: The `earlier_records` of what was trained.
    """
    return {
        "format": FORMAT,
        "ropepatch": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version.split(maxsplit=1)[0],
        "source": {
            "model": source.name,
            "revision": source.revision,
            "fingerprint": checkpoint.fingerprint(),
        },
        "training": dict(training),
        "history": history,
    }


def was_trained(record: Mapping[str, Any]) -> bool:
    """Whether weights were trained since a folder, or what it came from, was changed."""
    history = record.get("history", [])
    earlier = [r for r in history if isinstance(r, dict)] if isinstance(history, list) else []
    return any("training" in one for one in (record, *earlier))


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
