"""Writing a recipe into a config, and taking it out again. Dict in, dict out.

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
from ropepatch.config_json.layout import Layout, Schedule, read_layout
from ropepatch.config_json.paths import Config, text_part
from ropepatch.config_json.plain import kept_keys
from ropepatch.config_json.targets import choose_labels
from ropepatch.errors import AlreadyScaledError, ConfigError, NoEffectError, NotExpressibleError
from ropepatch.families.table import Block
from ropepatch.methods.base import Method
from ropepatch.methods.table import METHODS
from ropepatch.recipe import Recipe

STAMP = "ropepatch"
STAMP_VERSION = 1

POSITION_KEYS = (
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rope_local_base_freq",
    "rotary_emb_base",
    "global_rope_theta",
    "local_rope_theta",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_dim",
    "swa_rope_theta",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "head_dim",
)
"""Keys of the text part that a recipe may touch, or that a later save may move."""

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
    if STAMP in config and not replace:
        was = config[STAMP].get("recipe") if isinstance(config[STAMP], Mapping) else None
        method = was.get("method", "?") if isinstance(was, Mapping) else "?"
        raise AlreadyScaledError(
            f"ropepatch has already written '{method}' here; pass --replace to "
            "write another recipe from the trained length, or restore the original first."
        )
    before = erase_recipe(config) if STAMP in config else copy.deepcopy(dict(config))
    recipe = _same_trained_length(recipe, config)
    layout = read_layout(before, recipe.trained_length)
    labels = choose_labels(layout, recipe.layers)
    schedules = [layout.schedules[label] for label in labels]
    _refuse_scaled(layout, schedules, replace)
    methods = {s.label: _bind(recipe, s, layout) for s in schedules}
    blocks = {s.label: _block(methods[s.label], s, layout) for s in schedules}
    target = max(m.target_length(layout.schedules[k].geometry) for k, m in methods.items())
    for s in schedules:
        _refuse_no_effect(methods[s.label], s, target)

    after = copy.deepcopy(before)
    text = _text_in(after, layout.path)
    old_values = {key: copy.deepcopy(text[key]) for key in POSITION_KEYS if key in text}
    _set_lengths(text, layout, methods, blocks)
    _refuse_side_effects(layout, methods, text["max_position_embeddings"])
    written, dialect_note = _say(text, layout, blocks, dialect)
    after[STAMP] = {
        "version": STAMP_VERSION,
        "recipe": recipe.to_dict(),
        "trained_length": layout.trained_length,
        "target_length": target,
        "path": list(layout.path),
        "before": old_values,
    }
    return Change(
        before=before,
        after=after,
        recipe=recipe,
        layout=layout,
        methods=methods,
        dialect=written,
        target_length=target,
        advice=(*dialect_note, *advise(layout, methods, target)),
    )


def erase_recipe(config: Mapping[str, Any]) -> Config:
    """The config as it was before `write_recipe`.

    Raises:
        ConfigError: there is no stamp of ours, or it is damaged.
    """
    stamp = config.get(STAMP)
    if stamp is None:
        raise ConfigError("config.json carries no stamp of ropepatch, so nothing to restore.")
    if not (
        isinstance(stamp, Mapping)
        and isinstance(stamp.get("before"), Mapping)
        and isinstance(stamp.get("path"), list)
        and set(stamp["before"]) <= set(POSITION_KEYS)
    ):
        raise ConfigError("the stamp of ropepatch in config.json is damaged; cannot restore.")
    restored = copy.deepcopy({k: v for k, v in config.items() if k != STAMP})
    try:
        text = _text_in(restored, tuple(stamp["path"]))
    except (KeyError, TypeError):
        raise ConfigError(
            "the stamp of ropepatch names a part that config.json no longer has."
        ) from None
    for key in POSITION_KEYS:
        text.pop(key, None)
    text.update(copy.deepcopy(dict(stamp["before"])))
    return restored


def _same_trained_length(recipe: Recipe, config: Mapping[str, Any]) -> Recipe:
    """The recipe, with the trained length that an earlier one of ours was told."""
    stamp = config.get(STAMP)
    was = stamp.get("recipe") if isinstance(stamp, Mapping) else None
    told = was.get("trained_length") if isinstance(was, Mapping) else None
    if told is None or recipe.trained_length is not None:
        return recipe
    return Recipe.from_dict({**recipe.to_dict(), "trained_length": told})


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


def _text_in(config: Config, path: tuple[str, ...]) -> Config:
    part = text_part(config, path)
    if not isinstance(part, dict):
        raise TypeError("not a mapping")
    return part


def _refuse_scaled(layout: Layout, schedules: list[Schedule], replace: bool) -> None:
    for schedule in schedules:
        method = schedule.method
        if method is None:
            continue
        if not replace:
            raise AlreadyScaledError(
                f"the checkpoint is already scaled: '{schedule.block['rope_type']}' ×"
                f"{method.factor:g}, {layout.trained_length} trained, {layout.configured_length} "
                "configured. Pass --replace to scale from the trained length again; factors "
                "never compound."
            )
        if not layout.trained_length_known:
            raise ConfigError(
                f"{layout.notes[-1].removesuffix('.')}: say which with --trained-length."
            )


def _bind(recipe: Recipe, schedule: Schedule, layout: Layout) -> Method:
    """The method, with the family's own default where the recipe is silent."""
    if (
        layout.family.row.softmax_mscale
        and recipe.method == "yarn"
        and not {"attention_factor", "mscale", "mscale_all_dim"} & set(recipe.parameters)
    ):
        # MLA checkpoints put the temperature on the whole logit, not on its rotary part alone
        own = {k: getattr(schedule.method, k, None) or 1.0 for k in ("mscale", "mscale_all_dim")}
        recipe = Recipe.from_dict(recipe.to_dict() | own)
    return recipe.bind(schedule.geometry)


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


def _refuse_no_effect(method: Method, schedule: Schedule, target: int) -> None:
    if method.frequencies(schedule.geometry, target) == schedule.frequencies(target):
        where = f" of {schedule.label}" if schedule.label else ""
        raise NoEffectError(
            f"{method.name} with these parameters leaves every one of the "
            f"{schedule.geometry.pairs} pairs{where} as it is; nothing would change."
        )


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
