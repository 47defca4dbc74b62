"""A conversion bound to a config: which layers get which encoding, and how config.json says so."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ropepatch.config_json.layers import LayerGroup
from ropepatch.config_json.layout import Layout, read_layout
from ropepatch.config_json.paths import Config
from ropepatch.config_json.plan import STAMP, erase_recipe, writable_text
from ropepatch.conversion import ConversionRecipe
from ropepatch.errors import (
    AlreadyConvertedError,
    NoEffectError,
    NotExpressibleError,
    RecipeError,
)
from ropepatch.families.biases import Native, native_of, why_no_bias, why_not_at_all

Encoding = Literal["RoPE", "ALiBi", "none", "no attention"]


@dataclass(frozen=True)
class ConversionPlan:
    """What a conversion means for one config; nothing is written yet."""

    before: Config
    """The config without any stamp of ours, as the model's own class reads it."""
    recipe: ConversionRecipe
    layout: Layout | None
    """None for a family with linear biases of its own."""
    chosen: tuple[int, ...] | Literal["all"]
    """Layers that change."""
    factor: float
    """The attention factor in force, which stays."""
    native: Native | None
    trained_length: int
    """Tokens, before the conversion."""
    target_length: int
    heads: tuple[int, ...]
    """How many query heads a layer may have."""

    @property
    def path(self) -> tuple[str, ...]:
        """Keys that lead to the text part of the config."""
        return self.layout.path if self.layout is not None else ()

    @property
    def model_type(self) -> str:
        """Of the text part."""
        return self.layout.family.model_type if self.layout else str(self.before["model_type"])

    @property
    def is_whole(self) -> bool:
        """Whether nothing turns afterwards."""
        return self.chosen == "all"

    @property
    def head_keys(self) -> tuple[str, ...]:
        """Where a family with biases of its own says how many heads it has."""
        return self.native.head_keys if self.native else ()

    @property
    def length_key(self) -> str:
        """Where the config says for how many tokens it is."""
        return self.native.length_key if self.native else "max_position_embeddings"

    @property
    def advice(self) -> tuple[str, ...]:
        """What may surprise."""
        if self.native is not None:
            return ("slopes were divided, not trained: expect a loss until it is fine-tuned.",)
        notes = [
            "nothing has trained this model to read without its rotation: it needs recovery "
            "training before it is of any use (`ropepatch heal`)."
        ]
        if self.layout is not None and _is_tempered(self.before, self.layout):
            notes.append(
                f"'{self.model_type}' also scales its queries by their place in the text; that "
                "stays, so it still sees where it is."
            )
        if self.recipe.to == "alibi" and self.path:
            notes.append(
                "where tokens of an image read in both directions, linear biases favour the last "
                "of them."
            )
        if self.recipe.to == "nope" and self.factor != 1:
            notes.append(f"the attention factor {self.factor:.6g} of its scaling stays in force.")
        return tuple(notes)

    @property
    def encodings(self) -> tuple[tuple[LayerGroup, Encoding], ...]:
        """Afterwards: groups of layers that are alike, each with its encoding."""
        return encodings_of(self.layout, self.chosen, self.recipe.to) if self.layout else ()


def plan_conversion(
    config: Mapping[str, Any], recipe: ConversionRecipe, *, replace: bool = False
) -> ConversionPlan:
    """Bind a conversion to a config.

    Args:
        config: The parsed `config.json`; not changed.
        recipe: What to convert to.
        replace: Allow a model that was converted or extended; it starts from the original.

    Raises:
        ConfigError: the config is not one we can read.
        AlreadyConvertedError: it was converted or extended before.
        NoEffectError: nothing would change.
        NotExpressibleError: this family cannot do it.
        RecipeError: the layers are not the model's.
    """
    before = _original(config, anew=replace)
    native = native_of(before)
    if native is not None:
        return _plan_native(before, recipe, native)
    layout = read_layout(before)
    family = layout.family
    if not family.known:
        raise NotExpressibleError(
            f"'{family.model_type}' is not a decoder of transformers with rotary position "
            "embeddings, and only those can be converted."
        )
    never = why_not_at_all(family.model_type)
    if never is not None:
        raise NotExpressibleError(f"'{family.model_type}' cannot be converted: {never}.")
    why = why_no_bias(family.model_type) if recipe.to == "alibi" else None
    if why is not None:
        raise NotExpressibleError(
            f"'{family.model_type}' cannot be converted to alibi: {why}; --to nope may do."
        )
    if recipe.to == "alibi" and writable_text(before, layout.path).get("is_causal") is False:
        raise NotExpressibleError(
            f"this '{family.model_type}' reads in both directions (is_causal is false); linear "
            "biases are for models that read from left to right."
        )
    chosen = choose_layers(layout, recipe)
    factors = {
        schedule.frequencies(layout.configured_length).attention_factor
        for schedule in layout.schedules.values()
    }
    if len(factors) > 1:
        raise NotExpressibleError(
            f"the layers of this '{family.model_type}' scale attention by different factors."
        )
    length = layout.configured_length
    text = writable_text(copy.deepcopy(before), layout.path)
    heads = {
        value
        for key, value in {**family.defaults, **text}.items()
        if key.endswith("num_attention_heads") and type(value) is int
    }
    return ConversionPlan(
        before=before,
        recipe=recipe,
        layout=layout,
        chosen=chosen,
        factor=factors.pop(),
        native=None,
        trained_length=length,
        target_length=round(length * recipe.factor),
        heads=tuple(sorted(heads)) if recipe.to == "alibi" else (),
    )


