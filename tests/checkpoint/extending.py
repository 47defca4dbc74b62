"""Extending without torch, and being refused, with nothing changed that should not be."""

from pathlib import Path
from typing import Any

import pytest

from ropepatch import Recipe, extend
from ropepatch.errors import RopepatchError
from tests import tiny
from tests.tiny import tree

YARN = Recipe.named("yarn", factor=4)
RECORD = "ropepatch.json"


def inode(path: Path) -> int:
    return path.stat().st_ino


def extended(folder: Path, name: str = "out", recipe: Recipe = YARN, **words: Any) -> Path:
    """Extend without torch, into a folder beside the model."""
    target = folder.parent / name
    before = tree(folder)
    extend(folder, recipe, target, **{"verify": False, **words})
    assert tree(folder) == before
    return target


def refusal(folder: Path, target: Path, recipe: Recipe = YARN, **words: Any) -> str:
    """The one line of a refusal that changed nothing anywhere near."""
    before = tree(folder.parent)
    with pytest.raises(RopepatchError) as caught:
        extend(folder, recipe, target, **{"verify": False, **words})
    assert tree(folder.parent) == before
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    return said


OWN_CODE: dict[str, Any] = tiny.V5 | {
    "model_type": "llama_of_somebody",
    "auto_map": {"AutoConfig": "configuration_x.C", "AutoModelForCausalLM": "modeling_x.M"},
}
"""A model type that transformers does not ship."""
