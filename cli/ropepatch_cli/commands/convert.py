"""`ropepatch convert`: linear biases, or no position encoding, in place of rotation."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ropepatch_cli.options import (
    DryRun,
    Json,
    Link,
    Model,
    Output,
    Revision,
    Verify,
)

Encoding = Annotated[
    str | None,
    typer.Option(
        "--to", help="alibi (linear biases) or nope (no position encoding).", show_default=False
    ),
]
ConvertedLayers = Annotated[
    str | None,
    typer.Option(
        "--layers",
        help="auto (those that turn), all (those that attend), layer types, or numbers: 0,4,8.",
    ),
]
KeepRopeEvery = Annotated[
    int | None,
    typer.Option("--keep-rope-every", help="Of every N layers, the last keeps its rotation."),
]
BiasMax = Annotated[
    float | None,
    typer.Option("--alibi-bias-max", help="Slopes end at 2^-this.", show_default="8"),
]
SlopeScale = Annotated[
    float | None, typer.Option("--slope-scale", help="Multiplies every slope.", show_default="1")
]
SlopeFactor = Annotated[
    float | None,
    typer.Option(
        "--factor",
        "-f",
        help="Position interpolation for ALiBi: slopes divided, lengths multiplied. Extends "
        "BLOOM, MPT and Falcon as well.",
        show_default="1",
    ),
]
Anew = Annotated[
    bool,
    typer.Option("--replace", help="Convert the original of a converted or extended model anew."),
]
Measure = Annotated[
    bool,
    typer.Option("--measure", help="Also measure what it costs: perplexity before and after."),
]
TextFile = Annotated[
    Path | None,
    typer.Option("--text", help="The text to measure on.", show_default="one of ropepatch's own"),
]


def convert(
    model: Model = "",
    to: Encoding = None,
    layers: ConvertedLayers = None,
    keep_rope_every: KeepRopeEvery = None,
    alibi_bias_max: BiasMax = None,
    slope_scale: SlopeScale = None,
    factor: SlopeFactor = None,
    output: Output = None,
    link: Link = None,
    replace: Anew = False,
    dry_run: DryRun = False,
    verify: Verify = True,
    measure: Measure = False,
    text: TextFile = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint with linear biases (ALiBi), or none, in place of rotation."""
    from ropepatch.converting import convert_checkpoint
    from ropepatch.errors import RopepatchError
    from ropepatch_cli import converting
    from ropepatch_cli.working import Work

    recipe = _checked(
        model,
        {
            "to": to,
            "layers": layers,
            "keep_rope_every": keep_rope_every,
            "alibi_bias_max": alibi_bias_max,
            "slope_scale": slope_scale,
            "factor": factor,
        },
        measure=measure,
        dry_run=dry_run,
        text=text,
    )
    with Work(quiet=as_json) as work:
        done = convert_checkpoint(
            model,
            recipe,
            output,
            revision=revision,
            how="auto" if link is None else "link" if link else "copy",
            replace=replace,
            verify=verify,
            dry_run=dry_run,
            progress=work.progress,
            say=work.say,
        )
        damage, failed = None, None
        if measure:
            from ropepatch.damage import measure_damage

            work.say("measuring what it costs")
            try:
                damage = measure_damage(done.target, text)
            except RopepatchError as error:  # the checkpoint is there all the same
                failed = f"not measured: {error}"
    converting.conversion(done, damage, failed, as_json=as_json)


def _checked(
    model: str, words: dict[str, Any], *, measure: bool, dry_run: bool, text: Path | None
) -> dict[str, Any]:
    """The words of the recipe, or every fault of the request in one error."""
    from ropepatch.conversion import ConversionRecipe
    from ropepatch.errors import RecipeError

    faults = []
    if not model:
        faults.append("--model is missing: a folder, an id of the hub, or a GGUF file")
    if measure and dry_run:
        faults.append("--measure needs what --dry-run does not write; leave one out")
    if text is not None and not measure:
        faults.append("--text is what --measure reads; add --measure")
    elif text is not None and not text.is_file():
        faults.append(f"--text {text}: no such file")
    if words["to"] is None:
        faults.append("--to is missing: alibi or nope")
        raise RecipeError(faults)
    try:
        ConversionRecipe.from_words(words)
    except RecipeError as error:
        raise RecipeError([*faults, *error.faults]) from None
    if faults:
        raise RecipeError(faults)
    return {key: value for key, value in words.items() if value is not None}
