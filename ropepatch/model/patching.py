"""Changing a live model's rotary position embeddings, and undoing it."""

from collections.abc import Mapping
from typing import Any

import torch

from ropepatch.config_json.live import write_live
from ropepatch.errors import PatchConflictError, RecipeError
from ropepatch.model.describing import Description
from ropepatch.model.handle import HANDLE, Patch
from ropepatch.model.sites import root_of
from ropepatch.recipe import Recipe


def patch(
    model: Any,
    method: str | Recipe | Mapping[str, Any],
    factor: float | None = None,
    *,
    to: int | str | None = None,
    layers: str | tuple[str, ...] | list[str] | None = None,
    trained_length: int | str | None = None,
    short_exact: bool | None = None,
    growth: float | None = None,
    replace: bool = False,
    **parameters: Any,
) -> Patch:
    """Give a live model a longer context; `revert` undoes it to the bit.

    Only this model is changed, never a class. Its config is changed along, so that
    `save_pretrained` writes a checkpoint that plain transformers reads the same way; where that
    has no words for the change, it refuses the checkpoint by name and `ropepatch.load` reads it.

    Args:
        model: A transformers model, or what wraps one (PEFT, `torch.compile`, ...).
        method: The method's name, a recipe, or a recipe's words.
        factor: How many times longer than trained.
        to: Or the length to reach: tokens, or '128k'.
        layers: Layer types to change; 'auto' those that attend globally, 'all' every one.
        trained_length: Tokens, where the config does not say what the model was trained on.
        short_exact: Keep the frequencies as they were up to the trained length.
        growth: Ratio of the lengths at which a dynamic method changes its frequencies.
        replace: Put this patch in the place of another, or scale a scaled model anew.
        **parameters: The method's own.

    Raises:
        RecipeError: the request is malformed.
        UnsupportedModelError: not a model, or none that can be patched.
        ConfigError: a model without rotary embeddings, or already scaled.
        PatchConflictError: it carries another patch, or `torch.inference_mode` is on.
        NoEffectError: nothing would change.
        NotExpressibleError: this family cannot do it.
        GeometryError: the method has no answer for these heads.

    Example:
        >>> handle = ropepatch.patch(model, "yarn", factor=4)  # doctest: +SKIP
        >>> print(handle.describe())  # doctest: +SKIP
        >>> handle.revert()  # doctest: +SKIP
    """
    words = {
        "factor": factor,
        "to": to,
        "layers": layers,
        "trained_length": trained_length,
        "short_exact": short_exact,
        "growth": growth,
        **parameters,
    }
    asked = _recipe(method, {k: v for k, v in words.items() if v is not None})
    root = root_of(model)
    if torch.is_inference_mode_enabled():
        raise PatchConflictError(
            "patch cannot run inside torch.inference_mode: tables made there could not be used "
            "outside; patch before the block."
        )
    old = patch_of(root)
    if old is not None and old.recipe == asked:
        old.standing = old.standing or old.depth == 0
        return old
    if old is not None:
        return _replaced(old, asked, replace=replace)
    change = write_live(root.config.to_dict(), asked, replace=replace)
    return Patch(model, root, asked, change).apply()


def _replaced(old: Patch, asked: Recipe, *, replace: bool) -> Patch:
    """Another patch in the place of one that stands; that stays where the other fails."""
    if not replace:
        raise PatchConflictError(
            f"the model already carries '{old.recipe.method}' ({old.recipe.to_dict()}); revert it "
            "first, or pass replace=True. Patches never stack."
        )
    change = write_live(old.change.before, asked, replace=replace)
    depth, standing = old.depth, old.standing
    old.revert()
    try:
        new = Patch(old.outer, old.model, asked, change)
        new.follower.pins = old.follower.pins  # blocks that are still open
        new.apply()
    except BaseException:
        old.apply()
        old.depth, old.standing = depth, standing
        raise
    old.depth, old.standing, old.successor = depth, standing, new
    return new


def patch_of(model: Any) -> Patch | None:
    """The patch that a model carries, or None."""
    found = root_of(model).__dict__.get(HANDLE)
    return found if isinstance(found, Patch) else None


def described(model: Any) -> Description:
    """The proof of effect of the patch that a model carries.

    Raises:
        PatchConflictError: it carries none.
        VerificationError: it turns by other numbers than the method's.
    """
    found = patch_of(model)
    if found is None:
        raise PatchConflictError(f"this {type(model).__name__} carries no patch to verify.")
    return found.describe()


def _recipe(method: str | Recipe | Mapping[str, Any], words: dict[str, Any]) -> Recipe:
    if isinstance(method, Recipe | Mapping):
        if words:
            raise RecipeError(
                f"a recipe says everything itself; leave out {', '.join(sorted(words))}."
            )
        return method if isinstance(method, Recipe) else Recipe.from_dict(method)
    if not isinstance(method, str):
        raise RecipeError(f"method is a name or a recipe, not {type(method).__name__}.")
    if method.endswith((".yaml", ".yml")):
        raise RecipeError(
            f"'{method}' looks like a file: Recipe.from_yaml(Path('{method}').read_text())."
        )
    return Recipe.from_dict({"method": method, **words})
