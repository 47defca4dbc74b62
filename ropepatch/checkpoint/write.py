"""Writing an extended checkpoint: carry the weights, write the config, all or nothing."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropepatch.checkpoint.card import add_section
from ropepatch.checkpoint.carry import How, Progress, carry
from ropepatch.checkpoint.folder import Checkpoint, read_json
from ropepatch.checkpoint.record import RECORD, earlier_records, make_record
from ropepatch.checkpoint.rewrite import Rewrite
from ropepatch.checkpoint.sidecars import (
    put_back,
    raise_generation_length,
    raise_tokenizer_length,
    to_text,
)
from ropepatch.checkpoint.source import Source
from ropepatch.checkpoint.staging import check_target, read_text, staged, write_file
from ropepatch.config_json.plan import STAMP
from ropepatch.errors import CheckpointError

CARD = "README.md"
_WRITTEN = ("config.json", "tokenizer_config.json", "generation_config.json", CARD, RECORD)


@dataclass(frozen=True)
class Written:
    """What lies in the new folder."""

    target: Path
    carried: dict[str, str]
    """How each weight file travelled: hard link, reflink or copy."""
    changed: dict[str, dict[str, Any]]
    """New values by file, other than config.json."""
    left_behind: tuple[str, ...]
    notes: tuple[str, ...]


def default_target(source: Path, rewrite: Rewrite, parent: Path | None = None) -> Path:
    """A clear name beside the model: `NAME-yarn-64k`."""
    stem = re.sub(r"[^\w.-]", "-", source.absolute().name.removesuffix(".gguf")) or "model"
    return (parent or source.absolute().parent) / f"{stem}-{rewrite.name}"


def write_checkpoint(
    checkpoint: Checkpoint,
    source: Source,
    rewrite: Rewrite,
    target: Path,
    *,
    how: How = "auto",
    remote_code: bool = False,
    progress: Progress | None = None,
    verify: Callable[[Path], dict[str, Any]] | None = None,
) -> Written:
    """Write the changed checkpoint; on any error, or a kill, nothing is left at `target`.

    Args:
        checkpoint: What was read.
        source: Where it came from, for the record.
        rewrite: What to write into config.json.
        target: A folder that does not exist.
        how: How weight files travel.
        remote_code: Whether the user allows the checkpoint's own Python files.
        progress: Called while bytes are copied.
        verify: Called with the folder before it gets its name; its findings go into the record,
            and by raising it refuses the folder.

    Raises:
        CheckpointError: the target exists or cannot be written, or the model needs code that
            the user did not allow.
        ConfigError: a JSON file beside config.json is damaged.
    """
    check_target(target, checkpoint.path)
    config = dict(rewrite.after)
    history = earlier_records(checkpoint.path)
    undone = history[-1].get("before", {}) if history and STAMP in checkpoint.config else {}
    code = checkpoint.code if remote_code else ()
    dropped = dict(undone.get("config.json", {}))
    if not remote_code:
        dropped |= _without_code(config, rewrite)
    sidecars = _sidecars(checkpoint, rewrite, undone)
    before = {name: s.before for name, s in sidecars.items() if s.after}
    before |= {"config.json": dropped} if dropped else {}
    after = {name: s.after for name, s in sidecars.items() if s.after}
    card = read_text(checkpoint.path / CARD) if CARD in checkpoint.others else None
    with staged(target) as stage:
        carried = {}
        for name in checkpoint.weights:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            carried[name] = str(carry(checkpoint.path / name, stage / name, how, progress))
        for name in (*checkpoint.others, *code):
            if name not in _WRITTEN:
                # never linked: people edit these, and a link would edit the source as well
                carry(checkpoint.path / name, stage / name, "copy")
        for name, sidecar in sidecars.items():
            write_file(stage / name, sidecar.text)
        for name, text in rewrite.files.items():
            write_file(stage / name, text)
        write_file(stage / "config.json", to_text(config))
        write_file(stage / CARD, add_section(card, rewrite, source.name))
        proof = verify(stage) if verify is not None else None
        record = make_record(
            rewrite,
            checkpoint,
            source,
            carried=carried,
            before=before,
            after=after,
            proof=proof,
            history=history,
        )
        write_file(stage / RECORD, to_text(record))
    behind = (*checkpoint.left_behind, *(c for c in checkpoint.code if c not in code))
    notes = _notes(checkpoint, sidecars, dropped, remote_code=remote_code)
    return Written(target, carried, after, behind, notes)


def _without_code(config: dict[str, Any], rewrite: Rewrite) -> dict[str, Any]:
    """Take the source's own Python code out of a config, in place; old values of what changed."""
    if "auto_map" in rewrite.before and rewrite.code_of is not None:
        raise CheckpointError(
            f"'{rewrite.code_of}' needs the checkpoint's own Python code; "
            "read it, then pass --trust-remote-code to carry it."
        )
    if config.get("auto_map") == rewrite.before.get("auto_map"):
        config.pop("auto_map", None)
    return {"auto_map": rewrite.before["auto_map"]} if "auto_map" in rewrite.before else {}


def _notes(
    checkpoint: Checkpoint,
    sidecars: Mapping[str, "_Sidecar"],
    dropped: Mapping[str, Any],
    *,
    remote_code: bool,
) -> tuple[str, ...]:
    notes = []
    if dropped.get("auto_map") and not remote_code:
        notes.append("its own code (auto_map) was left out; transformers has this model type.")
    tokenizer = sidecars.get("tokenizer_config.json")
    if tokenizer is not None and '"auto_map"' in tokenizer.text and not remote_code:
        notes.append(
            "its tokenizer asks for Python code of its own (auto_map), which was left out; "
            "--trust-remote-code carries it."
        )
    if checkpoint.pickled:
        notes.append("the weights are pickled .bin files: carried unopened, never loaded here.")
    return tuple(notes)


@dataclass(frozen=True)
class _Sidecar:
    """A file that speaks of length: the values that change, and the text to write."""

    before: dict[str, Any]
    after: dict[str, Any]
    text: str


def _sidecars(
    checkpoint: Checkpoint, rewrite: Rewrite, undone: Mapping[str, Mapping[str, Any]]
) -> dict[str, _Sidecar]:
    """By name; `undone` are the values that an earlier extension of ours had replaced."""
    old_lengths = rewrite.old_lengths
    found: dict[str, _Sidecar] = {}
    for name in ("tokenizer_config.json", "generation_config.json"):
        if name not in checkpoint.others:
            continue
        given, text = read_json(checkpoint.path / name)
        old = put_back(given, undone.get(name, {}))
        if name == "tokenizer_config.json":
            new = raise_tokenizer_length(old, rewrite.target_length)
        else:
            new = raise_generation_length(old, old_lengths, rewrite.target_length)
        changed = {**old, **new}
        text = text if changed == given else to_text(changed)
        found[name] = _Sidecar({key: old.get(key) for key in new}, new, text)
    return found
