"""The table of methods, and how a word or a block of transformers finds its row.

Adding a method is one file beside this one and one row here.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from ropepatch.errors import RecipeError
from ropepatch.methods.base import Method
from ropepatch.methods.dynamic_ntk import DynamicNtk
from ropepatch.methods.dynamic_yarn import DynamicYarn
from ropepatch.methods.llama3 import Llama3
from ropepatch.methods.longrope import LongRope
from ropepatch.methods.ntk import NtkAware
from ropepatch.methods.ntk_by_parts import NtkByParts
from ropepatch.methods.p_rope import PRope
from ropepatch.methods.pi import PositionInterpolation
from ropepatch.methods.yarn import Yarn

METHODS: dict[str, type[Method]] = {
    "yarn": Yarn,
    "pi": PositionInterpolation,
    "ntk": NtkAware,
    "dynamic-ntk": DynamicNtk,
    "dynamic-yarn": DynamicYarn,
    "ntk-by-parts": NtkByParts,
    "llama3": Llama3,
    "longrope": LongRope,
    "p-rope": PRope,
}

ALIASES = {"linear": "pi", "dynamic": "dynamic-ntk", "proportional": "p-rope", "su": "longrope"}
"""transformers' own words, accepted for the methods they stand for."""

READERS: dict[str, Callable[[Mapping[str, Any]], Method]] = {
    "linear": PositionInterpolation.from_rope_parameters,
    "dynamic": DynamicNtk.from_rope_parameters,
    "yarn": Yarn.from_rope_parameters,
    "longrope": LongRope.from_rope_parameters,
    "llama3": Llama3.from_rope_parameters,
}
"""What each scaled rope_type of transformers stands for."""

UNSCALED = ("default", "mrope", "axial")
"""rope_types that leave the base frequencies alone (the last two lay out several axes)."""


def method_class(name: str) -> type[Method]:
    """The row called `name`.

    Raises:
        RecipeError: there is none; the message names the nearest and lists the known.
    """
    word = name.strip().lower().replace("_", "-")
    word = ALIASES.get(word, word)
    if word in METHODS:
        return METHODS[word]
    near = difflib.get_close_matches(word, [*METHODS, *ALIASES], n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise RecipeError(f"no method is called '{name}'.{hint} Known: {', '.join(METHODS)}.")


def method_of_block(block: Mapping[str, Any]) -> Method | None:
    """The method a block of `rope_parameters` stands for; None for unscaled RoPE.

    Raises:
        KeyError: a key the type needs is missing.
        RecipeError: the type is unknown, or its numbers are out of range.
    """
    rope_type = block.get("rope_type", "default")
    if rope_type in UNSCALED:
        return None
    if rope_type == "proportional":  # stopped pairs are the geometry's; a factor is PI's
        factor = float(block.get("factor") or 1.0)
        return None if factor == 1 else PositionInterpolation(factor=factor)
    if rope_type not in READERS:
        raise RecipeError(f"the checkpoint's rope_type '{rope_type}' is not known.")
    return READERS[rope_type](block)
