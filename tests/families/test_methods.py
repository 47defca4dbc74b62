"""Every family under every method: it works and is proven, or it is refused by name."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropepatch.config_json.plan import POSITION_KEYS, STAMP, erase_recipe
from ropepatch.config_json.write import AskedDialect, Change, write_recipe
from ropepatch.errors import AlreadyScaledError, NotExpressibleError
from ropepatch.methods.table import METHODS
from ropepatch.model import proof
from ropepatch.recipe import Recipe
from tests.families.built import skeleton
from tests.families.layouts import LAYOUTS
from tests.families.outcomes import (
    FORCED,
    OUTCOMES,
    SCALED,
    V4_WORDS,
    WINDOWED,
    Outcome,
    parameters,
)
from tests.families.shapes import SHAPES
from tests.families.shapes_plain import Shape
from tests.families.tiny import tiny


@pytest.fixture(autouse=True)
def build_each_original_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "skeleton_of_config", skeleton)


TWINS = {"llama-3-8b", "qwen2-7b", "qwen2.5-7b-instruct", "smollm2-135m", "olmo-2-7b"}
"""They differ from another shape by numbers alone."""


def marks(name: str, method: str) -> Any:
    """Twins and files in version 5's words take one method always, and the others if asked."""
    again = name in TWINS or name.endswith("-v5")
    return pytest.mark.slow if again and method != "yarn" else ()


def rows(table: dict[str, dict[str, Outcome]], layers: str) -> list[Any]:
    return [
        pytest.param(
            name,
            method,
            layers,
            outcome,
            id=f"{name}-{method}-{layers}",
            marks=marks(name, method) if outcome is None else (),
        )
        for name, row in table.items()
        for method, outcome in row.items()
    ]


def recipe(name: str, method: str, layers: str = "auto") -> Recipe:
    """Over the head that the recipe will meet: the global layers', where there are two."""
    turns = LAYOUTS[name].turns
    turn = turns.get("full_attention") or turns[""]
    pairs = (turn.rotary_dim or turn.head_dim) // 2
    return Recipe.named(method, layers=layers, **parameters(method, pairs))


def prove(change: Change, folder: Path) -> proof.Proof:
    """From a folder with nothing but the config.json."""
    (folder / "config.json").write_text(json.dumps(change.after), encoding="utf-8")
    return proof.prove(folder, change.before, change.layout, change.methods, change.target_length)


def text_of(config: Shape) -> Shape:
    text: Shape = config.get("text_config", config)
    return text


def test_the_tables_are_whole() -> None:
    assert OUTCOMES.keys() == SHAPES.keys()
    assert all(row.keys() == METHODS.keys() for row in (*OUTCOMES.values(), *FORCED.values()))


@pytest.mark.parametrize(
    ("name", "method", "layers", "outcome"), [*rows(OUTCOMES, "auto"), *rows(FORCED, "all")]
)
def test_outcome(name: str, method: str, layers: str, outcome: Outcome, tmp_path: Path) -> None:
    before = tiny(SHAPES[name])
    asked = recipe(name, method, layers)
    if outcome is not None:
        with pytest.raises(outcome.error, match=re.escape(outcome.word)):
            write_recipe(before, asked, replace=True)
        return
    change = write_recipe(before, asked, replace=True)
    assert erase_recipe(change.after) == before
    found = prove(change, tmp_path)
    only_what_was_asked(change, found, layers)


def only_what_was_asked(change: Change, found: proof.Proof, layers: str) -> None:
    before, after = change.before, {k: v for k, v in change.after.items() if k != STAMP}
    assert others(before) == others(after)
    labels = change.layout.schedules.keys()
    nested = "" not in labels
    assert set(change.methods) == ({"full_attention"} if nested and layers == "auto" else labels)
    changed = [s for s in found.schedules if s.method]
    assert {s.label for s in changed} == set(change.methods)
    assert found.layers_changed == sum(s.layers for s in changed) > 0
    expected = [g for g in change.layout.groups if g.rotates and g.label in change.methods]
    assert found.layers_changed == sum(len(g.layers) for g in expected)
    for block in blocks_of(text_of(after)):
        assert not {"type", "rope_type"} <= block.keys()  # readers differ on which one counts
        assert "rope_theta" not in block or block["rope_theta"] is not None


def others(config: Shape) -> Shape:
    """What a recipe has no business with."""
    rest = {k: v for k, v in config.items() if k not in POSITION_KEYS}
    if "text_config" in config:
        rest["text_config"] = {
            k: v for k, v in config["text_config"].items() if k not in POSITION_KEYS
        }
    return rest


def blocks_of(text: Shape) -> Iterator[Shape]:
    for key in ("rope_parameters", "rope_scaling"):
        block = text.get(key) or {}
        yield block
        yield from (part for part in block.values() if isinstance(part, dict))


