"""`ropepatch extend`: the main job."""

from pathlib import Path
from typing import Annotated

import typer

from ropepatch_cli.options import (
    Factor,
    Factors,
    Json,
    Keep,
    Layers,
    MethodName,
    Model,
    RecipeFile,
    RemoteCode,
    Revision,
    Set,
    To,
    TrainedLength,
    recipe_words,
)


def extend(
    model: Model = "",
    method: MethodName = None,
    factor: Factor = None,
    to: To = None,
    keep: Keep = None,
    factors: Factors = None,
    settings: Set = None,
    layers: Layers = None,
    trained_length: TrainedLength = None,
    recipe: RecipeFile = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder that does not exist.", show_default=False),
    ] = None,
    dialect: Annotated[
        str, typer.Option("--dialect", help="Words of the config: auto, v4, v5 or both.")
    ] = "auto",
    link: Annotated[
        bool | None,
        typer.Option(
            "--link/--copy",
            help="Share the weight files, or copy them.",
            show_default="link if possible",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a scaling; counts from the trained length.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the config would become; write nothing.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read the result back before it counts.")
    ] = True,
    revision: Revision = None,
    remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Write a checkpoint that works at a longer context, and prove it."""
    from ropepatch.errors import RecipeError
    from ropepatch.extending import extend as extend_model
    from ropepatch.recipe import Recipe
    from ropepatch_cli import render

    words = recipe_words(
        recipe_file=recipe,
        method=method,
        factor=factor,
        to=to,
        keep=keep,
        factors=factors,
        settings=settings,
        layers=layers,
        trained_length=trained_length,
    )
    model = model or str(words.get("model") or "")
    faults = []
    if not model:
        faults.append("--model is missing: a folder, an id of the hub, or a GGUF file")
    if dialect not in ("auto", "v4", "v5", "both"):
        faults.append(f"--dialect is auto, v4, v5 or both, not '{dialect}'")
    if "method" not in words:
        faults.append("--method is missing; `ropepatch methods` lists them, yarn is the usual")
    try:
        chosen = Recipe.from_dict({"method": "p-rope", **words})
    except RecipeError as error:
        faults += error.faults
    if faults:
        raise RecipeError(faults)
    with render.Work(quiet=as_json) as work:
        done = extend_model(
            model,
            chosen,
            output,
            revision=revision,
            how="auto" if link is None else "link" if link else "copy",
            replace=replace,
            dialect=dialect,  # type: ignore[arg-type]  # checked above
            remote_code=remote_code,
            verify=verify,
            dry_run=dry_run,
            progress=work.progress,
            say=work.say,
        )
    render.extension(done, as_json=as_json)
