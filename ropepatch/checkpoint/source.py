"""From what a user calls a model to a folder on disk: a path, or an id of the hub."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from ropepatch.errors import CheckpointError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.md", "*.py")
_UNWANTED = ("original/*", "onnx/*", "consolidated*", "*.gguf")


@dataclass(frozen=True)
class Source:
    """Where a model was found."""

    folder: Path
    name: str
    """What the user called it."""
    revision: str | None = None
    """Commit on the hub; None for a local folder."""

    @property
    def is_gguf(self) -> bool:
        """Whether `folder` is really a GGUF file."""
        return self.folder.is_file() and self.folder.suffix == ".gguf"


def find_source(model: str, revision: str | None = None, *, config_only: bool = False) -> Source:
    """The local folder of a model, fetched through huggingface_hub's cache if it is an id.

    Args:
        model: A folder, a GGUF file, or an id such as `org/name`.
        revision: Branch, tag or commit on the hub.
        config_only: Fetch config.json alone.

    Raises:
        CheckpointError: neither a path nor an id that the hub gives us.
    """
    try:
        path = Path(model).expanduser()
        found = path.exists()
    except (OSError, RuntimeError) as error:  # too long a name, no permission, an unknown ~user
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{model}: {reason}.") from None
    if found:
        if revision is not None:
            raise CheckpointError(f"{model} is a local path; --revision is for models of the hub.")
        return Source(path, model)
    if not _HUB_ID.fullmatch(model) or model.endswith((".gguf", ".json", ".safetensors")):
        raise CheckpointError(f"{model} does not exist.")
    return _from_hub(model, revision, config_only=config_only)


def _from_hub(model: str, revision: str | None, *, config_only: bool) -> Source:
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    # its retries and warnings; what failed is said below, once
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    try:
        config = Path(hf_hub_download(model, "config.json", revision=revision))
        if not config_only:
            ignored = list(_UNWANTED)
            folder = snapshot_download(
                model,
                revision=config.parent.name,
                allow_patterns=[*_WANTED],
                ignore_patterns=ignored,
            )
            if not any(Path(folder).glob("*.safetensors")):
                snapshot_download(
                    model,
                    revision=config.parent.name,
                    allow_patterns=["*.bin"],
                    ignore_patterns=ignored,
                )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{model} is neither a folder here nor a model the hub gives us "
            f"({type(error).__name__}: {reason})."
        ) from None
    return Source(config.parent, model, config.parent.name)
