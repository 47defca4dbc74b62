"""What a recipe means for one config: which schedules change, by which method, how far.

Everything here holds for a checkpoint on disk and for a live model alike. The stamp that undoes
a written recipe is read here too.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropepatch.config_json.converted import erase_conversion
from ropepatch.config_json.layout import Layout, Schedule, read_layout
from ropepatch.config_json.paths import Config, text_part
from ropepatch.config_json.targets import choose_labels
from ropepatch.errors import (
    AlreadyConvertedError,
    AlreadyScaledError,
    ConfigError,
    NoEffectError,
)
from ropepatch.methods.base import Method
from ropepatch.recipe import Recipe
from ropepatch.runtime.words import STAMP as STAMP
from ropepatch.runtime.words import is_converted

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


@dataclass(frozen=True)
class Plan:
    """A recipe bound to a config; nothing is written yet."""

    before: Config
    """The config without any stamp of ours."""
    recipe: Recipe
    layout: Layout
    """Of the config before, without any scaling of ours."""
    methods: Mapping[str, Method]
    """By label: only the schedules that change."""
    target_length: int
    """Tokens the result is meant for."""

    @property
    def schedules(self) -> list[Schedule]:
        """Those that change."""
        return [self.layout.schedules[label] for label in self.methods]


def plan_recipe(config: Mapping[str, Any], recipe: Recipe, *, replace: bool = False) -> Plan:
    """Bind a recipe to a config.

    Args:
        config: The parsed `config.json`; not changed.
        recipe: What to do.
        replace: Allow a config that is already scaled; the factor still counts from the length
            the model was trained on.

    Raises:
        ConfigError: the config is not one we can read, or already scaled.
        NotExpressibleError: the family's layers share what was to change for some alone.
        RecipeError: the recipe does not fit the model.
    """
    if is_converted(config):
        to = config[STAMP]["conversion"].get("to")
        divide = "`convert --factor --replace` divides its slopes, or " if to == "alibi" else ""
        raise AlreadyConvertedError(
            f"ropepatch has converted this model to '{to}', which no RoPE method can extend; "
            f"{divide}restore the original first."
        )
    if STAMP in config and not replace:
        was = config[STAMP].get("recipe") if isinstance(config[STAMP], Mapping) else None
        method = was.get("method", "?") if isinstance(was, Mapping) else "?"
        raise AlreadyScaledError(
            f"ropepatch has already written '{method}' here; pass --replace (replace=True) to "
            "write another recipe from the trained length, or restore the original first."
        )
    before = erase_recipe(config) if STAMP in config else copy.deepcopy(dict(config))
    recipe = _same_trained_length(recipe, config)
    layout = read_layout(before, recipe.trained_length)
    labels = choose_labels(layout, recipe.layers)
    schedules = [layout.schedules[label] for label in labels]
    _refuse_scaled(layout, schedules, replace)
    methods = {s.label: _bind(recipe, s, layout) for s in schedules}
    target = max(m.target_length(layout.schedules[k].geometry) for k, m in methods.items())
    return Plan(before, recipe, layout, methods, target)


def erase_recipe(config: Mapping[str, Any]) -> Config:
    """The config as it was before `write_recipe`, or before a conversion.

    Raises:
        ConfigError: there is no stamp of ours, or it is damaged.
    """
    if is_converted(config):
        return erase_conversion(config)
    stamp = config.get(STAMP)
    if stamp is None:
        raise ConfigError("config.json carries no stamp of ropepatch, so nothing to restore.")
    if not (
        isinstance(stamp, Mapping)
        and isinstance(stamp.get("before"), Mapping)
        and isinstance(stamp.get("path"), list)
        and set(stamp["before"]) <= set(POSITION_KEYS)
        and ("asked" in stamp) == ("architectures" in stamp)
        and isinstance(stamp.get("asked", {}), Mapping)
        and isinstance(stamp.get("architectures", []), list)
        and all(isinstance(name, str) for name in stamp.get("architectures", []))
    ):
        raise ConfigError("the stamp of ropepatch in config.json is damaged; cannot restore.")
    restored = copy.deepcopy({k: v for k, v in config.items() if k != STAMP})
    try:
        text = writable_text(restored, tuple(stamp["path"]))
    except (KeyError, TypeError):
        raise ConfigError(
            "the stamp of ropepatch names a part that config.json no longer has."
        ) from None
    for key in POSITION_KEYS:
        text.pop(key, None)
    text.update(copy.deepcopy(dict(stamp["before"])))
    if isinstance(stamp.get("architectures"), list):  # renamed, so that no engine goes by them
        restored["architectures"] = list(stamp["architectures"])
    return restored


def read_stamp(config: dict[str, Any]) -> dict[str, Any] | None:
    """What a recipe of ours wrote into a config, if any.

    Raises:
        ConfigError: it is damaged.
    """
    if STAMP not in config or is_converted(config):
        return None
    erase_recipe(config)  # checks what it needs itself
    stamp: dict[str, Any] = config[STAMP]
    lengths = [stamp.get("trained_length"), stamp.get("target_length")]
    if not isinstance(stamp.get("recipe"), dict) or not all(
        type(length) is int and length > 0 for length in lengths
    ):
        raise ConfigError("the stamp of ropepatch in config.json is damaged.")
    return stamp


def writable_text(config: Config, path: tuple[str, ...]) -> Config:
    """The text part of a config, to be changed in place."""
    part = text_part(config, path)
    if not isinstance(part, dict):
        raise TypeError("not a mapping")
    return part


def _same_trained_length(recipe: Recipe, config: Mapping[str, Any]) -> Recipe:
    """The recipe, with the trained length that an earlier one of ours was told."""
    stamp = config.get(STAMP)
    was = stamp.get("recipe") if isinstance(stamp, Mapping) else None
    told = was.get("trained_length") if isinstance(was, Mapping) else None
    if told is None or recipe.trained_length is not None:
        return recipe
    return Recipe.from_dict({**recipe.to_dict(), "trained_length": told})


def _refuse_scaled(layout: Layout, schedules: list[Schedule], replace: bool) -> None:
    for schedule in schedules:
        method = schedule.method
        if method is None:
            continue
        if not replace:
            raise AlreadyScaledError(
                f"the checkpoint is already scaled: '{schedule.block['rope_type']}' ×"
                f"{method.factor:g}, {layout.trained_length} trained, {layout.configured_length} "
                "configured. Pass --replace (replace=True) to scale from the trained length again; "
                "factors never compound."
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


def refuse_no_effect(plan: Plan) -> None:
    """Refuse a plan under which some schedule that was to change would stay as it is.

    Raises:
        NoEffectError: so it is; asked last, since other refusals say more.
    """
    for schedule in plan.schedules:
        method = plan.methods[schedule.label]
        _refuse_idle(plan.recipe, method, schedule, plan.target_length)


def _refuse_idle(recipe: Recipe, method: Method, schedule: Schedule, target: int) -> None:
    geometry, trained = schedule.geometry, schedule.geometry.trained_length
    short = geometry.base_frequencies() if recipe.short_exact else None
    if method.frequencies(geometry, target) == schedule.frequencies(target) and (
        (short or method.frequencies(geometry, trained)) == schedule.frequencies(trained)
    ):
        where = f" of {schedule.label}" if schedule.label else ""
        raise NoEffectError(
            f"{method.name} with these parameters leaves every one of the "
            f"{schedule.geometry.pairs} pairs{where} as it is; nothing would change."
        )
