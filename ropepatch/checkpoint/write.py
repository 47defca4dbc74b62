"""Writing an extended checkpoint: carry the weights, write the config, all or nothing."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropepatch.checkpoint.card import add_section
from ropepatch.checkpoint.carry import How, Progress, carry
from ropepatch.checkpoint.folder import Checkpoint, read_json
from ropepatch.checkpoint.record import RECORD, make_record, record_text
from ropepatch.checkpoint.sidecars import (
    raise_generation_length,
    raise_tokenizer_length,
    to_text,
)
from ropepatch.checkpoint.source import Source
from ropepatch.checkpoint.staging import check_target, staged, write_file
from ropepatch.config_json.write import Change
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


def default_target(source: Path, change: Change, parent: Path | None = None) -> Path:
    """A clear name beside the model: `NAME-yarn-64k`."""
    length = change.target_length
    size = f"{length // 1024}k" if length % 1024 == 0 else str(length)
    stem = re.sub(r"[^\w.-]", "-", source.resolve().name.removesuffix(".gguf")) or "model"
    return (parent or source.resolve().parent) / f"{stem}-{change.recipe.method}-{size}"


def write_checkpoint(
    checkpoint: Checkpoint,
    source: Source,
    change: Change,
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
        change: What to write into config.json.
        target: A folder that does not exist.
        how: How weight files travel.
        remote_code: Whether the user allows the checkpoint's own Python files.
        progress: Called while bytes are copied.
        verify: Called with the folder before it gets its name; its findings go into the record,
            and by raising it refuses the folder.

    Raises:
        CheckpointError: the target exists or cannot be written, or the model needs code that
            the user did not allow.
    """
    check_target(target, checkpoint.path)
    notes = []
    config = dict(change.after)
    code = checkpoint.code if remote_code else ()
    dropped: dict[str, Any] = {}
    if "auto_map" in config and not remote_code:
        if not change.layout.family.known:
            raise CheckpointError(
                f"'{change.layout.family.model_type}' needs the checkpoint's own Python code; "
                "read it, then pass --trust-remote-code to carry it."
            )
        dropped["auto_map"] = config.pop("auto_map")
        notes.append("its own code (auto_map) was left out; transformers has this model type.")
    if checkpoint.pickled:
        notes.append("the weights are pickled .bin files: carried unopened, never loaded here.")
    sidecars = {
        name: values for name, values in _sidecar_changes(checkpoint, change).items() if values
    }
    before: dict[str, dict[str, Any]] = {"config.json": dropped} if dropped else {}
    with staged(target) as stage:
        carried = {}
        for name in checkpoint.weights:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            carried[name] = str(carry(checkpoint.path / name, stage / name, how, progress))
        for name in (*checkpoint.others, *code):
            if name not in (*_WRITTEN, *sidecars):
                # never linked: people edit these, and a link would edit the source as well
                carry(checkpoint.path / name, stage / name, "copy")
        for name in ("tokenizer_config.json", "generation_config.json"):
            if name in checkpoint.others:
                old, text = read_json(checkpoint.path / name)
                new = sidecars.get(name, {})
                before |= {name: {key: old.get(key) for key in new}} if new else {}
                write_file(stage / name, to_text({**old, **new}) if new else text)
        write_file(stage / "config.json", to_text(config))
        write_file(stage / CARD, add_section(_card(checkpoint), change, source.name))
        proof = verify(stage) if verify is not None else None
        record = make_record(
            change, checkpoint, source, carried=carried, before=before, after=sidecars, proof=proof
        )
        write_file(stage / RECORD, record_text(record))
    behind = (*checkpoint.left_behind, *(c for c in checkpoint.code if c not in code))
    return Written(target, carried, sidecars, behind, tuple(notes))


def _sidecar_changes(checkpoint: Checkpoint, change: Change) -> dict[str, dict[str, Any]]:
    changes = {}
    if "tokenizer_config.json" in checkpoint.others:
        tokenizer, _ = read_json(checkpoint.path / "tokenizer_config.json")
        changes["tokenizer_config.json"] = raise_tokenizer_length(tokenizer, change.target_length)
    if "generation_config.json" in checkpoint.others:
        generation, _ = read_json(checkpoint.path / "generation_config.json")
        old = {change.layout.configured_length, change.layout.trained_length}
        changes["generation_config.json"] = raise_generation_length(
            generation, old, change.target_length
        )
    return changes


def _card(checkpoint: Checkpoint) -> str | None:
    if CARD not in checkpoint.others:
        return None
    return (checkpoint.path / CARD).read_text(encoding="utf-8", errors="replace")
