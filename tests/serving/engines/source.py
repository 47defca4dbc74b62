"""Sources of engines, unpacked by `recipes/fetch_engines.py`, and functions taken out of them.

    python recipes/fetch_engines.py FOLDER
    ROPEPATCH_ENGINES=FOLDER pytest -m slow tests/serving

An engine cannot be installed where there is no GPU of its kind, but its rotary code is plain torch.
What is executed is the engine's own text, unchanged; what it imports is replaced by stubs.
"""

import ast
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

_LATER = ast.parse("from __future__ import annotations").body
"""So that names in annotations need not exist."""


def source_of(engine: str) -> Path:
    """The folder that holds an engine's package."""
    place = os.environ.get("ROPEPATCH_ENGINES")
    if not place:
        pytest.skip("ROPEPATCH_ENGINES names no folder with engines' sources")
    folder = Path(place).absolute() / engine
    if not (folder / engine).is_dir():
        pytest.skip(f"ROPEPATCH_ENGINES holds no sources of {engine}")
    return folder


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def cut(file: Path, names: Iterable[str], namespace: dict[str, Any]) -> dict[str, Any]:
    """Execute functions, methods and constants of a file, by name, without their decorators.

    Args:
        file: A source file.
        names: `function`, `Class.method` (which becomes a plain function) or `CONSTANT`.
        namespace: The globals they see; they are added to it.
    """
    wanted, taken = set(names), dict[str, ast.stmt]()
    for node in parsed(file).body:
        for name, part in _named(node):
            if name in wanted:
                taken[name] = part
    assert taken.keys() == wanted, f"{file} has no {wanted - taken.keys()}"
    run(list(taken.values()), file, namespace)
    return namespace


def run(nodes: list[ast.stmt], file: Path, namespace: dict[str, Any]) -> None:
    """Execute statements of a file."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
    exec(compile(ast.Module([*_LATER, *nodes], []), str(file), "exec"), namespace)


def _named(node: ast.stmt) -> list[tuple[str, ast.stmt]]:
    if isinstance(node, ast.FunctionDef):
        return [(node.name, node)]
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return [(node.targets[0].id, node)]
    if isinstance(node, ast.ClassDef):
        inner = [part for part in node.body if isinstance(part, ast.FunctionDef)]
        return [(f"{node.name}.{part.name}", part) for part in inner]
    return []
