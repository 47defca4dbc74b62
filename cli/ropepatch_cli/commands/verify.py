"""`ropepatch verify`: does a folder do what it says?"""

from pathlib import Path
from typing import Annotated

import typer

from ropepatch_cli.options import Json, RemoteCode


def verify(
    folder: Annotated[
        Path, typer.Argument(help="A folder that `extend` wrote, or any scaled one.")
    ],
    logits: Annotated[
        bool, typer.Option("--logits", help="Also run the weights, with and without the change.")
    ] = False,
    as_json: Json = False,
    remote_code: RemoteCode = False,
) -> None:
    """Read a checkpoint back through transformers and compare with the method's own numbers."""
    from ropepatch.verifying import verify as verify_folder
    from ropepatch_cli import render
    from ropepatch_cli.working import waiting

    with waiting("reading through transformers"):
        found = verify_folder(folder, logits=logits, remote_code=remote_code)
    render.verification(folder, found, as_json=as_json)
