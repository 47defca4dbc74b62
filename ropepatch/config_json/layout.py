"""A layout: which layers turn how. What a checkpoint's positions are, as data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropepatch.config_json.blocks import Dialect, read_blocks
from ropepatch.config_json.kinds import check_kinds
from ropepatch.config_json.layers import LayerGroup, layer_groups
from ropepatch.config_json.paths import family_at, text_part, text_path
from ropepatch.errors import ConfigError, RopepatchError
from ropepatch.families.table import Block, Family
from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method
from ropepatch.methods.table import method_of_block


@dataclass(frozen=True)
class Schedule:
    """One block of rotary parameters, understood."""

    label: str
    block: Block
    geometry: RotaryGeometry
    """The pretrained embedding, before the scaling in force."""
    method: Method | None
    """The scaling in force; None for plain RoPE."""

    def frequencies(self, length: int) -> Frequencies:
        """What is in force for an input of `length` tokens."""
        if self.method is None:
            return self.geometry.base_frequencies()
        return self.method.frequencies(self.geometry, length)


@dataclass(frozen=True)
class Layout:
    """The positions of one model."""

    family: Family
    path: tuple[str, ...]
    """Keys that lead to the text part of the config."""
    dialect: Dialect
    groups: tuple[LayerGroup, ...]
    schedules: Mapping[str, Schedule]
    """By label; a label whose layers do not turn has none."""
    configured_length: int
    """`max_position_embeddings` as it stands, tokens."""
    trained_length: int
    trained_length_known: bool
    """False where a `linear` block does not say which length it counts from."""
    notes: tuple[str, ...]

    @property
    def layer_count(self) -> int:
        """All layers, whether they attend or not."""
        return sum(len(group.layers) for group in self.groups)

    def groups_of(self, label: str) -> tuple[LayerGroup, ...]:
        """The groups that turn by this block."""
        return tuple(g for g in self.groups if g.label == label and g.rotates)

    @property
    def scaled(self) -> bool:
        """Whether any schedule already carries a scaling."""
        return any(s.method is not None for s in self.schedules.values())


def read_layout(config: Mapping[str, Any], trained_length: int | None = None) -> Layout:
    """Read a config, in either dialect, without transformers.

    Args:
        config: The parsed `config.json`.
        trained_length: Tokens; overrides what the config says.

    Raises:
        ConfigError: it is no model with rotary embeddings, or its numbers contradict.
    """
    path = text_path(config)
    family = family_at(config, path)
    text = text_part(config, path)
    if family.row.refused:
        raise ConfigError(f"'{family.model_type}' is refused: {family.row.refused}.")
    check_kinds(text, family)
    found = read_blocks(text, family)
    configured = _number(text, family, "max_position_embeddings")
    if configured is None:
        raise ConfigError("config.json has no max_position_embeddings.")
    trained, known, notes = _trained(found.blocks, family, int(configured))
    if trained_length is not None:
        trained, known, notes = trained_length, True, []
    groups = layer_groups(text, family, found.blocks)
    some = text.get("rope_scaling_layers")
    if isinstance(some, list) and len(some) < sum(len(g.layers) for g in groups):
        raise ConfigError(
            f"rope_scaling_layers names {len(some)} layers of this '{family.model_type}'; the "
            "others would keep their rotation, so no change reaches all of it."
        )
    schedules = {}
    for label, block in found.blocks.items():
        if block is not None:
            head_dim = _head_dim(label, groups, text, family)
            block = _fixed_base(block, head_dim, family)
            geometry = _geometry(block, head_dim, family, trained)
            schedules[label] = Schedule(label, block, geometry, _in_force(block))
    return Layout(
        family=family,
        path=path,
        dialect=found.dialect,
        groups=groups,
        schedules=schedules,
        configured_length=int(configured),
        trained_length=trained,
        trained_length_known=known,
        notes=(*found.notes, *notes),
    )


def _number(text: Mapping[str, Any], family: Family, key: str) -> float | None:
    value = family.value(text, key)
    value = family.defaults.get(key) if value is None else value
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"{key} in config.json must be a number, not {value!r}.")
    return value


def _trained(
    blocks: Mapping[str, Block | None], family: Family, configured: int
) -> tuple[int, bool, list[str]]:
    """Trained length, whether it is certain, and what to say about it."""
    for block in blocks.values():
        original = (block or {}).get("original_max_position_embeddings")
        if block and block["rope_type"] in ("yarn", "llama3", "longrope") and original:
            return int(original), True, []
    for block in blocks.values():
        scaled = block and block["rope_type"] in ("linear", "proportional")
        factor = float((block or {}).get("factor") or 1.0)
        if scaled and factor > 1:
            if family.row.linear_trained and family.row.linear_trained <= configured:
                return family.row.linear_trained, True, []
            guess = round(configured / factor)
            note = (
                f"a linear scaling does not say what it counts from: {guess} tokens if "
                f"max_position_embeddings ({configured}) is the extended length, {configured} if "
                "it is the trained one."
            )
            return guess, False, [note]
    return configured, True, []


def _geometry(block: Block, head_dim: int, family: Family, trained: int) -> RotaryGeometry:
    partial = block.get("partial_rotary_factor")
    stopping = block["rope_type"] == "proportional"
    own_width = family.is_mla and not family.honours_partial and not stopping
    partial = 1.0 if partial is None or own_width else float(partial)
    if stopping:
        turning = int(partial * head_dim // 2)
        return RotaryGeometry(
            head_dim,
            head_dim,
            float(block["rope_theta"]),
            trained,
            None if turning == head_dim // 2 else turning,
        )
    if partial != 1 and not family.honours_partial:
        if block["rope_type"] == "default":
            partial = 1.0  # as the family's class does
        else:
            raise ConfigError(
                f"partial_rotary_factor {partial:g} under '{block['rope_type']}' does not fit "
                f"'{family.model_type}', which turns whole heads; remove the key."
            )
    rotary_dim = int(head_dim * partial)
    if rotary_dim % 2:
        raise ConfigError(
            f"partial_rotary_factor {partial:g} makes {rotary_dim} of {head_dim} features turn, "
            "which are no whole pairs."
        )
    return RotaryGeometry(head_dim, rotary_dim, float(block["rope_theta"]), trained)


def _fixed_base(block: Block, head_dim: int, family: Family) -> Block:
    """HunYuan's `dynamic` block with an alpha, in the words of what it does."""
    alpha = block.get("alpha") or 0
    ours = block["rope_type"] == "dynamic" and family.row.alpha_is_base
    if not (ours and alpha > 0 and head_dim > 2):
        return block
    rest = {k: v for k, v in block.items() if k not in ("alpha", "factor")}
    theta = block["rope_theta"] * alpha ** (head_dim / (head_dim - 2))
    return {**rest, "rope_type": "default", "rope_theta": theta}


