"""The words of recipe files and of factor files, unchecked: YAML or JSON in, plain values out."""

from pathlib import Path
from typing import Any

from ropepatch.errors import RecipeError


def read_value(text: str) -> Any:
    """One value as YAML would read it: 16, true, auto, [1.0, 2.0].

    Raises:
        RecipeError: not YAML.
    """
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise RecipeError(f"not YAML: {' '.join(str(error).split())}") from None


def load_words(text: str) -> dict[str, Any]:
    """The mapping of a YAML recipe.

    Raises:
        RecipeError: not YAML, or not a mapping.
    """
    words = read_value(text)
    if not isinstance(words, dict):
        raise RecipeError("a recipe is a mapping with at least 'method: NAME'.")
    return words


def read_recipe(path: Path) -> dict[str, Any]:
    """The words of a recipe file, unchecked, for the command line to overlay.

    Raises:
        RecipeError: the file is missing, unreadable, not YAML or not a mapping.
    """
    try:
        return load_words(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RecipeError(f"{path}: {reason}.") from None
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None


def read_factors(path: Path) -> dict[str, Any]:
    """LongRoPE's lists from a JSON or YAML file.

    The lists may stand at the top, or inside `rope_parameters` or `rope_scaling` as in a
    config.json.

    Raises:
        RecipeError: the file cannot be read, or has no `long_factor`.
    """
    words = read_recipe(path)
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(words.get(key), dict) and "long_factor" in words[key]:
            words = words[key]
    if "long_factor" not in words:
        raise RecipeError(
            f"{path} has no long_factor; it needs that list, and may have short_factor."
        )
    return {k: words[k] for k in ("long_factor", "short_factor", "attention_factor") if k in words}
