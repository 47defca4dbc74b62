"""`ropepatch inspect`: how a checkpoint places its tokens."""

from pathlib import Path
from typing import Annotated

import typer

from ropepatch_cli.options import Json, Revision


def inspect(
    model: Annotated[str, typer.Argument(help="A folder, an id of the hub, or a GGUF file.")],
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="Also draw these methods.", show_default=False),
    ] = None,
    factor: Annotated[
        float, typer.Option("--factor", "-f", help="Factor of what `extend` would do.")
    ] = 4.0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw wavelengths per pair to this file.", show_default=False),
    ] = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Show layer types, method in force, lengths, and what `extend` would do."""
    from ropepatch.extending import inspect as inspect_model
    from ropepatch.extending import preview
    from ropepatch_cli import drawing, inspecting, render

    found = inspect_model(model, revision)
    chosen = tuple(method or ("yarn",))
    previews = preview(found, chosen, factor)
    inspecting.inspection(found, previews, as_json=as_json)
    if plot is not None:
        plot = plot if plot.suffix else plot.parent / f"{plot.name}.png"
        drawing.draw_inspection(plot, found, previews)
        render.wrote(plot, as_json=as_json)
