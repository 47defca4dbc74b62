"""From an inspection to a picture."""

from collections.abc import Mapping
from pathlib import Path

from ropepatch.extending import Inspection, Preview
from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.plots import save_wavelengths


def draw_inspection(path: Path, found: Inspection, previews: Mapping[str, Preview]) -> None:
    """One panel per schedule: the base, what is in force, and each previewed method."""
    panels: dict[str, tuple[RotaryGeometry, dict[str, Frequencies], int | None]] = {}
    name = Path(found.source.name).name.replace("$", r"\$")  # no formula for matplotlib
    for label, schedule in found.layout.schedules.items():
        geometry = schedule.geometry
        curves = {f"pretrained (θ = {geometry.theta:g})": geometry.base_frequencies()}
        target: int | None = None
        if schedule.method is not None:
            curves[f"in force: {schedule.method.name} ×{schedule.method.factor:g}"] = (
                schedule.frequencies(found.layout.configured_length)
            )
            target = found.layout.configured_length
        for method_name, preview in previews.items():
            if preview.change is None or label not in preview.change.methods:
                continue
            method = preview.change.methods[label]
            target = preview.change.target_length
            curves[f"{method_name} ×{method.factor:g}"] = method.frequencies(geometry, target)
        panels[f"{name}: {label}" if label else name] = (geometry, curves, target)
    save_wavelengths(path, panels)
