"""Saying the same blocks in transformers 5's words, in version 4's, or in both."""

from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.blocks import Dialect
from ropepatch.config_json.layout import Layout
from ropepatch.config_json.paths import Config
from ropepatch.errors import NotExpressibleError
from ropepatch.families.table import Block

_V4_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


def to_dialect(
    text: Config, layout: Layout, changed: Mapping[str, Block], dialect: Dialect
) -> None:
    """Put the blocks into the text part, in place, leaving no stale key of another dialect.

    Args:
        text: The text part of the config.
        layout: Of the config before the change.
        changed: The new blocks by label; the others stay as they were.
        dialect: Which words to use.

    Raises:
        NotExpressibleError: version 4 has no words for it.
    """
    blocks: dict[str, Block | None] = dict.fromkeys(layout.family.blocks)
    blocks |= {label: s.block for label, s in layout.schedules.items()}
    blocks |= dict(changed)
    legacy = _legacy(text, blocks, changed, layout) if dialect in ("v4", "both") else {}
    for key in ("rope_parameters", "rope_scaling", *_theta_keys(layout)):
        text.pop(key, None)
    if dialect in ("v5", "both"):
        text["rope_parameters"] = _rope_parameters(blocks)
    text.update(legacy)


def _theta_keys(layout: Layout) -> list[str]:
    return [*(key for key, _ in layout.family.theta_keys), "rope_theta"]


def _rope_parameters(blocks: Mapping[str, Block | None]) -> dict[str, Any]:
    if set(blocks) == {""}:
        return dict(blocks[""] or {})
    nested: dict[str, Any] = {k: None if b is None else dict(b) for k, b in blocks.items()}
    if any(b is not None and b.get("truncate") is False for b in blocks.values()):
        nested["truncate"] = False  # transformers 5.24 looks for it beside the blocks
    return nested


def _legacy(
    text: Config,
    blocks: Mapping[str, Block | None],
    changed: Mapping[str, Block],
    layout: Layout,
) -> dict[str, Any]:
    """`rope_theta` (or the family's keys) and `rope_scaling` without theta."""
    family = layout.family
    if len(family.scaling_labels) != 1:
        raise NotExpressibleError(
            f"'{family.model_type}' reads no rope_scaling of transformers 4; use --dialect v5."
        )
    (scaling_label,) = family.scaling_labels
    words: dict[str, Any] = {}
    keys = {label: key for key, label in reversed(family.theta_keys)}
    theta_counts_alone = scaling_label in keys  # else only beside a rope_scaling
    for label, block in blocks.items():
        if block is None:
            continue
        if label != scaling_label and (label in changed or block["rope_type"] != "default"):
            raise NotExpressibleError(
                f"transformers 4's words can scale only {scaling_label} of "
                f"'{family.model_type}', not {label}; use --dialect v5."
            )
        usual = family.blocks.get(label) or {}
        if label not in (*keys, scaling_label):
            if block["rope_theta"] == usual.get("rope_theta"):
                continue  # version 4 falls back on the same default
            raise NotExpressibleError(
                f"transformers 4 has no key for the rope_theta {block['rope_theta']:g} of {label} "
                f"in '{family.model_type}'; use --dialect v5."
            )
        key = keys.get(label, "rope_theta")
        if words.setdefault(key, block["rope_theta"]) != block["rope_theta"]:
            raise NotExpressibleError(
                f"transformers 4 has one {key} for all layers of '{family.model_type}'; use "
                "--dialect v5."
            )
    block = dict(blocks[scaling_label] or {})
    if block.get("rope_type") not in _V4_TYPES:
        raise NotExpressibleError(
            f"transformers 4 knows no rope_type '{block.get('rope_type')}'; use --dialect v5."
        )
    block.pop("rope_theta")
    partial = block.pop("partial_rotary_factor", None)
    if partial is not None and (
        family.honours_partial or "partial_rotary_factor" in family.row.keeps
    ):
        words |= _legacy_partial(float(partial), text, layout)
    rope_type = block.pop("rope_type")
    usual = family.blocks.get(scaling_label) or {}
    if rope_type == "default" and not block:
        # for None, a class puts its own default block back, be it a scaling or another theta
        as_usual = theta_counts_alone and usual.get("rope_type", "default") == "default"
        words["rope_scaling"] = None if as_usual else {"rope_type": "default"}
    elif family.row.legacy_type_key == "type" and rope_type == "longrope":
        # version 4's Phi classes accept exactly these keys
        if block.get("attention_factor") is not None:
            raise NotExpressibleError(
                f"transformers 4 knows no attention_factor for '{family.model_type}'; use "
                "--dialect v5."
            )
        reach = block["factor"] * block["original_max_position_embeddings"]
        if reach != round(reach):  # its factor would be read off the two lengths
            raise NotExpressibleError(
                f"transformers 4 reads the factor of '{family.model_type}' as a ratio of whole "
                f"lengths, and {block['factor']:g} is none; use --to, or --dialect v5."
            )
        block = {k: block[k] for k in ("short_factor", "long_factor")}
        words["rope_scaling"] = {"type": rope_type, **block}
    else:
        words["rope_scaling"] = {"rope_type": rope_type, **block}
    return words


def _legacy_partial(partial: float, text: Config, layout: Layout) -> dict[str, Any]:
    family = layout.family
    default = next(iter(family.blocks.values())) or {}
    if family.honours_partial and partial == default.get("partial_rotary_factor"):
        return {}
    if any(text.get(key) is not None for key in family.partial_keys):
        return {}  # it stands there already, in the file's own word
    if family.partial_keys:
        return {family.partial_keys[0]: partial}
    raise NotExpressibleError(
        f"transformers 4 has no key for partial_rotary_factor {partial:g} of "
        f"'{family.model_type}'; use --dialect v5."
    )
