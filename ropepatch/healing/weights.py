"""Trained weights in the files, names and precisions that the checkpoint had before."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ropepatch.errors import VerificationError

INDEX = "model.safetensors.index.json"
_KINDS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def shards_of(folder: Path) -> list[Path]:
    """The safetensors files that transformers would load."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if not (folder / INDEX).is_file():
        return []
    table = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return [folder / name for name in sorted(set(table["weight_map"].values()))]


def dtype_of(files: Iterable[Path]) -> torch.dtype:
    """What most numbers of some safetensors files are; float32 where they are something else."""
    counted: Counter[str] = Counter()
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                piece = opened.get_slice(name)
                counted[piece.get_dtype()] += math.prod(piece.get_shape())
    most = counted.most_common(1)
    return _KINDS.get(most[0][0], torch.float32) if most else torch.float32


def put_into(base: Path, trained: Path, into: Path) -> None:
    """Write the files of a checkpoint anew, with trained weights in the place of the old.

    Names, files and the precision of each tensor stay; what the training does not know is carried
    over as it is. A head that is tied to the embeddings is not written twice.

    Args:
        base: The checkpoint that was trained.
        trained: Folder of the weights that came out, as transformers saved them.
        into: A folder for the files; need not exist.

    Raises:
        VerificationError: a weight came out that the checkpoint has no place for.
    """
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    places = dict(_places(shards_of(trained)))
    old = shards_of(base)
    known = {name for name, _ in _places(old)}
    extra = sorted(set(places) - known)
    if not old or (extra and not _only_ties(extra, known, places)):
        if old and any(name in known for name in places):
            raise VerificationError(
                f"the training gave '{extra[0]}', which the checkpoint has no place for; its "
                "embeddings are no longer tied, or its weights go by older names."
            )
        for file in (*shards_of(trained), trained / INDEX):
            if file.exists():
                shutil.copy(file, into / file.name)
        return
    for file in old:
        tensors = {}
        with safe_open(file, "pt") as opened:
            about = opened.metadata() or {"format": "pt"}
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                tensor = opened.get_tensor(name)
                tensors[name] = _taken(name, tensor, places)
        save_file(tensors, into / file.name, metadata=about)
    if (base / INDEX).is_file() and len(old) > 1:
        shutil.copy(base / INDEX, into / INDEX)


def _taken(name: str, before: torch.Tensor, places: dict[str, Path]) -> torch.Tensor:
    if name not in places:
        return before
    with safe_open(places[name], "pt") as opened:
        found: torch.Tensor = opened.get_tensor(name)
    if found.shape != before.shape:
        raise VerificationError(
            f"'{name}' had the shape {tuple(before.shape)} and came out as {tuple(found.shape)}."
        )
    return found.to(before.dtype).contiguous()


def _only_ties(extra: list[str], known: set[str], places: dict[str, Path]) -> bool:
    """Whether these are copies of weights that have their place."""
    for name in extra:
        with safe_open(places[name], "pt") as opened:
            one = opened.get_tensor(name)
        if not any(
            torch.equal(one, other)
            for other in _alike(one.shape, (n for n in places if n in known), places)
        ):
            return False
    return True


def _alike(shape: Any, names: Iterable[str], places: dict[str, Path]) -> Iterator[torch.Tensor]:
    for name in names:
        with safe_open(places[name], "pt") as opened:
            if opened.get_slice(name).get_shape() == list(shape):
                yield opened.get_tensor(name)


def _places(files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                yield name, file
