"""Pictures: the wavelengths of each pair against the trained and the extended length."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.plots.canvas import colour, save, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panels = Mapping[str, tuple[RotaryGeometry, Mapping[str, Frequencies], int | None]]
"""By title: geometry, curves and target length of `draw_wavelengths`."""


def draw_wavelengths(
    axes: "Axes",
    geometry: RotaryGeometry,
    curves: Mapping[str, Frequencies],
    target_length: int | None = None,
    colours: Mapping[str, str] | None = None,
) -> "Axes":
    """Wavelength (tokens per turn, log scale) of each pair, one curve a schedule.

    Pairs above the line of the trained length never completed a turn in pretraining; pairs that
    stand still are drawn as crosses at the upper edge.

    Args:
        axes: Where to draw.
        geometry: Of the pretrained model.
        curves: By name, in the order of the legend; the first is drawn as the base.
        target_length: Tokens the change is meant for.
        colours: By name, of curves that have a colour elsewhere.
    """
    waves = {name: frequencies.wavelengths() for name, frequencies in curves.items()}
    finite = [w for ws in waves.values() for w in ws if math.isfinite(w)]
    top = max([*finite, geometry.trained_length, target_length or 0]) * 3
    for i, (name, values) in enumerate(waves.items()):
        ink = (colours or {}).get(name) or ("black" if i == 0 else colour(i - 1))
        turning = [(k, w) for k, w in enumerate(values) if math.isfinite(w)]
        still = [k for k, w in enumerate(values) if not math.isfinite(w)]
        label = f"{name} ({len(still)} stopped)" if still else name
        width = 2.2 if i == 0 else 1.6
        xs, ys = [k for k, _ in turning], [w for _, w in turning]
        axes.plot(xs, ys, color=ink, linewidth=width, label=label)
        axes.plot(still, [top] * len(still), "x", color=ink, markersize=4, clip_on=False)
    lines = [(geometry.trained_length, "--", "trained length")]
    if target_length and target_length != geometry.trained_length:
        lines.append((target_length, ":", "target"))
    for length, dashes, word in lines:
        axes.axhline(length, color="grey", linestyle=dashes, linewidth=1)
        axes.text(
            0.99,
            length,
            f"{word} {length:,}",
            transform=axes.get_yaxis_transform(),
            color="grey",
            ha="right",
            va="bottom",
            fontsize="small",
        )
    axes.set_yscale("log")
    axes.set_ylim(4, top)
    axes.set_xlim(0, geometry.pairs - 1)
    axes.set_xlabel("pair of features, fastest first")
    axes.set_ylabel("wavelength, tokens per turn")
    axes.legend(loc="upper left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def wavelengths_figure(
    panels: Panels,
    colours: Mapping[str, str] | None = None,
    size: tuple[float, float] = (7.2, 4.8),
) -> "Figure":
    """One panel per schedule, side by side.

    Args:
        panels: What `draw_wavelengths` draws, by title.
        colours: By name, of curves that have a colour elsewhere.
        size: Of a panel, inches.
    """
    figure = sheet(size[0] * len(panels), size[1])
    for i, (title, (geometry, curves, target)) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), i + 1)
        draw_wavelengths(axes, geometry, curves, target, colours)
        axes.set_title(title)
    return figure


def save_wavelengths(path: Path, panels: Panels) -> None:
    """One panel per schedule, written as the suffix of `path` says (png, svg, pdf).

    Args:
        path: The picture.
        panels: By title: geometry, curves and target length of `draw_wavelengths`.

    Raises:
        CheckpointError: the picture cannot be written, or its suffix is unknown.
    """
    save(wavelengths_figure(panels), path)
