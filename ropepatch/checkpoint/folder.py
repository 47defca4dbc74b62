"""What lies in a checkpoint folder, and whether it is whole. Names and headers only."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ropepatch.checkpoint.shards import check_shard
from ropepatch.errors import CheckpointError, ConfigError

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_FOREIGN_SUFFIXES = (".pth", ".pt", ".gguf", ".onnx", ".msgpack", ".h5", ".ckpt", ".tflite")
_FOREIGN_NAMES = ("params.json",)  # Mistral's own format, which some engines prefer to config.json
_LARGEST_JSON = 256 * 1024**2
_DEEPEST_JSON = 64  # levels; copying or writing a deeper one would exhaust Python's stack


@dataclass(frozen=True)
class Checkpoint:
    """A folder that transformers could load."""

    path: Path
    config: dict[str, Any]
    config_text: str
    weights: tuple[str, ...]
    """Weight files by name, relative to the folder."""
    pickled: bool
    """The weights are .bin files; carried, never opened."""
    others: tuple[str, ...]
    """Every other file that travels: tokenizer, generation config, index, ..."""
    code: tuple[str, ...]
    """Python files, which travel only if the user allows remote code."""
    left_behind: tuple[str, ...]
    """Folders and duplicates in other formats."""

    def fingerprint(self) -> str:
        """SHA-256 over the config and each weight file's name, size and header (not its data)."""
        digest = hashlib.sha256(self.config_text.encode())
        for name in self.weights:
            file = self.path / name
            digest.update(f"\n{name} {file.stat().st_size}\n".encode())
            if not self.pickled:
                with file.open("rb") as stream:
                    size = int.from_bytes(stream.read(8), "little")
                    digest.update(stream.read(size))
        return digest.hexdigest()

    def weight_bytes(self) -> int:
        """Size of the weight files together."""
        return sum((self.path / name).stat().st_size for name in self.weights)


def read_json(path: Path) -> tuple[dict[str, Any], str]:
    """A JSON object and its text.

    Raises:
        CheckpointError: missing, unreadable or far too large.
        ConfigError: not JSON, not an object, or nested absurdly deep.
    """
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise CheckpointError(f"{path} is larger than any {path.name}; not read.")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.") from None
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}.") from None
    if not text.strip():
        raise ConfigError(f"{path} is empty; download it again.")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of more than 4300 digits
        at = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f"{path} is not JSON{at}; truncated? Download it again.") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object.")
    if _is_too_deep(value):
        raise ConfigError(f"{path} is nested more than {_DEEPEST_JSON} levels deep; not read.")
    return value, text


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST_JSON):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """The config of a folder and its text.

    Raises:
        CheckpointError: no folder, or no config.json in it.
        ConfigError: config.json is not a JSON object.
    """
    try:
        if not path.exists():
            raise CheckpointError(f"{path} does not exist.")
        if not path.is_dir():
            raise CheckpointError(f"{path} is not a folder; give a checkpoint folder.")
        if not (path / "config.json").is_file():
            if (path / "adapter_config.json").is_file():
                raise CheckpointError(
                    f"{path} is a PEFT adapter, without a config.json; extend its base model."
                )
            raise CheckpointError(f"{path} has no config.json; is it a transformers checkpoint?")
    except OSError as error:  # a name too long, a folder that may not be entered
        raise CheckpointError(f"{path}: {error.strerror}.") from None
    return read_json(path / "config.json")


def read_checkpoint(path: Path) -> Checkpoint:
    """Look into a folder without opening a weight.

    Raises:
        CheckpointError: something is missing, truncated or points outside the folder.
        ConfigError: config.json is not a JSON object.
    """
    config, text = read_config(path)
    try:
        found = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}.") from None
    for link in found:
        if link.is_symlink() and not link.exists():
            raise CheckpointError(f"{link} is a link to nothing; download the model again.")
    names = [p.name for p in found if p.is_file()]
    folders = [p.name + "/" for p in found if p.is_dir()]
    weights, index = _weights(path, names)
    pickled = weights[0].endswith(".bin")
    if not pickled:
        for name in weights:
            check_shard(path / name)
    code = tuple(n for n in names if n.endswith(".py"))
    foreign = [n for n in names if n not in weights and n != index and _is_foreign(n)]
    others = [n for n in names if n not in weights and n not in code and n not in foreign]
    return Checkpoint(
        path=path,
        config=config,
        config_text=text,
        weights=weights,
        pickled=pickled,
        others=tuple(others),
        code=code,
        left_behind=(*folders, *foreign),
    )


def _is_foreign(name: str) -> bool:
    return (
        name.endswith((".safetensors", ".bin", *_FOREIGN_SUFFIXES))
        or name in (*_FOREIGN_NAMES, *_INDEXES)
        or name.startswith("consolidated")
    )


def _weights(path: Path, names: list[str]) -> tuple[tuple[str, ...], str | None]:
    """Weight files and the index that names them, in transformers' order of preference."""
    for single, index in zip(("model.safetensors", "pytorch_model.bin"), _INDEXES, strict=True):
        if single in names:
            return (single,), None
        if index in names:
            return _indexed(path, index), index
    raise CheckpointError(
        f"{path} has no weights that transformers would load (model.safetensors, or an index "
        "with its shards)."
    )


def _indexed(path: Path, index: str) -> tuple[str, ...]:
    table, _ = read_json(path / index)
    weight_map = table.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path / index} has no weight_map.")
    shards = sorted({str(v) for v in weight_map.values()})
    suffix = PurePosixPath(index.removesuffix(".index.json")).suffix
    for shard in shards:
        pure = PurePosixPath(shard)
        if pure.is_absolute() or ".." in pure.parts or "\\" in shard:
            raise CheckpointError(
                f"{path / index} names '{shard}', outside the folder; not followed."
            )
        if pure.suffix != suffix or str(pure) != shard or "\0" in shard:
            raise CheckpointError(
                f"{path / index} names {shard!r}, which is no {suffix} file; download it again."
            )
    missing = [s for s in shards if not (path / s).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{path / index} names {missing[0]}{more}, which the folder lacks; download again."
        )
    return tuple(shards)
