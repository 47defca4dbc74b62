"""Loading a checkpoint together with what was done to it, on a live model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch.checkpoint.folder import read_config
from ropepatch.checkpoint.source import find_source
from ropepatch.config_json.converted import erase_conversion, read_conversion
from ropepatch.config_json.encodings import plan_conversion
from ropepatch.config_json.live import LIVE_TYPE
from ropepatch.config_json.plan import STAMP, erase_recipe
from ropepatch.conversion import ConversionRecipe
from ropepatch.errors import (
    AlreadyConvertedError,
    AlreadyScaledError,
    CheckpointError,
    ConfigError,
)
from ropepatch.recipe import Recipe, as_recipe
from ropepatch.runtime.words import is_converted

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
    (`ropepatch.patch_of` gives it), also where plain transformers could not do the same. A
    converted checkpoint becomes its converted model. Any
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
    _refuse_words(words)
    source = find_source(str(model), revision)
    folder = source.folder
    if source.is_gguf:
        from ropepatch.model.gguf import dequantised

        folder = dequantised(source.folder)
    config, _ = read_config(folder)
    asked = None if recipe is None else as_recipe(recipe)
    if is_converted(config):
        return _load_converted(folder, config, asked, words)
    saved = None
    stock = config[STAMP].get("asked") if isinstance(config.get(STAMP), dict) else None
    if stock is not None and asked is None:
        return _load_still(folder, config, stock, words)
    if STAMP in config:
        before = erase_recipe(config)
        saved = Recipe.from_dict(config[STAMP].get("recipe"))
        if asked is not None and asked != saved and not replace:
            raise AlreadyScaledError(
                f"{folder} already carries '{saved.method}'; pass replace=True to load it with "
                f"'{asked.method}' from the trained length instead."
            )
        config = before
    elif _is_live_only(config):
        raise CheckpointError(
            f"{folder} was saved from a patched model, but the stamp that says how is gone from "
            "its config.json; put the original rope_parameters back, or save it again."
        )
    return _loaded(folder, config, asked or saved, replace or saved is not None, remote_code, words)


def _load_converted(
    folder: Path, config: Mapping[str, Any], recipe: Recipe | None, words: dict[str, Any]
) -> "PreTrainedModel":
    """A converted model, by the classes that are installed and never by the file beside it."""
    stamp = read_conversion(config)
    if recipe is not None:
        raise AlreadyConvertedError(
            f"{folder} was converted to {(stamp or {})['conversion'].get('to')}, so "
            f"'{recipe.method}' has no rotation to work on; load it without a recipe."
        )
    asked = ConversionRecipe.from_words((stamp or {})["conversion"])
    plan_conversion(erase_conversion(config), asked)  # what is damaged costs no loading
    from transformers import AutoConfig

    from ropepatch.model.skeleton import quiet, template_of

    with quiet():
        template = template_of(AutoConfig.from_pretrained(str(folder), trust_remote_code=False))
    try:
        model: PreTrainedModel = _whole(template, folder, trust_remote_code=False, **words)
    except OSError as error:
        raise CheckpointError(f"{folder}: {' '.join(str(error).split())[:300]}") from error
    except (ValueError, KeyError, TypeError) as error:  # of words that only its class can judge
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(f"{folder}: {reason}") from error
    return model


def _load_still(
    folder: Path, config: dict[str, Any], asked: Mapping[str, Any], words: dict[str, Any]
) -> "PreTrainedModel":
    """A model without position encoding whose config says so in transformers' own words.

    As a converted one, so that what is saved from it keeps every guard.
    """
    from ropepatch.model.converting import convert

    model = _loaded(folder, erase_recipe(config), None, False, False, words)
    convert(model, ConversionRecipe.from_words(asked))
    return model


def _refuse_words(words: Mapping[str, Any]) -> None:
    own = {
        "config": "load makes it itself",
        "gguf_file": "give the file's path as the model",
        "trust_remote_code": "say remote_code=True",
        "output_loading_info": "load gives the model alone",
    }
    of_recipes = ("method", "factor", "to", "layers", "short_exact", "growth", "trained_length")
    for word in words:
        if word in own:
            raise CheckpointError(f"load takes no {word}: {own[word]}.")
        if word in of_recipes:
            raise CheckpointError(
                f"load takes no {word}: it belongs into a recipe, as in "
                "load(path, {'method': 'yarn', 'factor': 8})."
            )


def _whole(template: Any, folder: Path, **words: Any) -> Any:
    """A model all of whose weights were there.

    Raises:
        CheckpointError: transformers would have drawn some at random, and gone on.
    """
    model, info = template.from_pretrained(str(folder), output_loading_info=True, **words)
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{folder} has no weights for {missing[0]}{more} of {type(model).__name__}; they would "
            "be random; download it again."
        )
    return model


def _is_live_only(config: Mapping[str, Any]) -> bool:
    """Whether a config carries the type that only we read."""
    return any(
        _is_live_only(value) if isinstance(value, Mapping) else value == LIVE_TYPE
        for value in config.values()
    )


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
    template = template_of(parsed, remote_code=remote_code)
    try:
        model: PreTrainedModel = _whole(
            template, folder, config=parsed, trust_remote_code=remote_code, **words
        )
    except OSError as error:
        raise CheckpointError(f"{folder}: {' '.join(str(error).split())[:300]}") from error
    if recipe is not None:
        patch(model, recipe, replace=replace)
    return model
