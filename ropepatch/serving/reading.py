"""From a `config.json` to something to serve; one that was changed by hand since is refused."""

from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.layout import Layout, Schedule, read_layout
from ropepatch.config_json.paths import text_part
from ropepatch.config_json.plan import STAMP, plan_recipe, read_stamp
from ropepatch.config_json.write import write_recipe
from ropepatch.errors import ConfigError, NoEffectError, NotExpressibleError
from ropepatch.methods.base import Method
from ropepatch.methods.dynamic_ntk import DynamicNtk
from ropepatch.methods.p_rope import PRope
from ropepatch.recipe import Recipe
from ropepatch.serving.served import ServedModel, raw_blocks

_FACTORED = {"linear", "yarn", "llama3", "dynamic"}


def read_served(
    name: str,
    config: Mapping[str, Any],
    source: str | None = None,
    *,
    trained: bool = False,
    again: bool = False,
    trained_length: int | None = None,
) -> ServedModel:
    """Understand a config as something to serve.

    Args:
        name: What the user calls the folder.
        config: The parsed `config.json`, not one of a conversion.
        source: The model it was made from, if a record says so.
        trained: Whether its weights were trained since.
        again: Whether that model had been extended by ropepatch too.
        trained_length: Tokens, where a scaling that is not ours does not say.

    Raises:
        ConfigError: it was changed since ropepatch wrote it, or cannot be read.
        NoEffectError: it is not extended, so there is nothing to say.
        NotExpressibleError: only `ropepatch.load` reads it.
    """
    stamp = read_stamp(dict(config))
    plain = {key: value for key, value in config.items() if key != STAMP}
    if stamp is None:
        return _foreign(name, plain, trained_length)
    if trained_length is not None:
        raise ConfigError(f"{name} says itself what it was trained on; leave --trained-length out.")
    if "live_only" in stamp:
        raise NotExpressibleError(
            f"{name} is read only by ropepatch.load: {stamp['live_only']}. No engine can serve it; "
            "--method yarn or llama3 in a new folder come nearest."
        )
    layout = read_layout(plain, stamp["trained_length"])
    recipe = Recipe.from_dict(stamp["recipe"])
    plan = plan_recipe(config, recipe, replace=True)
    if stamp["target_length"] != plan.target_length:
        raise ConfigError(f"the stamp of ropepatch in {name}'s config.json was changed.")
    _check_unchanged(name, layout, write_recipe(config, recipe, replace=True).after)
    return ServedModel(
        name=name,
        config=plain,
        layout=layout,
        methods=plan.methods,
        recipe=recipe,
        trained_length=stamp["trained_length"],
        target_length=stamp["target_length"],
        trained_theta=_theta(plan.layout, plan.methods),
        source=None if trained else source,
        original_scaled=plan.layout.scaled or again,
        architectures=tuple(stamp.get("architectures", ())),
    )


def _foreign(name: str, config: Mapping[str, Any], trained_length: int | None) -> ServedModel:
    """A scaling that ropepatch did not write."""
    layout = read_layout(config)
    if trained_length is not None:
        if layout.trained_length_known:
            raise ConfigError(
                f"{name} says itself that it counts from {layout.trained_length} tokens; leave "
                "--trained-length out."
            )
        layout = read_layout(config, trained_length)
    methods = _in_force(layout)
    _check_foreign(name, config, layout)
    if not layout.trained_length_known:
        raise ConfigError(
            f"{name}: {layout.notes[-1].removesuffix('.')}: say which with --trained-length."
        )
    if not methods:
        raise NoEffectError(
            f"{name} is not extended: its rotation is the one it was trained with, and engines "
            "serve it as it is. `ropepatch extend` comes first."
        )
    return ServedModel(
        name=name,
        config=config,
        layout=layout,
        methods=methods,
        recipe=None,
        trained_length=layout.trained_length,
        target_length=_reach(layout, methods, told=trained_length is not None),
        trained_theta=_theta(layout, methods),
    )


def _check_foreign(name: str, config: Mapping[str, Any], layout: Layout) -> None:
    """What transformers 5 itself stops at is no matter of engines."""
    for block in raw_blocks(text_part(config, layout.path)):
        types = {block[key] for key in ("rope_type", "type") if block.get(key) is not None}
        if len(types) > 1:
            raise ConfigError(f"{name}: its block has the type {' and '.join(sorted(types))} both.")
        if types == {"su"}:
            raise ConfigError(f"{name}: transformers 5 stops at the type 'su'; it is longrope now.")
        if types & _FACTORED and block.get("factor") is None:
            raise ConfigError(f"{name}: its '{types.pop()}' block has no factor.")


def _in_force(layout: Layout) -> dict[str, Method]:
    methods: dict[str, Method] = {}
    for label, schedule in layout.schedules.items():
        usual = (layout.family.blocks.get(label) or {}).get("rope_type")
        geometry = schedule.geometry
        if schedule.method is not None:
            methods[label] = schedule.method
        elif geometry.turning < geometry.pairs and usual != "proportional":
            methods[label] = PRope(factor=1.0, keep=geometry.turning / geometry.pairs)
    return methods


def _reach(layout: Layout, methods: Mapping[str, Method], *, told: bool) -> int:
    """Tokens; a yarn block set by hand often stands beside the trained length."""
    lengths = [
        m.target_length(layout.schedules[label].geometry)
        for label, m in methods.items()
        if m.rope_type == "yarn" or (m.rope_type == "linear" and told)
    ]
    lengths += [  # of a dynamic one, transformers' factor, which is meant as one of lengths
        round(m.ntk_factor * layout.configured_length)
        for m in methods.values()
        if isinstance(m, DynamicNtk)
    ]
    return max(lengths, default=layout.configured_length)


def _theta(layout: Layout, methods: Mapping[str, Method]) -> float:
    return layout.schedules[next(iter(methods))].geometry.theta


def _check_unchanged(name: str, layout: Layout, written: Mapping[str, Any]) -> None:
    """What stands in the config is what the recipe in its stamp writes."""
    plain = {key: value for key, value in written.items() if key != STAMP}
    wanted = read_layout(plain, layout.trained_length)
    changed = f"{name}'s config.json was changed since ropepatch wrote it"
    again = "Extend the original again, or restore it."
    if layout.configured_length != wanted.configured_length:
        raise ConfigError(
            f"{changed}: max_position_embeddings is {layout.configured_length}, and was "
            f"{wanted.configured_length}. {again}"
        )
    if layout.schedules.keys() != wanted.schedules.keys():
        raise ConfigError(f"{changed}: it has other blocks of rope_parameters. {again}")
    for label, schedule in wanted.schedules.items():
        found = layout.schedules[label]
        for key in sorted(schedule.block.keys() | found.block.keys()):
            one, other = _number(found, key), _number(schedule, key)
            if one != other:
                raise ConfigError(f"{changed}: {key} is {one!r}, and was {other!r}. {again}")


def _number(schedule: Schedule, key: str) -> Any:
    """What stands under a key; numbers to the seventh digit."""
    value = schedule.block.get(key)
    if isinstance(value, float | int) and not isinstance(value, bool):
        return float(f"{value:.7g}")
    return list(value) if isinstance(value, tuple) else value
