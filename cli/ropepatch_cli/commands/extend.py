"""`ropepatch extend`: the main job."""

from typing import TYPE_CHECKING, Any

from ropepatch_cli.options import (
    DialectName,
    DryRun,
    Factor,
    Factors,
    Json,
    Keep,
    Layers,
    Link,
    MethodName,
    Model,
    Output,
    RecipeFile,
    RemoteCode,
    Replace,
    Revision,
    Set,
    To,
    TrainedLength,
    Verify,
    recipe_words,
)

if TYPE_CHECKING:
    from ropepatch.checkpoint.carry import How
    from ropepatch.recipe import Recipe

_DIALECTS = ("auto", "v4", "v5", "both")


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
    output: Output = None,
    dialect: DialectName = "auto",
    link: Link = None,
    replace: Replace = False,
    dry_run: DryRun = False,
    verify: Verify = True,
    revision: Revision = None,
    remote_code: RemoteCode = False,
    as_json: Json = False,
) -> None:
    """Write a checkpoint that works at a longer context, and prove it.

    A GGUF model becomes a folder of safetensors, or, with --output NAME.gguf, another GGUF file
    with the same tensor data and other metadata.
    """
    from ropepatch.extending import extend as extend_model
    from ropepatch.gguf_extending import changes_metadata, extend_gguf
    from ropepatch_cli import metadata, render
    from ropepatch_cli.working import Work

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
    chosen = _checked(words, model, dialect)
    how: How = "auto" if link is None else "link" if link else "copy"
    if changes_metadata(model, output):
        _check_gguf(dialect, revision, remote_code=remote_code, verify=verify)
        with Work(quiet=as_json) as work:
            changed = extend_gguf(
                model,
                chosen,
                output,
                how=how,
                replace=replace,
                dry_run=dry_run,
                progress=work.progress,
            )
        metadata.extended(changed, as_json=as_json)
        return
    with Work(quiet=as_json) as work:
        done = extend_model(
            model,
            chosen,
            output,
            revision=revision,
            how=how,
            replace=replace,
            dialect=dialect,  # type: ignore[arg-type]  # checked above
            remote_code=remote_code,
            verify=verify,
            dry_run=dry_run,
            progress=work.progress,
            say=work.say,
        )
    render.extension(done, as_json=as_json)


def _check_gguf(dialect: str, revision: str | None, *, remote_code: bool, verify: bool) -> None:
    from ropepatch.errors import RecipeError

    given = {
        "--dialect": dialect != "auto",
        "--revision": revision is not None,
        "--trust-remote-code": remote_code,
        "--no-verify": not verify,
    }
    faults = [
        f"{name} means nothing for a GGUF file's metadata" for name, on in given.items() if on
    ]
    if faults:
        raise RecipeError(faults)


def _checked(words: dict[str, Any], model: str, dialect: str) -> "Recipe":
    """The recipe, or every fault of the request in one error."""
    from ropepatch.errors import RecipeError
    from ropepatch.recipe import Recipe

    faults = []
    if not model:
        faults.append("--model is missing: a folder, an id of the hub, or a GGUF file")
    if dialect not in _DIALECTS:
        faults.append(f"--dialect is auto, v4, v5 or both, not '{dialect}'")
    if "method" not in words:
        faults.append("--method is missing; `ropepatch methods` lists them, yarn is the usual")
        raise RecipeError(faults)
    try:
        recipe = Recipe.from_dict(words)
    except RecipeError as error:
        raise RecipeError([*faults, *error.faults]) from None
    if faults:
        raise RecipeError(faults)
    return recipe
