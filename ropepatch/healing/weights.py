"""Weights on their way to disk: in the precision that the checkpoint had before."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

_KINDS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def dtype_of(files: Iterable[Path]) -> torch.dtype:
    """What most numbers of some safetensors files are; float32 where they are something else."""
    counted: Counter[str] = Counter()
    for file in files:
        if file.suffix != ".safetensors":
            continue
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                piece = opened.get_slice(name)
                size = 1
                for side in piece.get_shape():
                    size *= side
                counted[piece.get_dtype()] += size
    most = counted.most_common(1)
    return _KINDS.get(most[0][0], torch.float32) if most else torch.float32


def cast(folder: Path, dtype: torch.dtype) -> None:
    """Round the weights of a folder to a precision, file by file, in place."""
    for file in sorted(folder.glob("*.safetensors")):
        tensors = load_file(file)
        if all(t.dtype == dtype or not t.is_floating_point() for t in tensors.values()):
            continue
        rounded = {k: t.to(dtype) if t.is_floating_point() else t for k, t in tensors.items()}
        other = file.with_name(f".{file.name}")
        save_file(rounded, other, metadata={"format": "pt"})
        other.replace(file)
