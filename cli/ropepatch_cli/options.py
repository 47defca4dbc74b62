"""Options that several commands share, and how their words become a recipe."""

from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="A folder, an id of the hub, or a GGUF file.", show_default=False
    ),
]
Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")
]
RemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Carry the checkpoint's own Python files and let them run."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

MethodName = Annotated[
    str | None,
    typer.Option("--method", help="What to do; see `ropepatch methods`.", show_default=False),
]
Factor = Annotated[
    float | None,
    typer.Option("--factor", "-f", help="How many times longer than trained.", show_default=False),
]
To = Annotated[
    str | None,
    typer.Option("--to", help="Or the length to reach: 131072, 128k, 1m.", show_default=False),
]
Keep = Annotated[
    str | None,
    typer.Option(
        "--keep",
        help="p-rope, pi: fraction of the pairs that keeps turning, or 'auto'.",
        show_default=False,
    ),
]
Factors = Annotated[
    Path | None,
    typer.Option(
        "--factors", help="longrope: a JSON or YAML file with its lists.", show_default=False
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A parameter of the method: --set beta_fast=16.", show_default=False
    ),
]
Layers = Annotated[
    str | None,
    typer.Option("--layers", help="auto (those that attend globally), all, or layer types."),
]
TrainedLength = Annotated[
    str | None,
    typer.Option("--trained-length", help="Tokens of pretraining, where the config is wrong."),
]
RecipeFile = Annotated[
    Path | None,
    typer.Option("--recipe", help="A YAML recipe; options given here win.", show_default=False),
]

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="A folder that does not exist.", show_default=False),
]
DialectName = Annotated[
    str, typer.Option("--dialect", help="Words of the config: auto, v4, v5 or both.")
]
Link = Annotated[
    bool | None,
    typer.Option(
        "--link/--copy",
        help="Share the weight files, or copy them.",
        show_default="link if possible",
    ),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace a scaling; counts from the trained length.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what the config would become; write nothing.")
]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Read the result back before it counts.")
]


_OWN_OPTIONS = ("method", "factor", "to", "layers", "trained_length", "model", "note")


def recipe_words(
    *,
    recipe_file: Path | None,
    method: str | None,
    factor: float | None,
    to: str | None,
    keep: str | None,
    factors: Path | None,
    settings: list[str] | None,
    layers: str | None,
    trained_length: str | None,
) -> dict[str, Any]:
    """The flat words of a recipe from a file and from options, options winning.

    Raises:
        RecipeError: a file cannot be read, or `--set` is not NAME=VALUE.
    """
    from ropepatch.errors import RecipeError
    from ropepatch.recipe_files import read_factors, read_recipe, read_value

    words: dict[str, Any] = dict(read_recipe(recipe_file)) if recipe_file else {}
    given = {
        "method": method,
        "factor": factor,
        "to": to,
        "keep": keep,
        "layers": layers,
        "trained_length": trained_length,
    }
    if factor is not None or to is not None:  # either replaces either
        words.pop("factor", None)
        words.pop("to", None)
    words |= {key: value for key, value in given.items() if value is not None}
    if factors is not None:
        words |= read_factors(factors)
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise RecipeError(f"--set {setting}: write NAME=VALUE, as in --set beta_fast=16.")
        if name.strip().replace("-", "_") in _OWN_OPTIONS:
            raise RecipeError(f"--set {setting}: {name.strip()} has an option of its own; use it.")
        try:
            words[name.strip().replace("-", "_")] = read_value(value)
        except RecipeError:
            raise RecipeError(f"--set {setting}: cannot read the value.") from None
    return words
