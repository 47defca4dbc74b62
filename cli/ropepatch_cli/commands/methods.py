"""`ropepatch methods`: what there is to choose from."""

from typing import Annotated

import typer

from ropepatch_cli.options import Json


def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method, with its parameters.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods, when to use which, and what each costs at short length."""
    from ropepatch.methods.table import METHODS, method_class
    from ropepatch_cli import render

    chosen = {name: method_class(name)} if name else METHODS
    render.methods({cls.name: cls for cls in chosen.values()}, as_json=as_json, detail=bool(name))
