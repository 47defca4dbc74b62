"""The header of a safetensors file: enough to see that a download is whole."""

import json
from pathlib import Path

from ropepatch.errors import CheckpointError

_LARGEST_HEADER = 100_000_000  # safetensors' own limit


def check_shard(path: Path) -> None:
    """Compare the size a shard announces with the size it has; its data is not read.

    Raises:
        CheckpointError: the header is damaged, or the file is shorter or longer than it says.
    """
    try:
        actual = path.stat().st_size
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if actual < 8 or size > min(_LARGEST_HEADER, actual - 8):
                raise CheckpointError(f"{path} is not a safetensors file, or is truncated.")
            header = json.loads(stream.read(size))
        ends = [
            tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"
        ]
        announced = 8 + size + max(ends, default=0)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise CheckpointError(f"{path} has a damaged safetensors header.") from None
    if actual != announced:
        raise CheckpointError(
            f"{path} holds {actual} bytes but its header announces {announced}; download it again."
        )
