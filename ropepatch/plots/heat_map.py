"""Pictures: what was found of needles, by length and depth."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropepatch.evaluate.measures import NeedleGrid
from ropepatch.plots.canvas import plain, save, sheet, short_length

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_COLOURS = "cividis"  # made so that colour-blind people see the same steps
_NOT_MEASURED = "#ececec"
_FAILED = "#bdbdbd"
_HATCH = "////"
_MOST_COLUMNS = 12
_MOST_ROWS = 21
"""Of a grid whose values are written into it."""
_BRIGHT = 0.6
"""Score from which the colour is so bright that writing on it is black."""
_CELL = (0.46, 0.27)
"""Inches."""
_BAR = 0.22
"""Width of the bar of colours, inches."""


def draw_heat_map(
    axes: "Axes", grid: NeedleGrid, trained_length: int | None = None, values: bool | None = None
) -> "AxesImage":
    """Share of needles found, by length (x) and depth (y, the beginning of the text on top).

    Cells that failed are hatched grey, those not measured are pale; a hatched cell in colour
    holds answers and failures.

    Args:
        axes: Where to draw.
        grid: Of one task.
        trained_length: Marked by a line.
        values: Whether each cell's value is written into it; None for where there is room.
    """
    rows = [[grid.cells[length, depth] for length in grid.lengths] for depth in grid.depths]
    exact = [[math.nan if cell.exact is None else cell.exact for cell in row] for row in rows]
    image = axes.imshow(exact, cmap=_COLOURS, vmin=0, vmax=1, aspect="auto")
    axes.set_facecolor(_NOT_MEASURED)
    if values is None:
        values = len(grid.lengths) <= _MOST_COLUMNS and len(grid.depths) <= _MOST_ROWS
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            if cell.failed:
                _hatch(axes, x, y, filled=not cell.trials)
            if values and cell.exact is not None:
                ink = "black" if cell.exact >= _BRIGHT else "white"
                text = f"{cell.exact:.2g}" if cell.exact < 0.995 else "1"
                axes.text(x, y, text, color=ink, ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(grid.lengths)), [short_length(n) for n in grid.lengths])
    step = -(-len(grid.depths) // _MOST_ROWS)
    kept = range(0, len(grid.depths), step)
    axes.set_yticks(kept, [_depth(grid.depths[i]) for i in kept])
    if len(grid.lengths) > _MOST_COLUMNS:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel("length, tokens")
    axes.set_ylabel("depth of the needle")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if trained_length is not None:
        _mark(axes, grid.lengths, trained_length)
    return image


def _hatch(axes: "Axes", x: int, y: int, *, filled: bool) -> None:
    from matplotlib.patches import Rectangle

    style = {"facecolor": _FAILED} if filled else {"fill": False}
    axes.add_patch(
        Rectangle((x - 0.5, y - 0.5), 1, 1, hatch=_HATCH, edgecolor="#6e6e6e", linewidth=0, **style)
    )


def _mark(axes: "Axes", lengths: Sequence[int], trained: int) -> None:
    """A line right of the last length that the model was trained for."""
    within = sum(length <= trained for length in lengths)
    x = within - 0.5
    if within < len(lengths) or trained == lengths[-1]:
        axes.axvline(x, color="#d62728", linewidth=2)
    side = "left" if 2 * within < len(lengths) else "right"
    axes.annotate(
        f"trained length {trained:,}",
        (min(max(x, -0.5), len(lengths) - 0.5), 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center" if 2 * within == len(lengths) else side,
        va="bottom",
        color="#b01c1c",
        fontsize=9,
    )


def heat_maps(
    grids: Mapping[str, tuple[NeedleGrid, int | None]],
    columns: int = 3,
    title: str | None = None,
) -> "Figure":
    """Several runs side by side, with one bar of colours.

    Args:
        grids: By the run's name: its grid and trained length.
        columns: Panels beside each other.
        title: Above all.
    """
    if len(grids) == columns + 1:
        columns -= columns > 1  # two and two, not three and one
    columns = max(min(columns, len(grids)), 1)
    rows = max(-(-len(grids) // columns), 1)
    widest = max((len(grid.lengths) for grid, _ in grids.values()), default=1)
    tallest = max((len(grid.depths) for grid, _ in grids.values()), default=1)
    width = min(max(_CELL[0] * widest, 2.1), 7.5) + 0.9
    height = min(max(_CELL[1] * tallest, 1.6), 6.5) + 1.0
    bar_width, bar_height = (0.0, 0.6) if columns == 1 and rows > 1 else (0.8, 0.0)
    size = width * columns + bar_width, height * rows + bar_height + (0.3 if title else 0)
    figure = sheet(*size)
    image, panels = None, []
    for i, (name, (grid, trained)) in enumerate(grids.items()):
        axes = figure.add_subplot(rows, columns, i + 1)
        image = draw_heat_map(axes, grid, trained)
        axes.set_title(plain(name), fontsize=11, pad=18)
        if i % columns:
            axes.set_ylabel("")
        if i + columns < len(grids):
            axes.set_xlabel("")
        panels.append(axes)
    if image is not None:
        lying = columns == 1 and rows > 1
        bar = figure.colorbar(
            image,
            ax=panels,
            label="share found",
            location="bottom" if lying else "right",
            aspect=(size[0] if lying else size[1]) / _BAR,
            pad=0.01 if lying else 0.02,
        )
        bar.outline.set_visible(False)
    if title:
        figure.suptitle(plain(title), fontsize=12)
    return figure


def save_heat_maps(
    path: Path,
    grids: Mapping[str, tuple[NeedleGrid, int | None]],
    columns: int = 3,
    title: str | None = None,
) -> None:
    """The picture of `heat_maps`, written as the suffix of `path` says (png, svg, pdf).

    Raises:
        CheckpointError: the picture cannot be written, or its suffix is unknown.
    """
    save(heat_maps(grids, columns, title), path)


def _depth(value: float | None) -> str:
    return "all" if value is None else f"{value:g}%"
