"""A scaled config with its scaling taken off: the model as it was pretrained."""

import copy
from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.dialects import to_dialect
from ropepatch.config_json.layout import read_layout
from ropepatch.config_json.paths import Config, text_part
from ropepatch.families.table import Block

SCALING_KEYS = (
    "rope_type",
    "type",
    "factor",
    "attention_factor",
    "attn_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "max_position_embeddings",
    "finetuned",
    "alpha",
)
"""Keys of a block that belong to a scaling; every other key survives a change."""


def kept_keys(block: Block, keeps: tuple[str, ...]) -> dict[str, Any]:
    """What of a block survives when its scaling goes; `keeps` are a family's own exceptions."""
    return {k: v for k, v in block.items() if k not in SCALING_KEYS or k in keeps}


def without_scaling(config: Mapping[str, Any]) -> Config:
    """The config with plain RoPE in every schedule, in transformers 5's words.

    Raises:
        ConfigError: it cannot be read.
    """
    layout = read_layout(config)
    plain: Config = copy.deepcopy(dict(config))
    text = text_part(plain, layout.path)
    blocks = {
        label: {
            **kept_keys(schedule.block, layout.family.row.keeps),
            "rope_type": "default" if schedule.method else schedule.block["rope_type"],
        }
        for label, schedule in layout.schedules.items()
    }
    for label, schedule in layout.schedules.items():
        if schedule.geometry.turning != schedule.geometry.pairs:
            blocks[label]["rope_type"] = "proportional"
    if not isinstance(text, dict):
        raise TypeError("the text part of a config is a mapping")
    to_dialect(text, layout, blocks, "v5")
    text["max_position_embeddings"] = layout.trained_length
    return plain
