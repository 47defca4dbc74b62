"""Which schedules a recipe's `layers` mean in a given model, or why none."""

from ropepatch.config_json.layers import LayerGroup
from ropepatch.config_json.layout import Layout
from ropepatch.errors import NoEffectError, NotExpressibleError, RecipeError


def choose_labels(layout: Layout, layers: tuple[str, ...]) -> tuple[str, ...]:
    """Labels of the blocks to change, in the order of the layout.

    Raises:
        NoEffectError: no layer that turns could use a longer context.
        NotExpressibleError: the layers share their block with others that were not named.
        RecipeError: a layer type that this model does not have.
    """
    turning = [g for g in layout.groups if g.rotates and g.label in layout.schedules]
    if not turning:
        raise NoEffectError(f"no layer of this '{layout.family.model_type}' turns by RoPE.")
    if layers == ("all",):
        return _labels(layout, turning)
    if layers == ("auto",):
        trained = layout.trained_length
        reached = [g for g in turning if g.window is None or g.window > trained]
        if not reached:
            raise NoEffectError(_nothing_to_gain(layout, turning))
        return _labels(layout, reached)
    known = {g.layer_type for g in layout.groups}
    unknown = [word for word in layers if word not in known]
    if unknown:
        raise RecipeError(
            f"this model has no layers of type '{unknown[0]}'; it has "
            f"{', '.join(sorted(known))}, and 'auto' or 'all' choose for you."
        )
    named = [g for g in turning if g.layer_type in layers]
    still = [word for word in layers if word not in {g.layer_type for g in named}]
    if still:
        raise NoEffectError(f"the {still[0]} layers of this model do not turn by RoPE.")
    labels = _labels(layout, named)
    for group in turning:
        if group.label in labels and group.layer_type not in layers:
            raise NotExpressibleError(
                f"'{layout.family.model_type}' turns its {named[0].layer_type} and "
                f"{group.layer_type} layers by one block, so one cannot change without the "
                "other; use --layers all."
            )
    return labels


def _labels(layout: Layout, groups: list[LayerGroup]) -> tuple[str, ...]:
    wanted = {g.label for g in groups}
    return tuple(label for label in layout.schedules if label in wanted)


def _nothing_to_gain(layout: Layout, turning: list[LayerGroup]) -> str:
    longest = max(g.window or 0 for g in turning)
    still = [g for g in layout.groups if g.attends_globally and not g.rotates]
    why = (
        f"its {len(still[0].layers)} global layers use no rotation"
        if still
        else "no layer attends globally"
    )
    return (
        f"every layer of this '{layout.family.model_type}' that turns looks back at most "
        f"{longest} tokens and {why}, so no RoPE change lengthens its reach. Widen that window "
        "in config.json first, or force it with --layers all."
    )
