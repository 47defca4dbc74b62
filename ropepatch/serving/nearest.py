"""What an engine that refuses a checkpoint would serve instead: tried, not guessed."""

import shlex
from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.write import write_recipe
from ropepatch.errors import NotExpressibleError, RopepatchError
from ropepatch.methods.table import METHODS
from ropepatch.recipe import Recipe
from ropepatch.serving.base import Engine
from ropepatch.serving.reading import read_served
from ropepatch.serving.served import ServedModel
from ropepatch.serving.table import ENGINES, say

_CANDIDATES = ("yarn", "ntk", "llama3", "pi")
"""Methods that need no lists and no training, best first."""


def nearest(
    engine: Engine, served: ServedModel, config: Mapping[str, Any], first: tuple[str, ...]
) -> str:
    """A sentence: the method that comes nearest with its price, or who else serves this one.

    Args:
        engine: Who refused.
        served: What was refused.
        config: The `config.json` it was read from.
        first: Methods to try before the others.
    """
    factor = served.target_length / served.trained_length
    fits = [
        name
        for name in dict.fromkeys((*first, *_CANDIDATES))
        if factor > 1 and _serves(engine, config, name, factor, served.trained_length)
    ]
    if fits:
        also = f" (or {', '.join(fits[1:3])})" if fits[1:] else ""
        return (
            f"Nearest: ropepatch extend --model {_source(served)} --method {fits[0]} --factor "
            f"{factor:g}{_further(served)}{also}; its price at short length: "
            f"{METHODS[fits[0]].short_price}."
        )
    others = [other.title for other in ENGINES.values() if _says(other, served)]
    if others:
        return f"Nothing that it reads comes near; {', '.join(others)} can."
    return "Nothing that it reads comes near, and no other engine does; ropepatch.load runs it."


def _source(served: ServedModel) -> str:
    """What to extend: where it came from, or the folder itself where its scaling is all we know."""
    known = served.source if served.recipe is not None else served.name
    return shlex.quote(known or "ORIGINAL")


def _further(served: ServedModel) -> str:
    """Options that the command needs besides."""
    told = served.recipe.trained_length if served.recipe is not None else None
    if served.recipe is None and served.method.rope_type == "linear":
        told = served.trained_length
    replace = served.recipe is None or served.original_scaled
    length = f" --trained-length {told}" if told is not None else ""
    return length + (" --replace" if replace else "")


def _serves(
    engine: Engine, config: Mapping[str, Any], method: str, factor: float, trained: int
) -> bool:
    try:
        recipe = Recipe.named(method, factor=factor, trained_length=trained)
        change = write_recipe(config, recipe, replace=True)
        return _says(engine, read_served("model", change.after))
    except RopepatchError:
        return False


def _says(engine: Engine, served: ServedModel) -> bool:
    try:
        say(engine, served)
    except NotExpressibleError:
        return False
    return True
