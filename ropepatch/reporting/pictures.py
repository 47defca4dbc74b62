"""The pictures of a report."""

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropepatch.evaluate.measures import LengthLoss, PerplexitySummary, Tally
from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.plots.canvas import colour, plain, png
from ropepatch.plots.curves import (
    curves_figure,
    draw_final_loss,
    draw_loss_by_place,
    draw_perplexity,
)
from ropepatch.plots.heat_map import heat_maps
from ropepatch.plots.wavelengths import wavelengths_figure
from ropepatch.reporting.collect import Subject
from ropepatch.reporting.headline import shared_trained_length

if TYPE_CHECKING:
    from ropepatch.plots.curves import Curves

_WIDTH = 4.8
"""Inches of a picture that stands alone on a telephone."""


@dataclass(frozen=True)
class Picture:
    """One figure of the page."""

    name: str
    """Of the file, without suffix."""
    title: str
    caption: str
    wide: bytes
    """A PNG."""
    narrow: bytes | None = None
    """The same for a telephone, where the wide one would be too small to read."""
    whole_width: bool = False

    @property
    def wide_uri(self) -> str:
        """For the page."""
        return _uri(self.wide)

    @property
    def narrow_uri(self) -> str | None:
        """For the page."""
        return None if self.narrow is None else _uri(self.narrow)


def _uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"


def draw_all(subjects: Sequence[Subject]) -> list[Picture]:
    """All that the measurements give rise to."""
    return [*_heat_maps(subjects), *_curves(subjects), *_wavelengths(subjects)]


def _heat_maps(subjects: Sequence[Subject]) -> Iterator[Picture]:
    """One picture a task, the runs side by side, each with its own trained length."""
    tasks = dict.fromkeys(g.task for s in subjects if s.needle for g in s.needle.grids)
    for task in tasks:
        grids = {
            s.label: (grid, s.trained_length)
            for s in subjects
            if s.needle
            for grid in s.needle.grids
            if grid.task == task
        }
        yield Picture(
            f"needle-{_file_name(task)}",
            f"Needles found: {task}",
            "Share of trials answered in full, by length and by how deep in the text the needle "
            "lies. Hatched: failed. Pale: not measured.",
            png(heat_maps(grids)),
            png(heat_maps(grids, columns=1)) if len(grids) > 1 else None,
            whole_width=len(grids) > 1,
        )


def _curves(subjects: Sequence[Subject]) -> Iterator[Picture]:
    trained = shared_trained_length(subjects)
    read = {s.label: s.perplexity for s in subjects}
    by_length = _points(read, lambda row: row.whole, perplexity=True)
    if any(by_length.values()):
        yield Picture(
            "perplexity",
            "Perplexity by length",
            "Over all tokens of the first so many. It falls with length also where far context is "
            "ignored, for more of the tokens have some context: compare runs, not lengths.",
            png(curves_figure(draw_perplexity, by_length, trained, width=_WIDTH)),
        )
    final = _points(read, lambda row: row.final)
    if any(final.values()):
        yield Picture(
            "final-tokens",
            "Loss on the same last tokens",
            "The tokens scored stay the same, only the text before them grows. A curve that falls "
            "shows that far context helps; one that rises, that it harms.",
            png(curves_figure(draw_final_loss, final, trained, width=_WIDTH)),
        )
    places: dict[str, list[tuple[float, float | None]]] = {
        label: [((p.start + p.stop) / 2, p.tally.loss) for p in found.places if p.tally.tokens]
        if found
        else []
        for label, found in read.items()
    }
    if any(places.values()):
        yield Picture(
            "loss-by-place",
            "Loss by place",
            "Mean loss of the tokens in each part of the longest window.",
            png(curves_figure(draw_loss_by_place, places, trained, width=_WIDTH)),
        )
    sliding = _points(read, lambda row: row.sliding, perplexity=True)
    if any(sliding.values()):
        yield Picture(
            "sliding-perplexity",
            "Perplexity by sliding window",
            "The whole text under each length: a window of that many tokens slides over it.",
            png(curves_figure(draw_perplexity, sliding, trained, width=_WIDTH)),
        )


def _points(
    read: Mapping[str, PerplexitySummary | None],
    of: Callable[[LengthLoss], Tally | None],
    *,
    perplexity: bool = False,
) -> "Curves":
    found: dict[str, list[tuple[float, float | None]]] = {}
    for label, summary in read.items():
        rows = [(row.length, of(row)) for row in summary.by_length] if summary else []
        found[label] = [
            (length, tally.perplexity if perplexity else tally.loss)
            for length, tally in rows
            if tally is not None
        ]
    return found


def _wavelengths(subjects: Sequence[Subject]) -> Iterator[Picture]:
    """One picture for all that share a schedule and its geometry."""
    groups: dict[tuple[str, RotaryGeometry], list[tuple[int, Subject]]] = {}
    for i, subject in enumerate(subjects):
        for name, schedule in subject.schedules.items():
            groups.setdefault((name, schedule.geometry), []).append((i, subject))
    for number, ((name, geometry), members) in enumerate(groups.items(), 1):
        base = plain(f"pretrained (θ = {geometry.theta:g})")
        curves: dict[str, Frequencies] = {base: members[0][1].schedules[name].base}
        colours: dict[str, str] = {}
        targets: set[int] = set()
        for i, subject in members:
            schedule = subject.schedules[name]
            if schedule.now.inv_freq == schedule.base.inv_freq:
                continue
            curves[plain(subject.label)] = schedule.now
            colours[plain(subject.label)] = colour(i)
            if subject.target_length is not None:
                targets.add(subject.target_length)
        target = targets.pop() if len(targets) == 1 else None
        figure = wavelengths_figure({"": (geometry, curves, target)}, colours, (_WIDTH, 3.9))
        yield Picture(
            f"wavelengths-{number}" if len(groups) > 1 else "wavelengths",
            f"Wavelengths{f': {name}' if name else ''}",
            "Tokens per turn of each pair of features. Pairs above the line of the trained length "
            "never completed a turn in pretraining.",
            png(figure),
        )


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-") or "task"
