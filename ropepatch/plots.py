"""Pictures: the wavelengths of each pair against the trained and the extended length."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ropepatch.errors import CheckpointError
from ropepatch.geometry import Frequencies, RotaryGeometry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")


def draw_wavelengths(
    axes: "Axes",
    geometry: RotaryGeometry,
    curves: Mapping[str, Frequencies],
    target_length: int | None = None,
) -> "Axes":
    """Wavelength (tokens per turn, log scale) of each pair, one curve a schedule.

    Pairs above the line of the trained length never completed a turn in pretraining; pairs that
    stand still are drawn as crosses at the upper edge.

    Args:
        axes: Where to draw.
        geometry: Of the pretrained model.
        curves: By name, in the order of the legend; the first is drawn as the base.
        target_length: Tokens the change is meant for.
    """
    waves = {name: frequencies.wavelengths() for name, frequencies in curves.items()}
    finite = [w for ws in waves.values() for w in ws if math.isfinite(w)]
    top = max([*finite, geometry.trained_length, target_length or 0]) * 3
    for i, (name, values) in enumerate(waves.items()):
        colour = "black" if i == 0 else _COLOURS[(i - 1) % len(_COLOURS)]
        turning = [(k, w) for k, w in enumerate(values) if math.isfinite(w)]
        still = [k for k, w in enumerate(values) if not math.isfinite(w)]
        label = f"{name} ({len(still)} stopped)" if still else name
        width = 2.2 if i == 0 else 1.6
        xs, ys = [k for k, _ in turning], [w for _, w in turning]
        axes.plot(xs, ys, color=colour, linewidth=width, label=label)
        axes.plot(still, [top] * len(still), "x", color=colour, markersize=4, clip_on=False)
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


def save_wavelengths(
    path: Path,
    panels: Mapping[str, tuple[RotaryGeometry, Mapping[str, Frequencies], int | None]],
) -> None:
    """One panel per schedule, written as the suffix of `path` says (png, svg, pdf).

    Args:
        path: The picture.
        panels: By title: geometry, curves and target length of `draw_wavelengths`.

    Raises:
        CheckpointError: the picture cannot be written, or its suffix is unknown.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2 * len(panels), 4.8), layout="tight")
    FigureCanvasAgg(figure)
    for i, (title, (geometry, curves, target)) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), i + 1)
        draw_wavelengths(axes, geometry, curves, target)
        axes.set_title(title)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"cannot write the picture {path}: {reason}.") from None
