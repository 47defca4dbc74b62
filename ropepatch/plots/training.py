"""A picture: how a recovery training went."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch.plots.canvas import colour, marker, plain, save, sheet, short_length

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, float]]
"""Numbers by name, each with its step."""


def draw_training(axes: "Axes", losses: Rows, checks: Rows, lengths: Sequence[int]) -> "Axes":
    """Loss of each step, and at the checks the held-out loss and the needles found.

    Args:
        axes: Where to draw; needles get an axis of their own on the right.
        losses: `step` and `loss`.
        checks: `step` and what was measured after it.
        lengths: Tokens that were measured at, the shorter first.
    """
    steps = [row["step"] for row in losses]
    axes.plot(steps, [row["loss"] for row in losses], color="#999999", lw=1, label="training loss")
    axes.set_xlabel("steps")
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.3)
    needles = None
    for i, name in enumerate(("loss", "loss_short", "needle", "needle_short")):
        points = [(row["step"], row[name]) for row in checks if name in row]
        if not points or (name.endswith("_short") and len(lengths) == 1):
            continue
        length = short_length(lengths[0] if name.endswith("_short") else lengths[-1])
        target, words = axes, f"held-out loss at {length}"
        if name.startswith("needle"):
            needles = needles or axes.twinx()
            target, words = needles, f"needles found at {length}"
        target.plot(
            *zip(*points, strict=True),
            color=colour(i),
            marker=marker(i),
            linestyle="--" if name.startswith("needle") else "-",
            label=words,
        )
    if needles is not None:
        needles.set_ylim(-0.03, 1.03)
        needles.set_ylabel("needles found")
    return axes


def save_training(
    path: Path, title: str, losses: Rows, checks: Rows, lengths: Sequence[int]
) -> None:
    """Write the picture.

    Raises:
        CheckpointError: it cannot be written.
    """
    figure: Figure = sheet(7.5, 4.2)
    axes = figure.subplots()
    draw_training(axes, losses, checks, lengths)
    axes.set_title(plain(title), loc="left")
    handles: list[Any] = []
    for one in figure.axes:
        handles += one.get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    save(figure, path)
