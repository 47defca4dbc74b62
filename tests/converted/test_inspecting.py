"""`inspect` says how every layer places its tokens, before and after a conversion."""

import json
from pathlib import Path
from typing import Any

import pytest

import ropepatch
from tests import tiny
from tests.converted.folders import NATIVE, converted
from tests.end_to_end.program import Run
from tests.families.small import small

ROPE, ALIBI, NONE = "RoPE", "ALiBi", "none"


def by_layer(folder: Path) -> list[str]:
    """The encoding of each layer; every layer is named exactly once."""
    groups = ropepatch.inspect(folder).encodings
    found = {layer: encoding for group, encoding in groups for layer in group.layers}
    assert len(found) == sum(len(group.layers) for group, _ in groups)
    assert sorted(found) == list(range(len(found)))
    return [found[layer] for layer in sorted(found)]


GEMMA = small("gemma3_text")
SMOL = small("smollm3")
PLAIN: dict[str, tuple[dict[str, Any], list[str]]] = {
    "llama": (tiny.V5, [ROPE] * 2),
    "llama of v4": (tiny.V4, [ROPE] * 2),
    "gemma3": (tiny.GEMMA3, [ROPE] * 2),
    "composite": (tiny.COMPOSITE, [ROPE] * 2),
    "smollm3": (
        {**SMOL, "num_hidden_layers": 8, "no_rope_layers": [1, 1, 1, 0] * 2, "layer_types": None},
        [ROPE, ROPE, ROPE, NONE] * 2,
    ),
    **{kind: ({"model_type": kind, **words}, [ALIBI] * 2) for kind, words in NATIVE.items()},
}


@pytest.mark.parametrize("name", PLAIN)
def test_before_a_conversion(name: str, tmp_path: Path) -> None:
    config, wanted = PLAIN[name]
    assert by_layer(tiny.bare_checkpoint(tmp_path / "model", config)) == wanted


FALCON_OF_ROPE = {"model_type": "falcon", **NATIVE["falcon"], "alibi": False}


def test_a_falcon_that_turns(tmp_path: Path) -> None:
    assert by_layer(tiny.bare_checkpoint(tmp_path / "model", FALCON_OF_ROPE)) == [ROPE] * 2


@pytest.mark.parametrize(("keep", "wanted"), [(0.5, [ROPE] * 2), (0.0, [NONE] * 2)])
def test_p_rope(keep: float, wanted: list[str], bare: Path) -> None:
    """Half of the pairs still turn; without any it is no position encoding."""
    recipe = {"method": "p-rope", "keep": keep}
    ropepatch.extend(bare, recipe, bare.parent / "out", verify=False)
    assert by_layer(bare.parent / "out") == wanted


CONVERTED: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (tiny.V5, {"to": "alibi"}, [ALIBI] * 2),
    (tiny.V4, {"to": "alibi", "layers": [1]}, [ROPE, ALIBI]),
    (tiny.V5, {"to": "nope"}, [NONE] * 2),
    (tiny.V5, {"to": "nope", "layers": [0]}, [NONE, ROPE]),
    (GEMMA, {"to": "alibi", "layers": "full_attention"}, [ROPE] * 5 + [ALIBI]),
    (GEMMA, {"to": "nope", "layers": "sliding_attention"}, [NONE] * 5 + [ROPE]),
    (tiny.COMPOSITE, {"to": "alibi", "keep_rope_every": 2}, [ALIBI, ROPE]),
    (PLAIN["smollm3"][0], {"to": "alibi"}, [ALIBI, ALIBI, ALIBI, NONE] * 2),
    (PLAIN["smollm3"][0], {"to": "alibi", "layers": "all"}, [ALIBI] * 8),
    (
        PLAIN["smollm3"][0],
        {"to": "alibi", "layers": "3,4"},
        [ROPE, ROPE, ROPE, ALIBI, ALIBI, ROPE, ROPE, NONE],
    ),
    ({"model_type": "bloom", **NATIVE["bloom"]}, {"to": "alibi", "factor": 2}, [ALIBI] * 2),
]


