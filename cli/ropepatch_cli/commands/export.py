"""`ropepatch export`: an extended checkpoint in an engine's words."""

from typing import Annotated

import typer

from ropepatch_cli.options import Json, TrainedLength


def export(
    model: Annotated[
        str, typer.Argument(help="A folder that `extend` wrote, or a GGUF file.", metavar="DIR")
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            "--for",
            help="vllm, sglang, llama.cpp, ollama, transformers4, tgi or lmdeploy.",
            show_default=False,
        ),
    ] = "",
    original: Annotated[
        bool,
        typer.Option("--original", help="For the model it was made from, by flags alone."),
    ] = False,
    trained_length: TrainedLength = None,
    command: Annotated[bool, typer.Option("--command", help="Print the commands alone.")] = False,
    config: Annotated[bool, typer.Option("--config", help="Print the file alone.")] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Print which engine says which method.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print how an engine serves an extended checkpoint, or why it cannot."""
    from ropepatch.errors import RecipeError
    from ropepatch_cli import serving

    if sum((command, config, as_json)) > 1:
        raise RecipeError("--command, --config and --json exclude one another.")
    if table and (model or target or original or command or config or trained_length):
        raise RecipeError("--table is for all engines and methods: it goes with --json alone.")
    if table:
        serving.table(as_json=as_json)
        return
    faults = []
    if not model:
        faults.append("DIR is missing: a folder that `extend` wrote, or a GGUF file")
    if not target:
        faults.append("--for is missing; `ropepatch export --table` lists the engines")
    if faults:
        raise RecipeError(faults)
    from ropepatch.exporting import export as export_model
    from ropepatch.recipe import parse_length

    trained = None if trained_length is None else parse_length(trained_length)
    found = export_model(model, target, original=original, trained_length=trained)
    if command:
        serving.command(found)
    elif config:
        serving.config(found)
    else:
        serving.export(found, as_json=as_json)
