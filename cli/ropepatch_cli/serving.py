"""What an engine is told, as lines for a person, for a shell, or for a program."""

from typing import TYPE_CHECKING, Any

from ropepatch_cli.terminal import Listing, bold, coloured, line, notes, print_json

if TYPE_CHECKING:
    from ropepatch.serving.base import Export

_COLOURS = {"native": "green", "override": "yellow", "refused": "red"}


def export(found: "Export", *, as_json: bool) -> None:
    """Commands, the file they need, and what to know."""
    words = found.words
    if as_json:
        print_json(_export_words(found))
        return
    how = coloured(words.how, _COLOURS[words.how])
    lengths = f"{found.trained_length:,} → {found.target_length:,} tokens"
    line(f"{bold(found.engine.title)}: {found.row}, {lengths}, {how}")
    line(f"checked against {found.engine.checked}\n")
    if words.config is not None:
        line(f"{words.config_name}:")
        for text in words.config.rstrip("\n").splitlines():
            line(f"    {text}")
        line("")
    if words.commands:
        line(f"{words.shell}\n")
    notes(words.notes)


def command(found: "Export") -> None:
    """The commands alone, for a shell.

    Raises:
        NotExpressibleError: a file is all that is needed.
    """
    from ropepatch.errors import NotExpressibleError

    if not found.words.commands:
        file = "; --config prints it" if found.words.config else f": {found.model} as it stands"
        raise NotExpressibleError(f"{found.engine.title} takes a file, not a command{file}.")
    line(found.words.shell)


def config(found: "Export") -> None:
    """The file alone.

    Raises:
        NotExpressibleError: none is needed.
    """
    from ropepatch.errors import NotExpressibleError

    if found.words.config is None:
        raise NotExpressibleError(f"{found.engine.title} needs no file besides {found.model}.")
    line(found.words.config.rstrip("\n"))


def table(*, as_json: bool) -> None:
    """Which engine says which method."""
    from ropepatch.serving.base import ROWS
    from ropepatch.serving.table import ENGINES

    if as_json:
        print_json(
            {
                engine.name: {
                    "checked": engine.checked,
                    "methods": {
                        row: {
                            "how": engine.methods[row].how,
                            "why": engine.methods[row].why,
                            "instead": list(engine.methods[row].instead),
                        }
                        for row in ROWS
                    },
                }
                for engine in ENGINES.values()
            }
        )
        return
    listing = Listing("method", *ENGINES)
    for row in ROWS:
        listing.add(row, *(engine.methods[row].how for engine in ENGINES.values()))
    listing.show(least=90)
    line("")
    for engine in ENGINES.values():
        line(f"{bold(engine.name)}  {engine.checked}")


def _export_words(found: "Export") -> dict[str, Any]:
    words = found.words
    file = None if words.config is None else {"name": words.config_name, "content": words.config}
    return {
        "target": found.engine.name,
        "model": found.model,
        "method": found.row,
        "trained_length": found.trained_length,
        "target_length": found.target_length,
        "how": words.how,
        "checked": found.engine.checked,
        "commands": [list(command) for command in words.commands],
        "shell": words.shell,
        "overrides": words.overrides,
        "config": file,
        "notes": list(words.notes),
    }
