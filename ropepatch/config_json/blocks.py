"""Reading the rotary blocks of a config in either dialect, as transformers 5 reads them.

v5: `rope_parameters`, flat or one per layer type, theta inside. v4: `rope_theta` (or a family's
own key) beside `rope_scaling`. Whatever stands there comes out as complete blocks by label.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ropepatch.errors import ConfigError
from ropepatch.families.table import Block, Family

Dialect = Literal["v4", "v5", "both"]

_LENGTH_TYPES = ("yarn", "llama3", "longrope")
_RENAMED = {"mrope": "default", "su": "longrope", None: "default"}


@dataclass(frozen=True)
class RopeBlocks:
    """Complete blocks by label, and the dialect they were found in."""

    dialect: Dialect
    blocks: Mapping[str, Block | None]
    """`rope_type` and `rope_theta` always there; None for layer types that do not turn."""
    notes: tuple[str, ...]


def read_blocks(text: Mapping[str, Any], family: Family) -> RopeBlocks:
    """The blocks of the text part of a config.

    Raises:
        ConfigError: a block is not a mapping, lacks theta, or is written per layer type for a
            model with one schedule.
    """
    for key in ("rope_parameters", "rope_scaling"):
        if text.get(key) is not None and not isinstance(text[key], Mapping):
            raise ConfigError(f"{key} in config.json must be a mapping, not {text[key]!r}.")
    found = _dialect(text, family)
    silent = not family.blocks.get("")  # a class, or an unknown one, that has no block of its own
    if family.per_layer_type or (silent and _looks_nested(text)):
        blocks, notes = _per_layer_type(text, family)
    else:
        blocks, notes = _flat(text, family)
    complete = {
        label: None if block is None else _complete(block, label, text, family)
        for label, block in blocks.items()
    }
    return RopeBlocks(found, complete, tuple(notes))


def _dialect(text: Mapping[str, Any], family: Family) -> Dialect:
    new = bool(text.get("rope_parameters"))
    old = bool(text.get("rope_scaling")) or any(key in text for key, _ in family.theta_keys)
    if new or old:
        return "both" if new and old else "v5" if new else "v4"
    return "v5" if str(text.get("transformers_version", "4")).startswith("5") else "v4"


def _looks_nested(text: Mapping[str, Any]) -> bool:
    block = text.get("rope_parameters") or {}
    return bool(block) and all(isinstance(v, Mapping) or v is None for v in block.values())


def _flat(
    text: Mapping[str, Any], family: Family
) -> tuple[dict[str, dict[str, Any] | None], list[str]]:
    notes = []
    new, old = text.get("rope_parameters") or {}, text.get("rope_scaling") or {}
    if _looks_nested(text):
        raise ConfigError(
            f"rope_parameters is written per layer type ({', '.join(new)}), but "
            f"'{family.model_type}' has one schedule for all layers and transformers would "
            "ignore it; write one flat block."
        )
    if old and new and _differ(old, new):
        notes.append(
            "rope_scaling and rope_parameters differ; transformers reads rope_scaling, and so "
            "does this."
        )
    default = dict(family.blocks.get("") or {})
    block = dict(old or new)
    if not block:
        block = default
        if any(key in text for key, _ in family.theta_keys):
            block.pop("rope_theta", None)
        if any(text.get(key) is not None for key in family.partial_keys):
            block.pop("partial_rotary_factor", None)
    if "rope_theta" not in block:
        given = (*family.theta_keys, *family.theta_keys_if_scaled) if old or new else ()
        keys = [key for key, _ in given or family.theta_keys]
        theta = next((text[key] for key in keys if text.get(key) is not None), None)
        if theta is None and not family.known:
            raise ConfigError(
                f"'{family.model_type}' is not a model type of transformers and its config names "
                "no rope_theta, so it cannot be told whether it has rotary embeddings."
            )
        fallback = family.theta_if_scaled.get("", default.get("rope_theta", 10000.0))
        block["rope_theta"] = fallback if theta is None else theta
    if "partial_rotary_factor" not in block:
        partial = next((text[k] for k in family.partial_keys if text.get(k) is not None), None)
        if partial is not None and "rotary_dim" in family.partial_keys and partial > 1:
            partial = partial / int(text.get("head_dim") or family.defaults["head_dim"])
        if partial is None:
            partial = default.get("partial_rotary_factor")
        if partial is not None:
            block["partial_rotary_factor"] = partial
    return {"": block}, notes


def _differ(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    def plain(block: Mapping[str, Any]) -> dict[str, Any]:
        rope_type = block.get("rope_type", block.get("type", "default"))
        rest = {k: v for k, v in block.items() if k not in ("type", "rope_type", "rope_theta")}
        return {"rope_type": _RENAMED.get(rope_type, rope_type), **rest}

    return plain(old) != plain(new)


def _per_layer_type(
    text: Mapping[str, Any], family: Family
) -> tuple[dict[str, dict[str, Any] | None], list[str]]:
    notes = []
    new, old = text.get("rope_parameters") or {}, text.get("rope_scaling") or {}
    labels = [*family.blocks] if family.per_layer_type else [*new]
    labels += [k for k in new if isinstance(new[k], Mapping) and k not in labels]
    nested = any(isinstance(new.get(label), Mapping) for label in labels)
    if new and not nested:
        notes.append(
            f"the flat rope_parameters is ignored by '{family.model_type}', which has one block "
            "per layer type; its defaults are in force."
        )
    thetas = {label: text[key] for key, label in reversed(family.theta_keys) if key in text}
    blocks: dict[str, dict[str, Any] | None] = {}
    for label in labels:
        default = family.blocks.get(label)
        if nested and label in new:
            given = new[label]
        else:
            given = dict(default) if default is not None else None
            if given is not None and label in thetas:
                given["rope_theta"] = thetas[label]
        if given is None:
            blocks[label] = None
            continue
        block = dict(given)
        block.setdefault("rope_theta", thetas.get(label, (default or {}).get("rope_theta")))
        if label in family.scaling_labels and old:
            block.update(old)
        blocks[label] = block
    return blocks, notes


def _complete(
    block: Mapping[str, Any], label: str, text: Mapping[str, Any], family: Family
) -> Block:
    """One block with its type under the one name, and the numbers transformers fills in."""
    whole = dict(block)
    where = f" for {label}" if label else ""
    rope_type = whole.pop("type", None)
    rope_type = whole.get("rope_type", rope_type)
    whole["rope_type"] = rope_type = _RENAMED.get(rope_type, rope_type)
    if family.model_type.startswith(("phi3", "phi4")) and rope_type == "yarn":
        whole["rope_type"] = rope_type = "longrope"  # what Phi's config class makes of it
    theta = whole.get("rope_theta")
    if isinstance(theta, bool) or not isinstance(theta, int | float):
        raise ConfigError(f"rope_theta{where} must be a number, not {theta!r}.")
    longest = text.get("max_position_embeddings", family.defaults.get("max_position_embeddings"))
    if rope_type in _LENGTH_TYPES:
        outer = text.get("original_max_position_embeddings")
        if outer is None:
            outer = family.defaults.get("original_max_position_embeddings")
        if outer is not None and not label:  # transformers gives it priority over the block
            whole["original_max_position_embeddings"] = outer
        if whole.get("original_max_position_embeddings") is None:
            whole["original_max_position_embeddings"] = longest
        trained = whole["original_max_position_embeddings"]
        if whole.get("factor") is None and longest and trained:
            whole["factor"] = longest / trained
    return whole
