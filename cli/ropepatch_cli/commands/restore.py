"""`ropepatch restore`: the original config back."""

from pathlib import Path
from typing import Annotated

import typer


def restore(
    folder: Annotated[Path, typer.Argument(help="A folder that `extend` or `convert` wrote.")],
) -> None:
    """Give an extended or converted folder its original config back, in place."""
    from ropepatch.extending import restore as restore_folder
    from ropepatch_cli import render

    render.restored(restore_folder(folder))
