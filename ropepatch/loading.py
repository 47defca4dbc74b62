"""Loading a checkpoint together with what was done to it, on a live model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch.checkpoint.folder import read_config
from ropepatch.checkpoint.source import find_source
from ropepatch.config_json.plan import STAMP, erase_recipe
from ropepatch.errors import AlreadyScaledError, CheckpointError
from ropepatch.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load(
    model: str | Path,
    recipe: Recipe | Mapping[str, Any] | None = None,
    *,
    revision: str | None = None,
    replace: bool = False,
    remote_code: bool = False,
    **words: Any,
) -> "PreTrainedModel":
    """A model as it was saved, with its patch on it.

    What ropepatch has written into a checkpoint becomes a patch of the live model
    (`ropepatch.patch_of` gives it), also where plain transformers could not do the same. Any
    other checkpoint loads as plain transformers loads it, and gets `recipe` if one is given.

    Args:
        model: A folder, an id of the hub, or a GGUF file (dequantised to safetensors once).
        recipe: What to do to a plain checkpoint, or instead of what was saved.
        revision: Branch, tag or commit on the hub.
        replace: Put `recipe` in the place of a scaling that the checkpoint carries.
        remote_code: Let the checkpoint's own Python files run.
        **words: For `from_pretrained`: dtype, device_map, quantization_config, ...

    Raises:
        RopepatchError: it cannot be read, is already scaled, or the recipe does not fit.

    Example:
        >>> model = ropepatch.load("model-64k", dtype="auto")  # doctest: +SKIP
        >>> model = ropepatch.load("model", {"method": "yarn", "factor": 8})  # doctest: +SKIP
    """
    for word in ("config", "trust_remote_code", "gguf_file"):
        if word in words:
            raise CheckpointError(
                f"load makes {word} itself; leave it out"
                + (", and say remote_code=True." if word == "trust_remote_code" else ".")
            )
    source = find_source(str(model), revision)
    folder = source.folder
    if source.is_gguf:
        from ropepatch.model.gguf import dequantised

        folder = dequantised(source.folder)
    config, _ = read_config(folder)
    asked = recipe if isinstance(recipe, Recipe | None) else Recipe.from_dict(recipe)
    saved = None
    if STAMP in config:
        before = erase_recipe(config)
        saved = Recipe.from_dict(config[STAMP].get("recipe"))
        if asked is not None and asked != saved and not replace:
            raise AlreadyScaledError(
                f"{folder} already carries '{saved.method}'; pass replace=True to load it with "
                f"'{asked.method}' from the trained length instead."
            )
        config = before
    return _loaded(folder, config, asked or saved, replace or saved is not None, remote_code, words)


def _loaded(
    folder: Path,
    config: dict[str, Any],
    recipe: Recipe | None,
    replace: bool,
    remote_code: bool,
    words: dict[str, Any],
) -> "PreTrainedModel":
    from ropepatch.config_json.live import write_live
    from ropepatch.model.patching import patch
    from ropepatch.model.skeleton import config_of, quiet, template_of

    if recipe is not None:
        write_live(config, recipe, replace=replace)  # what cannot be done costs no loading
    with quiet():
        parsed = config_of(config, folder, remote_code=remote_code)
    model: PreTrainedModel = template_of(parsed, remote_code=remote_code).from_pretrained(
        str(folder), config=parsed, trust_remote_code=remote_code, **words
    )
    if recipe is not None:
        patch(model, recipe, replace=replace)
    return model
