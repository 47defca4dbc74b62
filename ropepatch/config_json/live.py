"""The config of a live model that was patched: what `save_pretrained` will write.

Where plain transformers can do the same, in its own words; where it cannot, under a type that it
refuses loudly and that `ropepatch.load` understands.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from ropepatch.config_json.advice import advise
from ropepatch.config_json.dialects import to_dialect
from ropepatch.config_json.plain import kept_keys
from ropepatch.config_json.plan import STAMP, plan_recipe, refuse_no_effect, writable_text
from ropepatch.config_json.write import Change, stamp_of, write_recipe
from ropepatch.errors import NotExpressibleError
from ropepatch.recipe import Recipe

LIVE_TYPE = "ropepatch.load"
"""A `rope_type` that no reader knows: transformers stops with KeyError: 'ropepatch.load'."""


def write_live(config: Mapping[str, Any], recipe: Recipe, *, replace: bool = False) -> Change:
    """The config a live model gets, in transformers 5's words.

    Args:
        config: Of the model, as `to_dict` gives it; not changed.
        recipe: What to do.
        replace: Allow a model that is already scaled.

    Raises:
        RopepatchError: the recipe cannot be carried out on this model at all.
    """
    try:
        change = write_recipe(config, recipe, dialect="v5", replace=replace)
    except NotExpressibleError as error:
        reason = str(error)
    else:
        advice = advise(change.layout, change.methods, change.target_length, live=True)
        return dataclasses.replace(change, advice=advice)
    plan = plan_recipe(config, recipe, replace=replace)  # what fails here fails live too
    refuse_no_effect(plan)
    layout = plan.layout
    after = copy.deepcopy(plan.before)
    text = writable_text(after, layout.path)
    after[STAMP] = stamp_of(plan, text) | {"live_only": reason}
    text["max_position_embeddings"] = plan.target_length
    keeps = layout.family.row.keeps
    blocks = {
        s.label: {
            **kept_keys(s.block, keeps),
            "rope_type": LIVE_TYPE,
            "rope_theta": s.geometry.theta,
            "original_max_position_embeddings": layout.trained_length,
            "factor": plan.methods[s.label].factor,
        }
        for s in plan.schedules
    }
    to_dialect(text, layout, blocks, "v5")
    return Change(
        before=plan.before,
        after=after,
        recipe=plan.recipe,
        layout=layout,
        methods=plan.methods,
        dialect="v5",
        target_length=plan.target_length,
        advice=advise(layout, plan.methods, plan.target_length, live=True),
        live_only=reason,
    )
