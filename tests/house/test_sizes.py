"""Files and functions stay of a size that a person can hold in mind."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_FILE = 300
LONGEST_FUNCTION = 80
EMPTY_NAMES = {"common", "helper", "helpers", "misc", "util", "utils"}

LONG_FILES: dict[str, str] = {}
"""Files that may exceed the limit: path -> why two files would read worse than one."""

FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("ropepatch", "cli")
    for path in (ROOT / folder).rglob("*.py")
)


def lines(file: str) -> int:
    return len((ROOT / file).read_text(encoding="utf-8").splitlines())


def functions(file: str) -> Iterator[tuple[str, int]]:
    """Each function's name and its number of lines, docstring included."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_there_is_something_to_measure() -> None:
    assert "ropepatch/__init__.py" in FILES
    assert "cli/ropepatch_cli/app.py" in FILES


@pytest.mark.parametrize("file", FILES)
def test_file_is_short(file: str) -> None:
    assert lines(file) <= LONGEST_FILE or file in LONG_FILES


@pytest.mark.parametrize("file", FILES)
def test_functions_are_short(file: str) -> None:
    assert [(name, size) for name, size in functions(file) if size > LONGEST_FUNCTION] == []


def test_exceptions_are_still_needed() -> None:
    assert [file for file in LONG_FILES if file not in FILES or lines(file) <= LONGEST_FILE] == []


def test_modules_are_named_after_something() -> None:
    names = {file: {Path(file).stem, Path(file).parent.name} for file in FILES}
    assert [file for file, parts in names.items() if parts & EMPTY_NAMES] == []
