"""Pictures: losses and perplexities of several runs, by length or by place."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropepatch.plots.canvas import colour, dashes, marker, plain, save, sheet, short_length

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float | None]]
"""Tokens, value; None where there is none."""
Curves = Mapping[str, Points]
"""By the run's name. A run without points is not drawn, but keeps its colour for other pictures."""

_EXPLODED = 4.0
"""Times the least perplexity of all; beyond it a run is cut off (▲) where others are not."""
_TRAINED = "#b01c1c"
_LETTER = 0.024
"""Width of a letter of a tick, as a share of the axis."""


def draw_perplexity(axes: "Axes", curves: Curves, trained_length: int | None = None) -> "Axes":
    """Perplexity by length of several runs.

    Runs that explode are cut off at the upper edge (▲); when all do, the scale is logarithmic.

    Args:
        axes: Where to draw.
        curves: Points of each run.
        trained_length: Marked by a line.
    """
    return _by_length(axes, curves, trained_length, "perplexity")


def draw_final_loss(axes: "Axes", curves: Curves, trained_length: int | None = None) -> "Axes":
    """Loss on the same last tokens, by the length of what is read before and with them.

    Args:
        axes: Where to draw.
        curves: Points of each run.
        trained_length: Marked by a line.
    """
    return _by_length(axes, curves, trained_length, "loss, nats per token")


def draw_loss_by_place(axes: "Axes", curves: Curves, trained_length: int | None = None) -> "Axes":
    """Loss by the token's place in the longest window.

    Args:
        axes: Where to draw.
        curves: Points of each run, at the middle of each part of the window.
        trained_length: Marked by a line.
    """
    _draw(axes, curves, "loss, nats per token")
    places = [x for points in curves.values() for x, _ in points]
    end = max(places, default=1.0)
    step = 2 ** math.ceil(math.log2(max(end / 6, 1)))
    ticks = range(0, int(end + step), step)
    axes.set_xticks(ticks, [short_length(tick) for tick in ticks])
    axes.set_xlim(0, end * 1.04)
    axes.set_xlabel("place of the token in the window")
    if trained_length is not None and trained_length <= end * 1.04:
        _mark(axes, trained_length, early=trained_length < end / 2)
    return axes


def _by_length(axes: "Axes", curves: Curves, trained: int | None, what: str) -> "Axes":
    from matplotlib.ticker import NullLocator

    _draw(axes, curves, what)
    lengths = sorted({x for points in curves.values() for x, _ in points})
    axes.set_xscale("log", base=2)
    if lengths:
        kept = _apart_enough(lengths)
        axes.set_xticks(kept, [short_length(length) for length in kept])
        axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.15)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("length, tokens")
    if trained is not None and lengths and lengths[0] / 1.15 <= trained <= lengths[-1] * 1.15:
        _mark(axes, trained, early=trained**2 < lengths[0] * lengths[-1])
    return axes


def _apart_enough(lengths: Sequence[float]) -> list[float]:
    """Lengths whose names have room beside each other on an axis of octaves."""
    octaves = max(math.log2(lengths[-1] / lengths[0]), 1e-9)

    def fit(a: float, b: float) -> bool:
        letters = (len(short_length(a)) + len(short_length(b))) / 2
        return abs(math.log2(a / b)) / octaves > _LETTER * (letters + 0.5)

    kept = [lengths[-1]]  # the longest always has its name, and the shortest
    for length in reversed(lengths[1:-1]):
        if fit(length, kept[-1]) and fit(length, lengths[0]):
            kept.append(length)
    return sorted({lengths[0], *kept})


def _draw(axes: "Axes", curves: Curves, what: str) -> None:
    from matplotlib.ticker import MaxNLocator

    is_loss = what.startswith("loss")
    calm, wild = _apart(curves, is_loss)
    top = _ceiling(calm, is_loss) if calm and wild else math.inf
    for i, (name, points) in enumerate(curves.items()):
        if not points:
            continue
        ink = colour(i)
        axes.plot(
            [x for x, _ in points],
            [math.nan if y is None else y for _, y in points],
            color=ink,
            marker=marker(i),
            linestyle=dashes(i),
            linewidth=1.8,
            markersize=5.5,
            label=_label(name, points, top),
        )
        above = [x for x, y in points if y is not None and y > top]
        edge = axes.get_xaxis_transform()
        axes.plot(above, [0.965] * len(above), "^", color=ink, markersize=8, transform=edge)
    axes.set_ylabel(what)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    if calm and wild:
        least = min([*calm, *(y for y in wild if y <= top)])
        axes.set_ylim(least - 0.08 * (top - least), top)
    elif wild and not is_loss:
        _log_scale(axes, wild)
    axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _apart(curves: Curves, is_loss: bool) -> tuple[list[float], list[float]]:
    """Values of the runs that stay near the best, and of those that explode."""
    known = {name: [y for _, y in points if y is not None] for name, points in curves.items()}
    least = min((y for values in known.values() for y in values), default=0.0)
    bound = least + math.log(_EXPLODED) if is_loss else least * _EXPLODED
    calm = [y for values in known.values() if max(values, default=0.0) <= bound for y in values]
    wild = [y for values in known.values() if max(values, default=0.0) > bound for y in values]
    return calm, wild


