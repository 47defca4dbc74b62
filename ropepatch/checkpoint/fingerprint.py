"""What tells one checkpoint from another, weights included, without reading all of it."""

import hashlib
from pathlib import Path

_SAMPLES, _SAMPLE = 64, 1024
"""Places in a weight file, and bytes of each, that its fingerprint is made of."""


def fingerprint(folder: Path) -> str:
    """What tells one checkpoint from another: its config, and samples of its weight files.

    Training changes every tensor, so a few kilobytes of each file tell, and hundreds of gigabytes
    need not be read.
    """
    found = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        size = path.stat().st_size
        found.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for i in range(_SAMPLES):
                file.seek(size * i // _SAMPLES)
                found.update(file.read(_SAMPLE))
    return found.hexdigest()[:16]
