"""Writing a planned conversion into a config, with the stamp that undoes it."""

import copy
from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.encodings import ConversionPlan
from ropepatch.config_json.paths import Config
from ropepatch.config_json.plan import STAMP, STAMP_VERSION, writable_text


def stamp_of_conversion(plan: ConversionPlan, base: Mapping[str, Any]) -> dict[str, Any]:
    """What the code that runs the model reads, and what undoes it.

    Args:
        plan: What to do.
        base: Names of the model's own classes: model_type, class, and classes by auto class.
    """
    text = writable_text(plan.before, plan.path)
    kept = plan.length_key
    layers: dict[str, Any] = {"alibi": [], "nope": []} | {
        plan.recipe.to: "all" if plan.chosen == "all" else list(plan.chosen)
    }
    stamp: dict[str, Any] = {
        "version": STAMP_VERSION,
        "conversion": plan.recipe.to_dict(),
        "layers": layers if plan.native is None else {"alibi": [], "nope": []},
        "slopes": {
            "heads": list(plan.heads),
            "bias_max": plan.recipe.alibi_bias_max,
            "scale": plan.recipe.slope_scale / plan.recipe.factor,
        },
        "kernel": "auto",
        "factor": plan.factor,
        "path": list(plan.path),
        "base": {**base, "architectures": plan.before.get("architectures")},
        "trained_length": plan.trained_length,
        "target_length": plan.target_length,
        "before": {kept: text.get(kept)} if plan.recipe.factor > 1 else {},
    }
    if plan.native is not None:
        stamp["native"] = {
            "classes": list(plan.native.classes),
            "arguments": list(plan.native.arguments),
            "heads": list(plan.native.head_keys),
        }
    return stamp


def convert_config(plan: ConversionPlan, base: Mapping[str, Any]) -> Config:
    """The config as the converted model's class reads it, stamp included."""
    after = copy.deepcopy(plan.before)
    after[STAMP] = stamp_of_conversion(plan, base)
    if plan.recipe.factor > 1:
        writable_text(after, plan.path)[plan.length_key] = plan.target_length
    return after