def in_dialects() -> list[Any]:
    """The methods that take different paths through the words."""
    return [
        pytest.param(name, method, layers, id=f"{name}-{method}", marks=marks(name, method))
        for name, table, layers in (
            (name, FORCED, "all") if row is WINDOWED else (name, OUTCOMES, "auto")
            for name, row in OUTCOMES.items()
        )
        for method in ("yarn", "ntk", "longrope", "p-rope")
        if name in table and table[name][method] is None
    ]


@pytest.mark.parametrize(("name", "method", "layers"), in_dialects())
def test_every_dialect_is_proven_or_refused(
    name: str, method: str, layers: str, tmp_path: Path
) -> None:
    before = tiny(SHAPES[name])
    asked = recipe(name, method, layers)
    proven = write_recipe(before, asked, replace=True).after  # by test_outcome
    dialects: tuple[AskedDialect, ...] = ("v4", "v5", "both")
    for dialect in dialects:
        no_words = V4_WORDS.get(method) or V4_WORDS.get(name)
        if no_words and dialect != "v5":
            with pytest.raises(no_words.error, match=re.escape(no_words.word)):
                write_recipe(before, asked, replace=True, dialect=dialect)
            continue
        change = write_recipe(before, asked, replace=True, dialect=dialect)
        assert erase_recipe(change.after) == before
        assert spoken(text_of(change.after)) == dialect
        if change.after != proven:
            only_what_was_asked(change, prove(change, tmp_path), layers)


def spoken(text: Shape) -> str:
    new, old = "rope_parameters" in text, "rope_scaling" in text
    return "both" if new and old else "v5" if new else "v4"


@pytest.mark.parametrize("name", ["gemma-3-1b", "gemma-3-4b-v5", "olmo-3-7b"])
def test_version_4_can_scale_only_the_global_layers(name: str) -> None:
    asked = recipe(name, "yarn", "all")
    for dialect in ("v4", "both"):
        with pytest.raises(NotExpressibleError, match="can scale only full_attention"):
            write_recipe(SHAPES[name], asked, replace=True, dialect=dialect)


def test_version_4_of_phi_has_no_attention_factor() -> None:
    words = parameters("longrope", 48) | {"attention_factor": 1.25}
    asked = Recipe.named("longrope", **words)
    with pytest.raises(NotExpressibleError, match="no attention_factor"):
        write_recipe(SHAPES["phi-3-mini-128k"], asked, replace=True, dialect="v4")


@pytest.mark.parametrize("name", SCALED)
def test_what_is_scaled_already_is_not_scaled_again_unasked(name: str) -> None:
    method = "longrope" if name.startswith("phi") else "ntk"
    with pytest.raises(AlreadyScaledError, match="already scaled"):
        write_recipe(SHAPES[name], recipe(name, method))


@pytest.mark.parametrize("name", [name for name in OUTCOMES if name not in SCALED])
def test_what_is_not_scaled_needs_no_leave(name: str) -> None:
    layers = "all" if OUTCOMES[name] is WINDOWED else "auto"
    replace = name.startswith("llama-4")  # scaled, on layers that only `all` reaches
    change = write_recipe(SHAPES[name], recipe(name, "ntk", layers), replace=replace)
    assert change.target_length == 4 * LAYOUTS[name].trained


SURVIVORS = [
    ("qwen2.5-vl-7b", "mrope_section", [16, 24, 24]),
    ("qwen2.5-vl-7b-v5", "mrope_section", [16, 24, 24]),
    ("ministral-3-8b", "llama_4_scaling_beta", 0.1),
    ("ministral-3-8b", "original_max_position_embeddings", 16384),
    ("stablelm-2-1.6b", "partial_rotary_factor", 0.25),
    ("pythia-1.4b", "partial_rotary_factor", 0.25),
    ("glm-4-9b-0414", "partial_rotary_factor", 0.5),
]
"""Keys of a block that are no scaling's."""


@pytest.mark.parametrize(
    ("name", "key", "value", "method"),
    [
        (*row, method)
        for row in SURVIVORS
        for method, outcome in OUTCOMES[row[0]].items()
        if outcome is None
    ],
)
def test_keys_nobody_asked_about_survive(name: str, key: str, value: Any, method: str) -> None:
    asked = recipe(name, method)
    change = write_recipe(SHAPES[name], asked, replace=True, dialect="v5")
    assert text_of(change.after)["rope_parameters"][key] == value
    as_found = write_recipe(SHAPES[name], asked, replace=True)
    text = text_of(as_found.after)
    words = [{"partial_rotary_factor": text.get("rotary_pct")}, text, *blocks_of(text)]
    assert any(part.get(key) == value for part in words)