@pytest.mark.parametrize(("config", "words", "wanted"), CONVERTED, ids=range(len(CONVERTED)))
def test_after_a_conversion(
    config: dict[str, Any], words: dict[str, Any], wanted: list[str], tmp_path: Path
) -> None:
    folder = converted(tiny.bare_checkpoint(tmp_path / "model", config), **words, verify=False)
    assert by_layer(folder) == wanted
    stamp = ropepatch.inspect(folder).conversion
    if stamp is None:  # in transformers' own words
        assert words == {"to": "nope"}
    else:
        assert ropepatch.ConversionRecipe.from_words(stamp["conversion"]) == (
            ropepatch.ConversionRecipe.from_words(words)
        )


def test_windows_stay(tmp_path: Path) -> None:
    folder = converted(tiny.bare_checkpoint(tmp_path / "model", GEMMA), to="alibi", verify=False)
    found = {g.layer_type: (g.window, e) for g, e in ropepatch.inspect(folder).encodings}
    assert found == {
        "sliding_attention": (GEMMA["sliding_window"], ALIBI),
        "full_attention": (None, ALIBI),
    }


def test_the_length_it_was_trained_on(bare: Path) -> None:
    folder = converted(bare, to="alibi", factor=4, verify=False)
    found = ropepatch.inspect(folder)
    assert found.conversion is not None
    assert found.conversion["trained_length"] == tiny.TRAINED
    assert found.conversion["target_length"] == 4 * tiny.TRAINED
    assert found.layout.trained_length == tiny.TRAINED


# --- the program ----------------------------------------------------------------------------------


def test_json(bare: Path, run: Run) -> None:
    folder = converted(bare, to="alibi", layers=[1], verify=False)
    answer = run("inspect", folder, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert [(g["layers"], g["encoding"]) for g in answer.json["encodings"]] == [
        ([1], ALIBI),
        ([0], ROPE),
    ]
    assert answer.json["conversion"]["conversion"] == {"to": "alibi", "layers": [1]}
    assert answer.json["ropepatch"] is None


def test_json_of_its_own_biases(tmp_path: Path, run: Run) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "model", {"model_type": "mpt", **NATIVE["mpt"]})
    answer = run("inspect", folder, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.dumps(answer.json["encodings"]) == json.dumps(
        [
            {
                "layer_type": "full_attention",
                "layers": [0, 1],
                "window": None,
                "encoding": ALIBI,
            }
        ]
    )


@pytest.mark.parametrize(
    ("words", "said", "unsaid"),
    [
        (None, ["RoPE"], ["ALiBi"]),
        ({"to": "alibi"}, ["ALiBi", "converted by ropepatch: to alibi"], []),
        ({"to": "alibi", "layers": [0]}, ["ALiBi", "RoPE", "layers [0]"], []),
        ({"to": "nope", "layers": [0]}, ["none", "RoPE"], ["ALiBi"]),
        ({"to": "nope"}, ["none", "converted by ropepatch: nope"], ["ALiBi", "p-rope"]),
    ],
    ids=str,
)
def test_text(
    words: dict[str, Any] | None, said: list[str], unsaid: list[str], bare: Path, run: Run
) -> None:
    folder = bare if words is None else converted(bare, **words, verify=False)
    answer = run("inspect", folder)
    assert (answer.code, answer.err) == (0, "")
    found = answer.out.partition("extend --method")[0]
    for word in said:
        assert word in found
    for word in unsaid:
        assert word not in found


@pytest.mark.parametrize("method", ["yarn", "pi"])
def test_what_extending_it_would_do_is_refused_by_name(method: str, bare: Path, run: Run) -> None:
    folder = converted(bare, to="alibi", verify=False)
    words = ("inspect", folder, "--method", method, "--factor", "2")
    answer = run(*words, "--json")
    assert answer.code == 0, answer.err
    assert "converted" in answer.json["extend"][method]["refused"]
    assert "alibi" in answer.json["extend"][method]["refused"]
    shown = run(*words)
    assert f"extend --method {method} is refused" in shown.out