def _head_dim(
    label: str, groups: tuple[LayerGroup, ...], text: Mapping[str, Any], family: Family
) -> int:
    """Width of a head as the rotary code sees it."""
    if label == "full_attention" and "global_head_dim" in family.defaults:  # Gemma 4
        return _global_head_dim(groups, text, family)
    for key in ("qk_rope_head_dim", "head_dim") if family.is_mla else ("head_dim",):
        if value := _number(text, family, key):
            return int(value)
    hidden = _number(text, family, "hidden_size")
    heads = _number(text, family, "num_attention_heads")
    if not hidden or not heads:
        raise ConfigError("config.json has neither head_dim nor hidden_size with its heads.")
    return int(hidden) * int(family.defaults.get("head_dim_ratio", 1)) // int(heads)


def _global_head_dim(
    groups: tuple[LayerGroup, ...], text: Mapping[str, Any], family: Family
) -> int:
    """Width of the heads of the global layers, by layer or for all of them."""
    own = text.get("per_layer_config")
    layers = {i for g in groups if g.label == "full_attention" for i in g.layers}
    for index, words in own.items() if isinstance(own, Mapping) else ():
        numbered = str(index).isdigit() and int(index) in layers
        if numbered and isinstance(words, Mapping) and words.get("head_dim"):
            return int(words["head_dim"])
    return int(text.get("global_head_dim") or family.defaults["global_head_dim"])


def _in_force(block: Block) -> Method | None:
    low, high = block.get("low_freq_factor"), block.get("high_freq_factor")
    if isinstance(high, int | float) and low == high:
        # Llama 4 Scout's llama3 is a step, which the narrowest ramp is too
        block = {**block, "high_freq_factor": math.nextafter(high, math.inf)}
    try:
        return method_of_block(block)
    except KeyError as error:
        raise ConfigError(
            f"the '{block['rope_type']}' block of config.json lacks {error.args[0]}."
        ) from None
    except (TypeError, ValueError) as error:
        if isinstance(error, RopepatchError):
            raise ConfigError(f"the block of config.json: {error}") from None
        raise ConfigError(
            f"the '{block['rope_type']}' block of config.json has a value of a wrong kind "
            f"({error})."
        ) from None
