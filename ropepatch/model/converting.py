"""Converting a live model away from rotary position embeddings, and undoing it."""

from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.converted import read_conversion
from ropepatch.config_json.encodings import plan_conversion
from ropepatch.conversion import ConversionRecipe
from ropepatch.errors import PatchConflictError, RecipeError
from ropepatch.model.conversions import (
    Conversion,
    Kernel,
    checked_kernel,
    conversion_of,
    undo_loaded,
)
from ropepatch.model.patching import patch_of
from ropepatch.model.sites import root_of


def convert(
    model: Any,
    to: str | ConversionRecipe,
    *,
    layers: str | int | tuple[str | int, ...] | list[str | int] | None = None,
    keep_rope_every: int | None = None,
    alibi_bias_max: float | None = None,
    slope_scale: float | None = None,
    factor: float | None = None,
    kernel: Kernel = "auto",
    replace: bool = False,
) -> Conversion:
    """Give a live model linear biases (ALiBi), or no position encoding, in place of rotation.

    The weights stay. The model must be trained on afterwards: without that it reads poorly. Its
    `save_pretrained` writes a checkpoint that loads through the auto classes after
    `import ropepatch`, or with `trust_remote_code=True` where ropepatch is not installed, and
    that nothing else takes for the original.

    Args:
        model: A transformers model, or what wraps one (PEFT, `torch.compile`, ...).
        to: 'alibi', 'nope', or a recipe.
        layers: 'auto' those that turn, 'all' those that attend, layer types, or numbers.
        keep_rope_every: Of every so many layers, the last keeps its rotation.
        alibi_bias_max: The slopes of a power of two of heads end at 2^-alibi_bias_max; 8 if
            not given.
        slope_scale: Multiplies every slope.
        factor: Position interpolation: slopes are divided by it (arXiv:2310.13017). A model that
            has linear biases already (BLOOM, MPT, Falcon) is extended by it.
        kernel: What computes the biases: 'channels' (more features in any fused kernel), 'mask'
            (a full matrix), 'flex', 'flash'; 'auto' goes by the attention the model runs.
        replace: Put this conversion in the place of another; of one to the same encoding, what is
            not said here stays.

    Raises:
        RecipeError: the request is malformed.
        UnsupportedModelError: not a model, or none that can be converted.
        ConfigError: a model without rotary embeddings.
        NotExpressibleError: this family cannot do it.
        NoEffectError: nothing would change.
        PatchConflictError: it carries a patch, or another conversion.

    Example:
        >>> handle = ropepatch.convert(model, to="alibi")  # doctest: +SKIP
        >>> handle.revert()  # doctest: +SKIP
    """
    words = {
        "layers": layers,
        "keep_rope_every": keep_rope_every,
        "alibi_bias_max": alibi_bias_max,
        "slope_scale": slope_scale,
        "factor": factor,
    }
    chosen = checked_kernel(kernel)
    root = root_of(model)
    old = conversion_of(root)
    stamp = read_conversion(root.config.to_dict())
    before = stamp["conversion"] if stamp is not None and replace else None
    recipe = _recipe(to, {k: v for k, v in words.items() if v is not None}, before)
    if patch_of(root) is not None:
        raise PatchConflictError(
            "the model carries a patch of its RoPE, which a conversion would take out; revert it "
            "first."
        )
    if old is None:
        plan = plan_conversion(root.config.to_dict(), recipe, replace=replace)
        if stamp is not None:
            undo_loaded(root, stamp)
        return Conversion(model, root, plan, chosen).apply()
    if old.plan.recipe == recipe and chosen in ("auto", old.kernel):
        return old
    if not replace:
        raise PatchConflictError(
            f"the model was already converted to {old.plan.recipe.to} "
            f"({old.plan.recipe.to_dict()}); revert it first, or pass replace=True."
        )
    return _replaced(old, recipe, chosen)


def _replaced(old: Conversion, recipe: ConversionRecipe, kernel: str) -> Conversion:
    """Another conversion in the place of one that stands; that stays where the other fails."""
    plan = plan_conversion(old.plan.before, recipe)
    old.revert()
    try:
        return Conversion(old.outer, old.model, plan, kernel).apply()
    except BaseException:
        old.apply()
        raise


def revert(model: Any) -> None:
    """Undo what a model carries: a patch, a conversion, or the conversion it was loaded with.

    Raises:
        PatchConflictError: it carries none.
    """
    root = root_of(model)
    found = patch_of(root) or conversion_of(root)
    if found is not None:
        found.revert()
        return
    stamp = read_conversion(root.config.to_dict())
    if stamp is None or "ropepatch_installed" not in root.__dict__:
        raise PatchConflictError(
            f"this {type(root).__name__} carries no patch and no conversion to revert."
        )
    undo_loaded(root, stamp)


def _recipe(
    to: str | ConversionRecipe, words: dict[str, Any], before: Mapping[str, Any] | None
) -> ConversionRecipe:
    if isinstance(to, ConversionRecipe):
        if words:
            raise RecipeError(
                f"a recipe says everything itself; leave out {', '.join(sorted(words))}."
            )
        return to
    return ConversionRecipe.from_words({"to": to, **words}, before)
