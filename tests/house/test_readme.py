"""README says what the code says."""

import re
from pathlib import Path

import pytest

from tests.house.readme import between, tables

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("word", tables())
def test_the_tables_are_the_codes(word: str) -> None:
    found = between(word).search(README)
    assert found, f"README lost the marks around its table of {word}"
    assert found[1] == tables()[word], "run `python -m tests.house.readme` to rewrite the tables"


def test_every_file_it_names_is_there() -> None:
    for path in re.findall(r"(?:recipes|tests)/[\w./-]+\w", README):
        assert (ROOT / path).exists(), path


def test_every_command_it_names_exists() -> None:
    from ropepatch_cli.app import app

    known = {command.name for command in app.registered_commands}
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    known |= groups.keys()
    for command, further in re.findall(r"`ropepatch (\w+)(?: (\w+))?", README):
        assert command in known, command
        if (group := groups.get(command)) is not None:
            assert further in {c.name for c in group.registered_commands}, further