def _original(config: Mapping[str, Any], *, anew: bool) -> Config:
    if STAMP not in config:
        return copy.deepcopy(dict(config))
    stamp = config[STAMP]
    if not anew:
        words = stamp if isinstance(stamp, Mapping) else {}
        was = words.get("conversion") or words.get("asked") or words.get("recipe") or {}
        name = was.get("to") or was.get("method") if isinstance(was, Mapping) else "?"
        raise AlreadyConvertedError(
            f"ropepatch has already written '{name}' here; pass --replace (replace=True) to "
            "convert the original anew, or restore it first."
        )
    return erase_recipe(config)


def _plan_native(before: Config, recipe: ConversionRecipe, native: Native) -> ConversionPlan:
    kind = before["model_type"]
    if recipe.to != "alibi":
        raise NotExpressibleError(
            f"'{kind}' has linear biases (ALiBi) already and no rotation to take out; convert it "
            "to alibi with a factor, which divides its slopes."
        )
    if recipe.layers != ("auto",) or recipe.keep_rope_every is not None:
        raise NotExpressibleError(f"'{kind}' has no layers with RoPE to choose among.")
    if recipe.alibi_bias_max != 8.0:
        raise NotExpressibleError(
            f"'{kind}' makes its slopes itself; use --slope-scale or --factor."
        )
    if recipe.slope_scale / recipe.factor == 1:
        raise NoEffectError(
            f"'{kind}' has linear biases (ALiBi) already; give --factor to divide its slopes."
        )
    length = before.get(native.length_key)
    length = length if type(length) is int and length > 0 else 2048
    return ConversionPlan(
        before, recipe, None, "all", 1.0, native, length, round(length * recipe.factor), ()
    )


def choose_layers(layout: Layout, recipe: ConversionRecipe) -> tuple[int, ...] | Literal["all"]:
    """The layers that change; "all" where none that turns is left.

    Raises:
        NoEffectError: none would change.
        RecipeError: the model has no such layers.
    """
    turning = {i for g in layout.groups if g.rotates for i in g.layers}
    attending = {i for g in layout.groups if g.attends for i in g.layers}
    able = turning if recipe.to == "nope" else attending
    chosen: set[int] = set()
    for word in recipe.layers:
        chosen |= _layers_of(word, layout, turning, able)
    if recipe.keep_rope_every is not None:
        chosen = {i for i in chosen if (i + 1) % recipe.keep_rope_every}
    if not chosen:
        raise NoEffectError(f"no layer of this '{layout.family.model_type}' would change.")
    everything = chosen == able or (recipe.to == "nope" and chosen >= turning)
    return "all" if everything else tuple(sorted(chosen))


def _layers_of(word: str | int, layout: Layout, turning: set[int], able: set[int]) -> set[int]:
    kind, count = layout.family.model_type, layout.layer_count
    if isinstance(word, int):
        if not 0 <= word < count:
            raise RecipeError(f"layer {word}: this '{kind}' has layers 0 to {count - 1}.")
        if word not in able:
            raise NoEffectError(f"layer {word} of this '{kind}' has nothing to convert.")
        return {word}
    if word == "auto":
        if not turning:
            raise NoEffectError(f"no layer of this '{kind}' turns by RoPE.")
        return set(turning)
    if word == "all":
        return set(able)
    named = [g for g in layout.groups if g.layer_type == word]
    if not named:
        known = sorted({g.layer_type for g in layout.groups})
        raise RecipeError(
            f"this model has no layers of type '{word}'; it has {', '.join(known)}, and numbers, "
            "'auto' or 'all' will do as well."
        )
    found = {i for g in named for i in g.layers} & able
    if not found:
        raise NoEffectError(f"the {word} layers of this '{kind}' have nothing to convert.")
    return found


def encodings_of(
    layout: Layout, chosen: tuple[int, ...] | Literal["all"], to: str | None
) -> tuple[tuple[LayerGroup, Encoding], ...]:
    """Groups of layers that are alike, each with its encoding; `to` is None before a conversion."""
    new: Encoding = "ALiBi" if to == "alibi" else "none"
    found: dict[tuple[str, Encoding], LayerGroup] = {}
    for group in layout.groups:
        old = _encoding(group, layout)
        changed = () if to is None or not group.attends else group.layers
        changed = tuple(i for i in changed if chosen == "all" or i in chosen)
        kept = tuple(i for i in group.layers if i not in changed)
        for layers, encoding in ((changed, new), (kept, old)):
            if layers:
                key = (group.layer_type, encoding)
                layers = (*found[key].layers, *layers) if key in found else layers
                found[key] = replace(group, layers=tuple(sorted(layers)))
    return tuple((group, encoding) for (_, encoding), group in found.items())


def _is_tempered(config: Config, layout: Layout) -> bool:
    """Whether queries are scaled by their place, apart from all rotation."""
    text = writable_text(config, layout.path)
    blocks = (schedule.block for schedule in layout.schedules.values())
    return (
        layout.family.model_type == "beam"
        or bool(text.get("attn_temperature_tuning"))
        or any(block.get("llama_4_scaling_beta") for block in blocks)
    )


def _encoding(group: LayerGroup, layout: Layout) -> Encoding:
    """Of layers as they stand."""
    if not group.attends:
        return "no attention"
    schedule = layout.schedules.get(group.label)
    turns = group.rotates and schedule is not None and schedule.geometry.turning > 0
    return "RoPE" if turns else "none"
