"""Writing what was trained as an adapter alone, which names the checkpoint it belongs to."""

import json
from collections.abc import Mapping
from typing import Any

from ropepatch._version import __version__
from ropepatch.checkpoint.carry import carry
from ropepatch.checkpoint.record import FORMAT, RECORD
from ropepatch.checkpoint.sidecars import to_text
from ropepatch.checkpoint.staging import staged, write_file
from ropepatch.healing.run_folder import RunFolder
from ropepatch.recovering.case import Case

_FILES = ("adapter_config.json", "adapter_model.safetensors")


def write_adapter(case: Case, folder: RunFolder, training: Mapping[str, Any]) -> Mapping[str, Any]:
    """All or nothing, as every folder of ours.

    Raises:
        CheckpointError: the target cannot be written.
    """
    base = case.patient.folder.absolute()
    named = str(base) if case.patient.source.revision is None else case.patient.source.name
    with staged(case.target) as stage:
        for name in _FILES:
            carry(folder.trained / name, stage / name, "copy")
        config = json.loads((stage / _FILES[0]).read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = named
        (stage / _FILES[0]).unlink()
        write_file(stage / _FILES[0], to_text(config))
        record = {
            "format": FORMAT,
            "ropepatch": __version__,
            "base": {"model": named, "fingerprint": case.patient.fingerprint()},
            "training": dict(training),
        }
        write_file(stage / RECORD, to_text(record))
    return training
