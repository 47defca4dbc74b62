"""What is to be served: a config, the method in it, and how far it reaches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropepatch.config_json.layout import Layout, read_layout
from ropepatch.config_json.paths import text_part
from ropepatch.config_json.plan import STAMP, plan_recipe, read_stamp
from ropepatch.errors import ConfigError, NoEffectError, NotExpressibleError
from ropepatch.families.table import Block
from ropepatch.methods.base import Method
from ropepatch.methods.p_rope import PRope
from ropepatch.recipe import Recipe
from ropepatch.runtime.words import is_converted

_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ServedModel:
    """A checkpoint that is extended, as an engine will find it."""

    name: str
    """What the user calls it: a folder."""
    config: Mapping[str, Any]
    """As it stands, without our stamp."""
    layout: Layout
    """Of that config."""
    methods: Mapping[str, Method]
    """By label: only the schedules that are extended."""
    recipe: Recipe | None
    """What was asked, where ropepatch did it."""
    trained_length: int
    target_length: int
    trained_theta: float
    """Base period of the pretrained rotation."""
    source: str | None = None
    """The model it was made from, where that is known and the weights are still the same."""
    architectures: tuple[str, ...] = ()
    """Names of the class before it was renamed (a model without rotation); empty otherwise."""

    @property
    def method(self) -> Method:
        """The method; schedules that change change alike."""
        return next(iter(self.methods.values()))

    @property
    def row(self) -> str:
        """The row of the tables of support: the method's word, or `nope`."""
        return "nope" if self.architectures else self.method.name

    @property
    def model_type(self) -> str:
        """Of the text part."""
        return self.layout.family.model_type

    @property
    def head_dim(self) -> int:
        """Features per head."""
        return next(iter(self.layout.schedules.values())).geometry.head_dim

    @property
    def raises_length(self) -> bool:
        """Whether the config promises fewer tokens than the method reaches (yarn by hand)."""
        return not _grows(self.methods) and self.layout.configured_length < self.target_length

    @property
    def text(self) -> Mapping[str, Any]:
        """The text part of the config."""
        return text_part(self.config, self.layout.path)

    def blocks(self) -> dict[str, Block]:
        """`rope_parameters` by label, whole, with factors as floats."""
        return {k: _floats(s.block) for k, s in self.layout.schedules.items()}

    def rope_parameters(self, changed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The whole value of `rope_parameters`, with more words in the blocks that are extended."""
        blocks = self.blocks()
        for label in self.methods:
            blocks[label] = {**blocks[label], **(changed or {})}
        nested: dict[str, Any] = dict(blocks) if set(blocks) != {""} else dict(blocks[""])
        if set(blocks) != {""} and any(b.get("truncate") is False for b in blocks.values()):
            nested["truncate"] = False
        return nested

    def overrides(self, words: Mapping[str, Any]) -> dict[str, Any]:
        """Words of the text part, under the key of that part where it has one."""
        found: dict[str, Any] = dict(words)
        for key in reversed(self.layout.path):
            found = {key: found}
        return found


def read_served(
    name: str, config: Mapping[str, Any], source: str | None, *, trained: bool
) -> ServedModel:
    """Understand a config as something to serve.

    Args:
        name: What the user calls the folder.
        config: The parsed `config.json`.
        source: The model it was made from, if a record says so.
        trained: Whether its weights were trained since.

    Raises:
        ConfigError: it was changed since ropepatch wrote it, or cannot be read.
        NoEffectError: it is not extended, so there is nothing to say.
        NotExpressibleError: only `ropepatch.load` reads it.
    """
    _refuse_converted(config)
    stamp = read_stamp(dict(config))
    plain = {key: value for key, value in config.items() if key != STAMP}
    if stamp is None:
        layout = read_layout(plain)
        methods = _in_force(layout)
        if not methods:
            raise NoEffectError(
                f"{name} is not extended: its rotation is the one it was trained with, and engines "
                "serve it as it is. `ropepatch extend` comes first."
            )
        return ServedModel(
            name,
            plain,
            layout,
            methods,
            None,
            layout.trained_length,
            _reach(layout, methods),
            _theta(layout, methods),
        )
    if "live_only" in stamp:
        raise NotExpressibleError(
            f"{name} is read only by ropepatch.load: {stamp['live_only']}. No engine can serve it; "
            "--method yarn or llama3 in a new folder come nearest."
        )
    layout = read_layout(plain, stamp["trained_length"])
    recipe = Recipe.from_dict(stamp["recipe"])
    plan = plan_recipe(config, recipe, replace=True)
    target = stamp["target_length"]
    for label, method in plan.methods.items():
        wanted = method.rope_parameters(plan.layout.schedules[label].geometry)
        _check_unchanged(name, layout, label, method.name, wanted)
    if layout.configured_length != target and not _grows(plan.methods):
        raise ConfigError(
            f"{name}'s config.json was changed since ropepatch wrote it: max_position_embeddings "
            f"is {layout.configured_length}, and the recipe reaches {target}."
        )
    return ServedModel(
        name=name,
        config=plain,
        layout=layout,
        methods=plan.methods,
        recipe=recipe,
        trained_length=stamp["trained_length"],
        target_length=target,
        trained_theta=_theta(plan.layout, plan.methods),
        source=None if trained else source,
        architectures=tuple(stamp.get("architectures", ())),
    )


def _reach(layout: Layout, methods: Mapping[str, Method]) -> int:
    """Tokens; a yarn block set by hand often stands beside the trained length."""
    lengths = [
        m.target_length(layout.schedules[label].geometry)
        for label, m in methods.items()
        if m.rope_type in ("yarn", "llama3", "longrope")
    ]
    return max(layout.configured_length, *lengths, 0)


def _theta(layout: Layout, methods: Mapping[str, Method]) -> float:
    return layout.schedules[next(iter(methods))].geometry.theta


def _refuse_converted(config: Mapping[str, Any]) -> None:
    if is_converted(config):
        to = config[STAMP]["conversion"].get("to")
        raise NotExpressibleError(
            f"the model was converted to '{to}', which runs in ropepatch.load alone: every engine "
            "has attention kernels of its own, and none takes such a bias on this class. A RoPE "
            "method (`ropepatch extend --method yarn` on the original) is the nearest that they "
            "serve; the recovery training is then lost."
        )


def _in_force(layout: Layout) -> dict[str, Method]:
    """Scalings that stand in a config which ropepatch did not write."""
    methods: dict[str, Method] = {}
    for label, schedule in layout.schedules.items():
        usual = (layout.family.blocks.get(label) or {}).get("rope_type")
        geometry = schedule.geometry
        if schedule.method is not None:
            methods[label] = schedule.method
        elif geometry.turning < geometry.pairs and usual != "proportional":
            methods[label] = PRope(factor=1.0, keep=geometry.turning / geometry.pairs)
    return methods


def _grows(methods: Mapping[str, Method]) -> bool:
    """Whether the configured length stays the trained one (dynamic NTK counts from it)."""
    return any(method.grows for method in methods.values())


def _check_unchanged(
    name: str, layout: Layout, label: str, method: str, wanted: Mapping[str, Any]
) -> None:
    """What stands in the config is what the recipe in its stamp would write."""
    schedule = layout.schedules.get(label)
    if schedule is None:
        raise ConfigError(f"{name}'s config.json was changed since ropepatch wrote it.")
    for key, value in wanted.items():
        found = schedule.block.get(key)
        numbers = isinstance(value, float | int) and isinstance(found, float | int)
        if found != value and not (numbers and abs(found - value) <= _TOLERANCE * abs(value)):
            raise ConfigError(
                f"{name}'s config.json was changed since ropepatch wrote it: {key} is {found!r}, "
                f"{method} wrote {value!r}. Extend the original again, or restore it."
            )


def _floats(block: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM and SGLang want a factor with a decimal point."""
    return {
        key: float(value) if key == "factor" and isinstance(value, int) else value
        for key, value in block.items()
    }
