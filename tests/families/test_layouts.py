"""What a config.json of each family means, against numbers by hand and against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from ropepatch.config_json.layout import Layout, Schedule, read_layout
from ropepatch.model.skeleton import quiet
from tests.families.built import skeleton
from tests.families.layouts import LAYOUTS, Layers, Turn
from tests.families.shapes import SHAPES
from tests.families.shapes_plain import Shape
from tests.families.tiny import tiny

every_shape = pytest.mark.parametrize("name", SHAPES)


def test_every_shape_has_an_expectation() -> None:
    assert LAYOUTS.keys() == SHAPES.keys()


@every_shape
def test_lengths_and_dialect(name: str) -> None:
    layout, expected = read_layout(SHAPES[name]), LAYOUTS[name]
    assert layout.trained_length == expected.trained
    assert layout.trained_length_known
    assert layout.configured_length == (expected.configured or expected.trained)
    assert (layout.dialect, layout.path) == (expected.dialect, expected.path)


@every_shape
def test_layers(name: str) -> None:
    layout, expected = read_layout(SHAPES[name]), LAYOUTS[name]
    found = [Layers(len(g.layers), g.layer_type, g.window, g.rotates) for g in layout.groups]
    assert tuple(found) == expected.layers
    nested = list(expected.turns) != [""]
    assert [g.label for g in layout.groups] == [
        g.layer_type if nested else "" for g in layout.groups
    ]


@every_shape
def test_schedules(name: str) -> None:
    layout, expected = read_layout(SHAPES[name]), LAYOUTS[name]
    assert {label: as_turn(s, layout) for label, s in layout.schedules.items()} == expected.turns


def as_turn(schedule: Schedule, layout: Layout) -> Turn:
    geometry, method = schedule.geometry, schedule.method
    assert geometry.trained_length == layout.trained_length
    beyond = schedule.frequencies(layout.trained_length + 1)
    return Turn(
        head_dim=geometry.head_dim,
        theta=geometry.theta,
        rotary_dim=geometry.rotary_dim if geometry.rotary_dim != geometry.head_dim else None,
        turning=geometry.turning if geometry.turning != geometry.pairs else None,
        method=method.name if method else None,
        factor=method.factor if method else 1.0,
        attention=beyond.attention_factor,
    )


@every_shape
def test_transformers_turns_by_the_same_frequencies(name: str) -> None:
    small = tiny(SHAPES[name])
    layout, found = read_layout(small), skeleton(small)
    assert found.rotary.keys() == layout.schedules.keys()
    trained = layout.trained_length
    for label, schedule in layout.schedules.items():
        loose = schedule.method is not None and schedule.method.float32_tolerance > 1e-6
        tolerance = 5e-6 if loose or schedule.block.get("truncate") is False else 1e-6
        for length in (trained, trained + 1, 4 * trained, 64 * trained):
            ours, theirs = schedule.frequencies(length), found.frequencies(label, length)
            assert theirs.inv_freq == pytest.approx(ours.inv_freq, rel=tolerance, abs=0)
            assert theirs.attention_factor == pytest.approx(ours.attention_factor, rel=1e-6)


@every_shape
def test_making_it_tiny_leaves_the_positions(name: str) -> None:
    whole, small = read_layout(SHAPES[name]), read_layout(tiny(SHAPES[name]))
    assert small.schedules == whole.schedules
    assert {(g.layer_type, g.window, g.rotates) for g in small.groups} == {
        (g.layer_type, g.window, g.rotates) for g in whole.groups
    }


@every_shape
def test_transformers_sees_the_same_layers(name: str, tmp_path: Path) -> None:
    text = text_config_of(SHAPES[name], tmp_path)
    layout = read_layout(SHAPES[name])
    assert text.num_hidden_layers == layout.layer_count
    kinds = {index: g.layer_type for g in layout.groups for index in g.layers}
    if getattr(text, "layer_types", None):
        assert text.layer_types == [kinds[i] for i in range(layout.layer_count)]
    turning = {index: g.rotates for g in layout.groups for index in g.layers}
    if getattr(text, "no_rope_layers", None):
        assert [bool(f) for f in text.no_rope_layers] == [turning[i] for i in sorted(turning)]
    windows = {g.window for g in layout.groups if "sliding" in g.layer_type}
    assert windows <= {getattr(text, "sliding_window", None)}
    assert text.max_position_embeddings == layout.configured_length


def text_config_of(shape: Shape, folder: Path) -> Any:
    (folder / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    with quiet():
        return AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
