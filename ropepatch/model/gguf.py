"""GGUF files that transformers can read, turned into safetensors folders once.

The folder is kept in a cache (`$ROPEPATCH_CACHE`, else `$XDG_CACHE_HOME/ropepatch`, else
`~/.cache/ropepatch`), by the file's content, so a second run costs a hash of its head and tail.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ropepatch.errors import CheckpointError
from ropepatch.gguf_file.reading import read_survey
from ropepatch.gguf_file.survey import Survey
from ropepatch.model.skeleton import quiet

_SAMPLE = 4 * 1024**2


def gguf_config(path: Path) -> dict[str, Any]:
    """The config transformers makes of a GGUF file, without its tensors.

    Raises:
        CheckpointError: not GGUF, an architecture transformers does not read, or scaled.
    """
    _check(path)
    with quiet():
        try:
            config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
        except Exception as error:  # a parser of somebody else's file; whatever it throws
            raise _unreadable(path, error) from error
    words: dict[str, Any] = config.to_dict()
    return words


def dequantised(path: Path, say: Callable[[str], None] | None = None) -> Path:
    """The folder of a GGUF file's model in float32 safetensors; made if it is not there yet.

    Raises:
        CheckpointError: the file cannot be read or is scaled, or the cache cannot be written.
    """
    _check(path)
    cache = _cache()
    folder = cache / f"{path.stem}-{_content_key(path)}"
    if (folder / "config.json").is_file():
        return folder
    if say is not None:
        say(f"dequantising {path.name} to safetensors, once, in {folder}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".stage-", dir=cache))
    except OSError as error:
        raise CheckpointError(
            f"cannot write the cache {cache}: {error.strerror}; set ROPEPATCH_CACHE."
        ) from None
    try:
        _save(path, stage)
        _open_up(stage)
        stage.rename(folder)
    except OSError as error:
        if not (folder / "config.json").is_file():  # another run may have been faster
            raise CheckpointError(f"cannot write the cache {folder}: {error}.") from None
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return folder


def _save(path: Path, stage: Path) -> None:
    place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    with quiet():
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(**place)
        except OSError:
            raise
        except Exception as error:  # a parser of somebody else's file; whatever it throws
            raise _unreadable(path, error) from error
        # the tensors are plain float32 by now; without this, transformers refuses to save them
        model.hf_quantizer = None
        model.is_quantized = False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(stage)
        tokenizer.save_pretrained(stage)


def _open_up(stage: Path) -> None:
    """The usual modes: temporary folders and safetensors' files are for their owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    for file in stage.iterdir():
        file.chmod(0o666 & ~mask)
    stage.chmod(0o777 & ~mask)


def _check(path: Path) -> None:
    found = read_survey(path)
    scaling = _scaling(found)
    if scaling is not None:
        raise CheckpointError(
            f"{path} is already scaled ({scaling}), which transformers drops when it reads GGUF; "
            "use the model's safetensors instead."
        )


def _scaling(found: Survey) -> str | None:
    """The scaling a file carries in its metadata or, for llama3 and longrope, as a tensor."""
    for entry in found.entries:
        value = entry.value if ".rope.scal" in entry.key else None
        if entry.key.endswith(".rope.scaling.type") and value not in ("", "none"):
            return f"rope.scaling.type {value}"
        if entry.key.endswith(".rope.scale_linear") and value != 1:  # as older converters wrote it
            return f"rope.scale_linear {value}"
    factors = [t.name for t in found.tensors if t.name.startswith(("rope_freqs", "rope_factors"))]
    return factors[0] if factors else None


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return CheckpointError(f"transformers cannot read {path}: {reason}")


def _cache() -> Path:
    if own := os.environ.get("ROPEPATCH_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ropepatch"


def _content_key(path: Path) -> str:
    """Size, head and tail: enough to tell one model file from another."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as stream:
        digest.update(stream.read(_SAMPLE))
        stream.seek(max(0, size - _SAMPLE))
        digest.update(stream.read(_SAMPLE))
    return digest.hexdigest()[:16]
