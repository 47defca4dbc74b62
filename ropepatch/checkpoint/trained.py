"""Writing a checkpoint whose weights were trained: everything else as it was before."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ropepatch.checkpoint.card import trained_section
from ropepatch.checkpoint.carry import carry
from ropepatch.checkpoint.folder import Checkpoint
from ropepatch.checkpoint.record import RECORD, earlier_records, make_training_record
from ropepatch.checkpoint.sidecars import to_text
from ropepatch.checkpoint.source import Source
from ropepatch.checkpoint.staging import check_target, read_text, staged, write_file
from ropepatch.checkpoint.write import CARD
from ropepatch.runtime.words import MODULE

_WEIGHTS = ("*.safetensors", "model.safetensors.index.json")


def write_trained(
    checkpoint: Checkpoint,
    source: Source,
    weights: Path,
    target: Path,
    *,
    proved: Callable[[Path], Mapping[str, Any]],
    lines: Callable[[Mapping[str, Any]], list[str]],
    remote_code: bool = False,
) -> Mapping[str, Any]:
    """Write the checkpoint that was trained with the weights that came out.

    Config, tokenizer and all else are carried over as they are, so it loads wherever the other
    one does. On any error, or a kill, nothing is left at `target`.

    Args:
        checkpoint: That was trained.
        source: Where it came from.
        weights: A folder with the new safetensors files, and their index if there are several.
        target: A folder that does not exist.
        proved: Called with the folder before it gets its name; what it says of the training goes
            into the record, and by raising it refuses the folder.
        lines: For the model card, from what `proved` said.
        remote_code: Whether the user allows the checkpoint's own Python files.

    Returns:
        What `proved` said.

    Raises:
        CheckpointError: the target exists, or cannot be written.
        VerificationError: as `proved` raises it.
    """
    check_target(target, checkpoint.path)
    own = set(checkpoint.code) if remote_code else {f"{MODULE}.py"} & set(checkpoint.code)
    card = read_text(checkpoint.path / CARD) if CARD in checkpoint.others else None
    with staged(target) as stage:
        for file in sorted(f for pattern in _WEIGHTS for f in weights.glob(pattern)):
            carry(file, stage / file.name, "auto")
        for name in (*checkpoint.others, *sorted(own)):
            if name not in (CARD, RECORD) and not name.endswith(".index.json"):
                carry(checkpoint.path / name, stage / name, "copy")
        write_file(stage / "config.json", checkpoint.config_text)
        training = proved(stage)
        write_file(stage / CARD, trained_section(card, lines(training)))
        record = make_training_record(
            training, checkpoint, source, history=earlier_records(checkpoint.path)
        )
        write_file(stage / RECORD, to_text(record))
    return training
