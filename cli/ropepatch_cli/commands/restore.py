"""`ropepatch restore`: the original config back."""

from pathlib import Path
from typing import Annotated

import typer


def restore(
    folder: Annotated[
        Path, typer.Argument(help="A folder or GGUF file that `extend` or `convert` wrote.")
    ],
) -> None:
    """Give an extended or converted folder, or a GGUF file, its original positions, in place."""
    from ropepatch.extending import restore as restore_folder
    from ropepatch.gguf_extending import is_gguf_file, restore_gguf
    from ropepatch_cli import render
    from ropepatch_cli.terminal import line

    if is_gguf_file(folder):
        method = restore_gguf(folder)
        line(f"{folder}: {method} taken out again, its metadata are what they were, to the byte.")
        return
    render.restored(restore_folder(folder))
