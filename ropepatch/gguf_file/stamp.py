"""What an extension leaves in a GGUF file, so that it can be undone to the byte."""

import datetime
import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gguf.constants import GGUFValueType

from ropepatch._version import __version__
from ropepatch.errors import CheckpointError
from ropepatch.gguf_file.draft import Draft, Value
from ropepatch.gguf_file.rotation import FREQS, LONG, SHORT
from ropepatch.gguf_file.survey import Survey
from ropepatch.gguf_file.words import ROTARY_KEYS
from ropepatch.gguf_file.writing import header_hash, padded, padding_of
from ropepatch.methods.table import METHODS

STAMP = "ropepatch.record"
"""The key; engines pass over what they do not know."""
FORMAT = 1
SPLIT_TENSORS = "split.tensors.count"


def stamped(
    draft: Draft, base: Draft, recipe: Mapping[str, Any], trained: int, target: int
) -> Draft:
    """The draft with a record of what it makes of `base`, and data that move by whole blocks."""
    padding = padding_of(base.survey) if base.padding is None else base.padding
    base = replace(base, padding=padding)
    before: dict[str, list[str] | None] = {}
    for key in dict.fromkeys((*base.values, *draft.values)):
        old = base.entry(key)
        if key != STAMP and old != draft.entry(key):
            before[key] = None if old is None else [old.kind.name, old.raw.hex()]
    record = {
        "format": FORMAT,
        "ropepatch": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "recipe": dict(recipe),
        "trained_length": trained,
        "target_length": target,
        "before": before,
        "overwritten": {
            name: base.overlaid.get(name, draft.original_bytes(tensor)).hex()
            for name in draft.overlaid
            if (tensor := draft.survey.tensor(name)) is not None
        },
        "added": list(draft.added),
        "data_size": base.kept_size,
        "padding": padding.hex(),
        "header_sha256": header_hash(base),
    }
    draft = replace(draft, padding=None)
    text = json.dumps(record, ensure_ascii=False)
    return padded(draft.put({STAMP: Value.of(GGUFValueType.STRING, text)}), STAMP)


def read_record(survey: Survey) -> dict[str, Any] | None:
    """What an extension of ours has left; None where there was none.

    Raises:
        CheckpointError: it is damaged, or of a newer ropepatch.
    """
    entry = survey.keys.get(STAMP)
    if entry is None:
        return None
    damaged = CheckpointError(f"the record of ropepatch in {survey.path} is damaged.")
    try:
        record = json.loads(entry.value)
    except (TypeError, ValueError, RecursionError):
        raise damaged from None
    if not isinstance(record, dict) or type(record.get("format")) is not int:
        raise damaged
    if record["format"] < 1:
        raise damaged
    if record["format"] > FORMAT:
        raise CheckpointError(f"{survey.path} was written by a newer ropepatch; update to read it.")
    lengths = [record.get("trained_length"), record.get("target_length")]
    whole = (
        isinstance(record.get("recipe"), dict)
        and record["recipe"].get("method") in METHODS
        and isinstance(record.get("before"), dict)
        and isinstance(record.get("overwritten"), dict)
        and isinstance(record.get("added"), list)
        and all(type(n) is int and n > 0 for n in lengths)
    )
    if not whole:
        raise damaged
    return record


def undone(survey: Survey, record: Mapping[str, Any]) -> Draft:
    """The header as it was before the extension that left `record`.

    Raises:
        CheckpointError: the record does not fit the file.
    """
    damaged = CheckpointError(f"the record of ropepatch does not fit {survey.path}.")
    name = str(survey.value("general.architecture"))
    allowed = {f"{name}.{key}" for key in ROTARY_KEYS} | {SPLIT_TENSORS}
    values: dict[str, Value | None] = {STAMP: None}
    try:
        for key, was in record["before"].items():
            if key not in allowed:
                raise damaged
            values[key] = None if was is None else _value(was)
        overlaid = {str(k): bytes.fromhex(v) for k, v in record["overwritten"].items()}
        padding = bytes.fromhex(record["padding"])
    except (KeyError, TypeError, ValueError, AttributeError, struct.error):
        raise damaged from None
    added, size = record["added"], record.get("data_size")
    known = {FREQS, LONG, SHORT}
    last = [t.name for t in survey.tensors[len(survey.tensors) - len(added) :]] if added else []
    if not set(overlaid) <= known or not set(map(str, added)) <= known or last != added:
        raise damaged
    for tensor, raw in overlaid.items():
        entry = survey.tensor(tensor)
        if entry is None or entry.size != len(raw):
            raise damaged
    if type(size) is not int or not 0 <= size <= max(0, survey.size - survey.data_start):
        raise damaged
    kept = [t for t in survey.tensors if t.name not in added]
    if any(t.offset + (t.size or 0) > size for t in kept) or len(padding) >= survey.alignment:
        raise damaged
    return Draft(
        survey, values, overlaid, dropped=frozenset(added), data_size=size, padding=padding
    )


def check_header(draft: Draft, record: Mapping[str, Any]) -> None:
    """Refuse a way back that would not give the very header that was there.

    Raises:
        CheckpointError: so it is: the file was changed since.
    """
    if header_hash(draft) != record.get("header_sha256"):
        raise CheckpointError(
            f"{draft.survey.path} was changed since ropepatch extended it, so its old header "
            "cannot be put back to the byte; extend the original again."
        )


def _value(was: Any) -> Value:
    kind, raw = was
    value = Value(GGUFValueType[str(kind)], bytes.fromhex(raw))
    if value.kind is GGUFValueType.ARRAY or Value.of(value.kind, value.value) != value:
        raise ValueError("not a plain value")
    return value
