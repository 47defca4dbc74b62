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
    from ropepatch.gguf_extending import inspect_gguf, is_gguf_file, preview_gguf
    from ropepatch_cli import drawing, inspecting, metadata, render

    chosen = tuple(method or ("yarn",))
    picture = plot and (plot if plot.suffix else plot.parent / f"{plot.name}.png")
    if revision is None and is_gguf_file(model):
        file = inspect_gguf(model)
        changes = preview_gguf(file, chosen, factor)
        metadata.inspection(file, changes, as_json=as_json)
        if picture is not None:
            metadata.draw(picture, file, changes)
    else:
        found = inspect_model(model, revision)
        previews = preview(found, chosen, factor)
        inspecting.inspection(found, previews, as_json=as_json)
        if picture is not None:
            drawing.draw_inspection(picture, found, previews)
    if picture is not None:
        render.wrote(picture, as_json=as_json)