def _ceiling(calm: Sequence[float], is_loss: bool) -> float:
    """Where the picture ends, so that runs that stay near the best can be told apart."""
    low, high = min(calm), max(calm)
    return high + max(0.4 * (high - low), 0.1 if is_loss else 0.1 * high)


def _label(name: str, points: Points, top: float) -> str:
    known = [y for _, y in points if y is not None]
    gaps = [short_length(x) for x, y in points if y is None]
    more = []
    if known and max(known) > top:
        more.append(f"▲ up to {_plain_number(max(known))}")
    if gaps:
        more.append(f"none at {', '.join(gaps[:3])}{', …' if len(gaps) > 3 else ''}")
    return plain(name) + (f" ({'; '.join(more)})" if more else "")


def _log_scale(axes: "Axes", values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    low, high = min(values), max(values)
    axes.set_yscale("log")
    if high / low < 100:  # powers of ten alone would be one tick or two
        ticks = [d * 10.0**k for k in range(12) for d in (1, 2, 5)]
        axes.set_yticks([tick for tick in ticks if low / 1.5 <= tick <= high * 1.5])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _plain_number(y)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(f"{axes.get_ylabel()}, log scale")


def _plain_number(value: float) -> str:
    if value < 20:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value < 1e6 else f"{value:.0e}"


def _mark(axes: "Axes", trained: int, *, early: bool) -> None:
    axes.axvline(trained, color=_TRAINED, linestyle="--", linewidth=1.2)
    axes.annotate(
        f"trained length {trained:,}",
        (trained, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, 2),
        textcoords="offset points",
        ha="left" if early else "right",
        va="bottom",
        color=_TRAINED,
        fontsize=9,
    )


def curves_figure(
    draw: Callable[["Axes", Curves, int | None], "Axes"],
    curves: Curves,
    trained_length: int | None = None,
    title: str | None = None,
    width: float = 6.4,
) -> "Figure":
    """One of the pictures above on a sheet of its own, the legend below it.

    Args:
        draw: `draw_perplexity`, `draw_final_loss` or `draw_loss_by_place`.
        curves: Points of each run.
        trained_length: Marked by a line.
        title: Above all.
        width: Inches.
    """
    figure = sheet(width, 1)
    axes = draw(figure.add_subplot(), curves, trained_length)
    names = axes.get_legend_handles_labels()[1]
    columns = max(min(int(width * 11 / (max(map(len, names), default=1) + 6)), len(names)), 1)
    figure.set_size_inches(width, 3.4 + 0.23 * -(-len(names) // columns))
    if title:
        axes.set_title(plain(title), fontsize=12, pad=18, loc="left")
    if names:
        below = (-0.12, -0.2)
        axes.legend(
            loc="upper left", bbox_to_anchor=below, ncols=columns, frameon=False, borderaxespad=0
        )
    return figure


def save_perplexity(
    path: Path, curves: Curves, trained_length: int | None = None, title: str | None = None
) -> None:
    """The picture of `draw_perplexity`, written as the suffix of `path` says (png, svg, pdf).

    Raises:
        CheckpointError: the picture cannot be written, or its suffix is unknown.
    """
    save(curves_figure(draw_perplexity, curves, trained_length, title), path)


def save_final_loss(
    path: Path, curves: Curves, trained_length: int | None = None, title: str | None = None
) -> None:
    """The picture of `draw_final_loss`, written as the suffix of `path` says (png, svg, pdf).

    Raises:
        CheckpointError: the picture cannot be written, or its suffix is unknown.
    """
    save(curves_figure(draw_final_loss, curves, trained_length, title), path)


def save_loss_by_place(
    path: Path, curves: Curves, trained_length: int | None = None, title: str | None = None
) -> None:
    """The picture of `draw_loss_by_place`, written as the suffix of `path` says (png, svg, pdf).

    Raises:
        CheckpointError: the picture cannot be written, or its suffix is unknown.
    """
    save(curves_figure(draw_loss_by_place, curves, trained_length, title), path)
