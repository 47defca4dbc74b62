"""Giving an extended folder its original config back, in place."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropepatch.checkpoint.card import remove_section
from ropepatch.checkpoint.folder import read_config, read_json
from ropepatch.checkpoint.record import RECORD, read_record, was_trained
from ropepatch.checkpoint.sidecars import put_back, to_text
from ropepatch.checkpoint.staging import read_text, replace_file
from ropepatch.checkpoint.write import CARD
from ropepatch.config_json.plan import STAMP, erase_recipe
from ropepatch.errors import CheckpointError
from ropepatch.runtime.words import MODULE, is_converted

_RESTORABLE = ("tokenizer_config.json", "generation_config.json")


@dataclass(frozen=True)
class Restored:
    """What was put back."""

    folder: Path
    method: str
    files: tuple[str, ...]


def restore(folder: Path) -> Restored:
    """Put back every value that `extend` changed, whatever else has changed since.

    config.json comes last: a run that was killed before can simply be run again.

    Raises:
        CheckpointError: the folder cannot be read or written.
        ConfigError: it was not written by us, or its stamp is damaged.
    """
    config, _ = read_config(folder)
    original = erase_recipe(config)
    stamp = config[STAMP]
    recipe = stamp.get("conversion") or stamp.get("asked") or stamp.get("recipe")
    words = recipe if isinstance(recipe, dict) else {}
    method = str(words.get("method") or words.get("to") or "?")
    record = read_record(folder) or {}
    if was_trained(record):
        first = next((r for r in record.get("history", []) if isinstance(r, dict)), record)
        base = first.get("source", {}).get("model")
        raise CheckpointError(
            f"the weights of {folder} were trained after the change, so the original config would "
            f"fit them no longer; the original is where they came from ('{base}')."
        )
    before: dict[str, dict[str, Any]] = record.get("before", {})
    files = []
    try:
        for name in _RESTORABLE:
            values = before.get(name)
            if values and (folder / name).is_file():
                current, _ = read_json(folder / name)
                replace_file(folder / name, to_text(put_back(current, values)))
                files.append(name)
        card = folder / CARD
        if card.is_file():
            text = read_text(card)
            if (shorter := remove_section(text)) != text:
                if shorter.strip():
                    replace_file(card, shorter)
                else:  # it held nothing but our section
                    card.unlink()
                files.append(CARD)
        original = put_back(original, before.get("config.json", {}))
        replace_file(folder / "config.json", to_text(original))
        (folder / RECORD).unlink(missing_ok=True)
        if is_converted(config) and (folder / f"{MODULE}.py").is_file():
            (folder / f"{MODULE}.py").unlink()
            files.append(f"{MODULE}.py")
    except OSError as error:
        raise CheckpointError(f"cannot write {folder}: {error.strerror}.") from None
    return Restored(folder, method, (*files, "config.json"))
