"""Pictures show what they are given; looked up in matplotlib's own objects."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ropepatch.errors import CheckpointError
from ropepatch.evaluate.measures import NeedleGrid
from ropepatch.evaluate.summaries import needle_summary
from ropepatch.geometry import RotaryGeometry
from ropepatch.plots import (
    draw_final_loss,
    draw_heat_map,
    draw_loss_by_place,
    draw_perplexity,
    draw_wavelengths,
    save_final_loss,
    save_heat_maps,
    save_loss_by_place,
    save_perplexity,
    save_wavelengths,
)
from ropepatch.plots.canvas import COLOURS, plain, png, short_length
from ropepatch.plots.curves import curves_figure
from ropepatch.plots.heat_map import heat_maps

LENGTHS = (4096, 8192, 16384)
DEPTHS = (0.0, 50.0, 100.0)
EXACT = ((1, 1, 1), (1, 0, None), (1, 0, 0))
"""By depth, then length; None failed."""


def grid(lengths: tuple[int, ...] = LENGTHS) -> NeedleGrid:
    records: list[dict[str, Any]] = []
    for depth, row in zip(DEPTHS, EXACT, strict=True):
        for length, exact in zip(lengths, row, strict=True):
            score = {"failed": "out of memory"} if exact is None else {"exact": exact}
            place = {"task": "niah_single", "length": length, "depth": depth, "trial": 0}
            records.append(place | score)
    return needle_summary(records).grids[0]


@pytest.fixture
def axes() -> Axes:
    return Figure().add_subplot()


def trained_line(axes: Axes) -> float:
    (line,) = [line for line in axes.lines if len(line.get_xdata()) == 2]  # type: ignore[arg-type]
    return float(np.asarray(line.get_xdata())[0])


def words(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_cells_have_the_colour_of_their_value(axes: Axes) -> None:
    image = draw_heat_map(axes, grid())
    shown = image.get_array()
    assert shown is not None
    expected = [[1, 1, 1], [1, 0, math.nan], [1, 0, 0]]  # rows are depths, the first on top
    np.testing.assert_array_equal(np.ma.filled(shown.astype(float), math.nan), expected)
    assert image.get_clim() == (0, 1)
    assert image.get_cmap().name == "cividis"
    bottom, top = axes.get_ylim()
    assert bottom > top
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0%", "50%", "100%"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4k", "8k", "16k"]


def test_values_are_written_in_ink_that_shows(axes: Axes) -> None:
    draw_heat_map(axes, grid())
    written = {text.get_position(): text for text in axes.texts}
    assert written[0, 0].get_text() == "1"
    assert written[0, 0].get_color() == "black"
    assert written[1, 1].get_text() == "0"
    assert written[1, 1].get_color() == "white"
    assert (2, 1) not in written


def test_only_failed_cells_are_hatched(axes: Axes) -> None:
    draw_heat_map(axes, grid())
    patches = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [patch.get_xy() for patch in patches] == [(1.5, 0.5)]
    assert patches[0].get_hatch()


def test_large_grids_have_no_numbers_in_them(axes: Axes) -> None:
    plan = {"tasks": ["a"], "lengths": range(1, 40), "depths": [0.0]}
    draw_heat_map(axes, needle_summary([], plan).grids[0])
    assert words(axes) == []


@pytest.mark.parametrize(
    ("trained", "where"),
    [(2048, -0.5), (4096, 0.5), (6000, 0.5), (8192, 1.5), (16384, 2.5)],
)
def test_the_trained_length_is_a_line_between_columns(
    axes: Axes, trained: int, where: float
) -> None:
    draw_heat_map(axes, grid(), trained)
    assert trained_line(axes) == where
    assert f"trained length {trained:,}" in words(axes)


def test_a_trained_length_beyond_all_is_told_without_a_line(axes: Axes) -> None:
    draw_heat_map(axes, grid(), 131072)
    assert len(axes.lines) == 0
    assert "trained length 131,072" in words(axes)


def test_runs_stand_side_by_side_with_one_bar() -> None:
    figure = heat_maps({"none": (grid(), 8192), "yarn ×4": (grid(), 8192)})
    one, two, bar = figure.axes
    assert (one.get_title(), two.get_title()) == ("none", "yarn ×4")
    assert bar.get_ylabel() == "share found"
    assert one.get_position().y0 == two.get_position().y0
    png(figure)


def test_perplexity_by_length(axes: Axes) -> None:
    draw_perplexity(axes, {"none": [(4096, 8.0), (8192, 7.0)], "pi": [(4096, 9.0)]}, 8192)
    assert axes.get_xscale() == "log"
    assert axes.get_yscale() == "linear"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4k", "8k"]
    none, pi = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    assert list(np.asarray(none.get_ydata())) == [8.0, 7.0]
    assert (none.get_color(), pi.get_color()) == COLOURS[:2]
    assert none.get_marker() != pi.get_marker()
    assert "trained length 8,192" in words(axes)


def test_a_run_that_explodes_is_cut_off_and_says_so(axes: Axes) -> None:
    draw_perplexity(axes, {"none": [(4096, 8.0), (8192, 4000.0)], "pi": [(4096, 9.0), (8192, 8.5)]})
    assert 9 < axes.get_ylim()[1] < 12
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["none (▲ up to 4,000)", "pi"]
    marks = [line for line in axes.lines if line.get_marker() == "^" and len(line.get_xdata())]  # type: ignore[arg-type]
    assert [list(np.asarray(mark.get_xdata())) for mark in marks] == [[8192]]


def test_where_all_explode_the_scale_is_logarithmic(axes: Axes) -> None:
    draw_perplexity(axes, {"none": [(4096, 8.0), (8192, 4000.0)]})
    assert axes.get_yscale() == "log"
    assert "log scale" in axes.get_ylabel()


def test_what_has_no_number_is_a_gap_with_a_word(axes: Axes) -> None:
    draw_final_loss(axes, {"none": [(4096, 2.0), (8192, None)], "pi": []})
    assert axes.get_legend_handles_labels()[1] == ["none (none at 8k)"]
    assert math.isnan(float(np.asarray(axes.lines[0].get_ydata())[1]))


def test_a_run_without_points_keeps_its_colour(axes: Axes) -> None:
    draw_perplexity(axes, {"none": [], "pi": [(4096, 9.0)]})
    assert axes.get_legend_handles_labels()[0][0].get_color() == COLOURS[1]  # type: ignore[attr-defined]


def test_loss_by_place_runs_along_the_window(axes: Axes) -> None:
    draw_loss_by_place(axes, {"none": [(1024.0, 3.0), (3072.0, 2.5)]}, 2048)
    assert axes.get_xscale() == "linear"
    assert "trained length 2,048" in words(axes)
    assert [list(np.asarray(line.get_xdata())) for line in axes.lines[-1:]] == [[2048, 2048]]


def test_ticks_have_room() -> None:
    lengths = [4096, 8192, 12000, 16384, 98304, 131072]
    figure = curves_figure(draw_perplexity, {"a": [(n, 2.0) for n in lengths]}, width=4.8)
    figure.draw_without_rendering()
    labels = figure.axes[0].get_xticklabels()
    boxes = [label.get_window_extent() for label in labels]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    assert (labels[0].get_text(), labels[-1].get_text()) == ("4k", "128k")


def test_the_legend_has_room() -> None:
    curves = {"none": [(4096, 2.0), (8192, 6.85)], "yarn ×4": [(4096, 2.0)], "pi": [(4096, 2.1)]}
    figure = curves_figure(draw_final_loss, curves, 8192, width=4.8)
    figure.draw_without_rendering()
    legend = figure.axes[0].get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_names_are_no_formulas_and_stay_in_the_legend(axes: Axes) -> None:
    draw_perplexity(axes, {"_x$^{$": [(4096, 9.0)]})
    assert axes.get_legend_handles_labels()[1] == [r" _x\$^{\$"]
    assert len(plain("a" * 100 + "z")) == 40
    assert plain("a" * 100 + "z").endswith("z")


def test_lengths_as_people_say_them() -> None:
    assert [short_length(n) for n in (4096, 131072, 2**20, 1000, 1536)] == [
        "4k",
        "128k",
        "1m",
        "1,000",
        "1,536",
    ]


def test_wavelengths_keep_a_colour_they_are_given(axes: Axes) -> None:
    geometry = RotaryGeometry(8, 8, 10000.0, 256)
    curves = {"base": geometry.base_frequencies(), "pi": geometry.base_frequencies()}
    draw_wavelengths(axes, geometry, curves, colours={"pi": COLOURS[3]})
    shown = {str(line.get_label()): line.get_color() for line in axes.lines}
    assert (shown["base"], shown["pi"]) == ("black", COLOURS[3])


def test_all_are_saved(tmp_path: Path) -> None:
    geometry = RotaryGeometry(8, 8, 10000.0, 256)
    curves = {"a": [(4096, 2.0), (8192, 1.5)]}
    save_heat_maps(tmp_path / "heat.png", {"a": (grid(), 8192)}, title="niah")
    save_perplexity(tmp_path / "perplexity.svg", curves, 8192, "books")
    save_final_loss(tmp_path / "final.pdf", curves, 8192)
    save_loss_by_place(tmp_path / "places.png", curves)
    save_wavelengths(
        tmp_path / "waves.png", {"": (geometry, {"a": geometry.base_frequencies()}, 1)}
    )
    assert (tmp_path / "heat.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 5


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^cannot write the picture .*nowhere.*\.$"):
        save_heat_maps(tmp_path / "nowhere" / "heat.png", {"a": (grid(), None)})
    with pytest.raises(CheckpointError, match="cannot write the picture"):
        save_heat_maps(tmp_path / "heat.docx", {"a": (grid(), None)})


def test_a_script_that_the_font_lacks_is_no_warning() -> None:
    assert png(heat_maps({"模型": (grid(), None)}))
