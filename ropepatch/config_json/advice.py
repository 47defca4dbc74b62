"""What to tell the user: things that are right as written but may surprise."""

from collections.abc import Mapping

from ropepatch.config_json.layout import Layout
from ropepatch.errors import NotExpressibleError
from ropepatch.geometry import RotaryGeometry
from ropepatch.methods.base import Method


def advise(
    layout: Layout, methods: Mapping[str, Method], target: int, *, live: bool = False
) -> tuple[str, ...]:
    """Notes on the layout, the methods and the engines, most important first.

    Args:
        layout: Of the config before the change.
        methods: By label, the schedules that change.
        target: Tokens the result is meant for.
        live: Whether it is for a patched model, not for a checkpoint and its engines.
    """
    notes = list(layout.notes)
    if target < layout.configured_length:
        notes.append(
            f"the result is meant for {target} tokens, fewer than the {layout.configured_length} "
            "the config promised before."
        )
    for label, method in methods.items():
        shared = [g for g in layout.groups_of(label) if g.window is not None and g.window < target]
        if shared and len(shared) < len(layout.groups_of(label)):
            windows = ", ".join(f"{len(g.layers)} see only {g.window} tokens" for g in shared)
            notes.append(
                f"one block serves every layer of '{layout.family.model_type}', so the windowed "
                f"ones change too ({windows})."
            )
        elif shared:
            notes.append(
                f"the changed layers look back at most {max(g.window or 0 for g in shared)} "
                f"tokens (sliding_window), so {target} tokens are never seen at once."
            )
        geometry = layout.schedules[label].geometry
        notes += method.live_advice(geometry) if live else method.advice(geometry)
        if not live and getattr(method, "attention_factor", None) is not None:
            notes.append(
                "SGLang's yarn does not read attention_factor; `ropepatch export --for sglang` "
                "says it in the words that it reads."
            )
        if not live and _rope_type(method, geometry) == "linear":
            notes.append(
                "vLLM multiplies the length by the factor again for 'linear': start it with "
                f"--max-model-len {target}."
            )
    if layout.family.row.softmax_mscale and "yarn" in {m.name for m in methods.values()}:
        notes.append(
            "this family puts yarn's temperature on its softmax scale, through mscale_all_dim; "
            "mscale and mscale_all_dim were kept, or set to 1 as its checkpoints do."
        )
    return tuple(dict.fromkeys(notes))


def _rope_type(method: Method, geometry: RotaryGeometry) -> str | None:
    """What would be written; None for a change of a live model alone."""
    try:
        return str(method.rope_parameters(geometry)["rope_type"])
    except NotExpressibleError:
        return None
