"""Writing a recipe into a config. Dict in, dict out.

The stamp under `ropepatch` holds the recipe and the exact old values of the keys that position
encodings use, so that `erase_recipe` is the inverse even after a fine-tune has saved the config
in another dialect.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ropepatch.config_json.advice import advise
from ropepatch.config_json.blocks import Dialect
from ropepatch.config_json.dialects import to_dialect
from ropepatch.config_json.layout import Layout, Schedule
from ropepatch.config_json.paths import Config
from ropepatch.config_json.plain import kept_keys
from ropepatch.config_json.plan import (
    POSITION_KEYS,
    STAMP,
    STAMP_VERSION,
    Plan,
    plan_recipe,
    refuse_no_effect,
    writable_text,
)
from ropepatch.errors import NotExpressibleError
from ropepatch.families.table import Block
from ropepatch.methods.base import Method
from ropepatch.methods.table import METHODS
from ropepatch.recipe import Recipe

AskedDialect = Literal["auto", "v4", "v5", "both"]


@dataclass(frozen=True)
class Change:
    """What a recipe makes of a config, and how that was decided."""

    before: Config
    """The config without any stamp of ours."""
    after: Config
    recipe: Recipe
    layout: Layout
    """Of the config before, without any scaling of ours."""
    methods: Mapping[str, Method]
    """By label: only the schedules that change."""
    dialect: Dialect
    target_length: int
    """Tokens the result is meant for."""
    advice: tuple[str, ...]
    live_only: str | None = None
    """Why plain transformers cannot do it; None where it can."""


def write_recipe(
    config: Mapping[str, Any],
    recipe: Recipe,
    *,
    dialect: AskedDialect = "auto",
    replace: bool = False,
) -> Change:
    """The config with the recipe written into it, and the stamp that undoes it.

    Args:
        config: The parsed `config.json`; not changed.
        recipe: What to do.
        dialect: How to write it; "auto" keeps the dialect found.
        replace: Allow a config that is already scaled; the factor still counts from the length
            the model was trained on.

    Raises:
        ConfigError: the config is not one we can read, or already scaled.
        NoEffectError: nothing would change.
        NotExpressibleError: family, dialect or transformers has no words for it.
        RecipeError: the recipe does not fit the model.
    """
    plan = plan_recipe(config, recipe, replace=replace)
    if plan.recipe.short_exact:
        raise NotExpressibleError(
            "short_exact cannot be written into a checkpoint: transformers has no type that "
            "switches by length and keeps cached keys in step. Use ropepatch.patch on the live "
            "model, or leave it out."
        )
    layout, methods = plan.layout, plan.methods
    blocks = {s.label: _block(methods[s.label], s, layout) for s in plan.schedules}
    refuse_no_effect(plan)
    after = copy.deepcopy(plan.before)
    text = writable_text(after, layout.path)
    after[STAMP] = stamp_of(plan, text)
    _set_lengths(text, layout, methods, blocks)
    _refuse_side_effects(layout, methods, text["max_position_embeddings"])
    written, dialect_note = _say(text, layout, blocks, dialect)
    return Change(
        before=plan.before,
        after=after,
        recipe=plan.recipe,
        layout=layout,
        methods=methods,
        dialect=written,
        target_length=plan.target_length,
        advice=(*dialect_note, *advise(layout, methods, plan.target_length)),
    )


def stamp_of(plan: Plan, text: Config) -> dict[str, Any]:
    """What `erase_recipe` needs; `text` is the text part before anything is written."""
    return {
        "version": STAMP_VERSION,
        "recipe": plan.recipe.to_dict(),
        "trained_length": plan.layout.trained_length,
        "target_length": plan.target_length,
        "path": list(plan.layout.path),
        "before": {key: copy.deepcopy(text[key]) for key in POSITION_KEYS if key in text},
    }


def _say(
    text: Config, layout: Layout, blocks: Mapping[str, Block], asked: AskedDialect
) -> tuple[Dialect, tuple[str, ...]]:
    """Write the blocks in the dialect asked for; "auto" leaves version 4 only if it must."""
    if asked != "auto":
        to_dialect(text, layout, blocks, asked)
        return asked, ()
    try:
        to_dialect(text, layout, blocks, layout.dialect)
    except NotExpressibleError:
        if layout.dialect == "v5":
            raise
        to_dialect(text, layout, blocks, "v5")
        return "v5", (
            "transformers 4 has no words for this, so the config is now in version 5's "
            "(rope_parameters); older readers will refuse or misread it.",
        )
    return layout.dialect, ()


def _block(method: Method, schedule: Schedule, layout: Layout) -> Block:
    """What transformers shall read: the method's words and whatever else stood there."""
    family, row = layout.family, layout.family.row
    new = method.rope_parameters(schedule.geometry)
    allowed = row.rope_types
    if allowed is not None and new["rope_type"] not in allowed:
        instead = " or ".join(name for name, cls in METHODS.items() if cls.rope_type in allowed)
        raise NotExpressibleError(
            f"'{family.model_type}' reads only the rope_type {' and '.join(allowed)}, not "
            f"'{new['rope_type']}' ({method.name}); use --method {instead}."
        )
    kept = kept_keys(schedule.block, row.keeps)
    if new["rope_type"] != "proportional" and schedule.block["rope_type"] == "proportional":
        kept.pop("partial_rotary_factor", None)
    if not family.honours_partial and "partial_rotary_factor" not in row.keeps:
        kept.pop("partial_rotary_factor", None)
    return {**kept, **new}


def _refuse_side_effects(layout: Layout, methods: Mapping[str, Method], length: int) -> None:
    """A dynamic schedule counts from `max_position_embeddings`, whoever raises it."""
    for label, schedule in layout.schedules.items():
        dynamic = schedule.block["rope_type"] == "dynamic" and label not in methods
        if dynamic and layout.groups_of(label) and length != layout.configured_length:
            raise NotExpressibleError(
                f"the {label} layers are 'dynamic' from {layout.configured_length} tokens on, and "
                f"max_position_embeddings {length} would move that; use --layers all --replace."
            )


def _set_lengths(
    text: Config, layout: Layout, methods: Mapping[str, Method], blocks: Mapping[str, Block]
) -> None:
    trained = layout.trained_length
    text["max_position_embeddings"] = max(
        m.config_length(layout.schedules[label].geometry) for label, m in methods.items()
    )
    types = {block["rope_type"] for block in blocks.values()}
    # transformers gives the outer key priority later on, and llama.cpp's converter reads llama3's
    # original length only there, so both must say the same
    if "original_max_position_embeddings" in text or types & {"llama3", "longrope"}:
        text["original_max_position_embeddings"] = trained
    absent = text.get("head_dim") is None and (
        "head_dim" in text or layout.family.head_dim_required
    )
    if types & {"yarn", "dynamic", "longrope"} and absent:  # their init functions crash on None
        text["head_dim"] = next(iter(layout.schedules.values())).geometry.head_dim
