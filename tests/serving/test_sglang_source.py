"""What SGLang's own code makes of what it is told, against the method's formula in float64.

Measured with SGLang 0.5.23 and transformers 5.24.0: at most 4.3e-5, which is what a float32 angle
of 1,023 radians is off by.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ropepatch.exporting import export
from tests.serving.engines.sglang import SGLang
from tests.serving.engines.source import source_of
from tests.serving.folders import (
    FOREIGN_YARN,
    LLAMA,
    LONG,
    SHORT,
    TARGET,
    converted,
    distance,
    expected,
    extended,
    found,
    refusal,
    scaled,
    unscaled,
)
from tests.tiny import GEMMA3, TRAINED, V5

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
WRONG = 0.04
"""What any of the faults below comes to, at the least."""
WIDE = {**V5, "num_key_value_heads": 2}

RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "yarn": ("yarn", {}),
    "yarn, a fraction": ("yarn", {"factor": 3.3}),
    "yarn, attention 1.3": ("yarn", {"attention_factor": 1.3}),
    "yarn, attention 1": ("yarn", {"attention_factor": 1.0}),
    "yarn, attention 0.9": ("yarn", {"attention_factor": 0.9}),
    "yarn, mscale": ("yarn", {"mscale": 0.707, "mscale_all_dim": 1.0}),
    "yarn, another ramp": ("yarn", {"beta_fast": 16.0, "beta_slow": 2.0}),
    "yarn, no rounding": ("yarn", {"truncate": False}),
    "pi": ("pi", {}),
    "ntk": ("ntk", {}),
    "ntk-by-parts": ("ntk-by-parts", {}),
    "llama3": ("llama3", {}),
    "longrope": ("longrope", {}),
    "longrope, attention 1.1": ("longrope", {"attention_factor": 1.1}),
    "p-rope": ("p-rope", {}),
    "p-rope, a quarter": ("p-rope", {"keep": 0.25}),
}
LAYERS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "qwen3": ("Qwen3ForCausalLM", "qwen3.Qwen3DecoderLayer", {}, {}),
    "olmo2": ("Olmo2ForCausalLM", "olmo2.Olmo2DecoderLayer", {}, {"layer_id": 0}),
    "mixtral": ("MixtralForCausalLM", "mixtral.MixtralDecoderLayer", {}, {}),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        "starcoder2.Starcoder2DecoderLayer",
        {},
        {"layer_id": 0},
    ),
    "exaone4": (
        "Exaone4ForCausalLM",
        "exaone4.Exaone4DecoderLayer",
        {
            "sliding_window": None,
            "sliding_window_pattern": "LG",
            "layer_types": ["full_attention"] * 2,
        },
        {"layer_id": 0},
    ),
    "olmo3": (
        "Olmo3ForCausalLM",
        "olmo2.Olmo2DecoderLayer",
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64},
        {"layer_id": 1},
    ),
}
"""Architecture, layer class, words of the config, arguments of the layer."""
REFUSED = {
    **dict.fromkeys(("mixtral", "starcoder2"), ("yarn", "pi")),
    **dict.fromkeys(("exaone4", "olmo3"), ("yarn", "pi", "ntk")),
}
"""Methods that are not exported for a class."""


@pytest.fixture(scope="module")
def sglang() -> Iterator[SGLang]:
    engine = SGLang(source_of("sglang"))
    yield engine
    engine.close()


def served(sglang: SGLang, folder: Path, base: Path, trained: int | None = None) -> tuple[int, Any]:
    """Length and table of a folder, or of its original, as it is exported."""
    done = export(folder, "sglang", original=base != folder, trained_length=trained)
    config = sglang.config(base, done.words.overrides)
    length = sglang.length(config, done.target_length)
    assert length == done.target_length
    return length, sglang.table(config, torch.arange(length), length)


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dialect", ["v4", "v5", "both"])
def test_a_llama(tmp_path: Path, sglang: SGLang, dialect: str, name: str, original: bool) -> None:
    method, words = RECIPES[name]
    if method == "p-rope" and dialect != "v5":
        pytest.skip("transformers 4 has no word for it")
    folder = extended(tmp_path, method, dialect=dialect, **words)
    length, table = served(sglang, folder, tmp_path / "model" if original else folder)
    worst = distance(table, expected(method, torch.arange(length), **words))
    print(f"sglang {name} ({dialect}, original {original}): {worst:.1e}")
    assert worst < TOLERANCE


def test_longrope_is_short_for_short_inputs(tmp_path: Path, sglang: SGLang) -> None:
    rows = torch.arange(TRAINED)
    config = sglang.config(extended(tmp_path, "longrope"))
    table = sglang.table(config, rows, TARGET)
    assert distance(table, expected("longrope", rows)) < TOLERANCE


@pytest.mark.parametrize("method", ["yarn", "ntk", "pi"])
@pytest.mark.parametrize("kind", LAYERS)
def test_another_class(tmp_path: Path, sglang: SGLang, kind: str, method: str) -> None:
    """Either a class turns by what it is told, or the export is refused."""
    architecture, layer, words, arguments = LAYERS[kind]
    config = {**WIDE, "model_type": kind, "architectures": [architecture], **words}
    if kind == "olmo3":
        block = {"rope_type": "default", "rope_theta": 10000.0}
        config["rope_parameters"] = {"full_attention": block, "sliding_attention": block}
    folder = extended(tmp_path, method, config)
    rows = torch.arange(TARGET)
    read = sglang.config(folder)
    refused = method in REFUSED.get(kind, ())
    if refused:
        assert f"its class for '{kind}' " in refusal(folder, "sglang")
    else:
        assert export(folder, "sglang").words.overrides is None
    if kind == "olmo3":  # the nested block is handed on whole
        with pytest.raises(TypeError):
            sglang.table(read, rows, TARGET, layer, **arguments)
        return
    table = sglang.table(read, rows, TARGET, layer, **arguments)
    worst = distance(table, expected(method, rows))
    if refused:
        assert worst > WRONG
        wanted = unscaled(rows)
        if kind == "exaone4":  # it looks for rope_theta where transformers 5 has none
            million = replace(LLAMA, theta=1e6)
            wanted = unscaled(rows, 1e6) if method == "ntk" else expected(method, rows, million)
        assert distance(table, wanted) < TOLERANCE
        return
    # mixtral and starcoder2 take the whole part of rope_theta, here 43,872 of 43,872.99
    assert worst < (1e-3 if kind in ("mixtral", "starcoder2") else TOLERANCE)


def test_gemma_3n(tmp_path: Path, sglang: SGLang) -> None:
    config = {**GEMMA3, "model_type": "gemma3n_text", "architectures": ["Gemma3nForCausalLM"]}
    config |= {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8}
    folder = extended(tmp_path, "yarn", config, attention_factor=1.3)
    read = sglang.config(folder, export(folder, "sglang").words.overrides)
    rows = torch.arange(TARGET)
    more = {"layer_id": 1, "max_position_embeddings": TARGET}
    table = sglang.table(read, rows, TARGET, "gemma3n_causal.Gemma3nAttention", **more)
    geometry = replace(LLAMA, theta=1e6)
    assert distance(table, expected("yarn", rows, geometry, attention_factor=1.3)) < TOLERANCE


@pytest.mark.parametrize("method", ["yarn", "pi", "ntk"])
def test_lengths_of_a_nested_block(tmp_path: Path, sglang: SGLang, method: str) -> None:
    folder = extended(tmp_path, method, GEMMA3)
    for base in (folder, tmp_path / "model"):
        done = export(folder, "sglang", original=base != folder)
        config = sglang.config(base, done.words.overrides)
        assert sglang.length(config, done.target_length) == TARGET
        wanted = sglang.config(folder).rope_parameters
        assert config.rope_parameters == wanted


def test_no_encoding(tmp_path: Path, sglang: SGLang) -> None:
    folder = converted(tmp_path, "nope")
    length, (cos, sin) = served(sglang, folder, folder)
    assert length == TRAINED
    assert bool((cos == 1).all())
    assert bool((sin == 0).all())


# --- what is refused would run something else -------------------------------------------------


def test_dynamic_would_be_static(tmp_path: Path, sglang: SGLang) -> None:
    folder = extended(tmp_path, "dynamic-ntk")
    rows = torch.arange(TRAINED // 2)
    table = sglang.table(sglang.config(folder), rows, TRAINED)
    assert distance(table, unscaled(rows)) < TOLERANCE  # right while it is short
    with pytest.raises(ValueError, match="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"):
        sglang.length(sglang.config(folder), TARGET)


@pytest.mark.parametrize("method", ["p-rope", "nope"])
def test_stopped_pairs_would_turn(tmp_path: Path, sglang: SGLang, method: str) -> None:
    """Without the key at the top."""
    folder = converted(tmp_path, "nope") if method == "nope" else extended(tmp_path, method)
    rows = torch.arange(TRAINED)
    table = sglang.table(sglang.config(folder), rows, TRAINED)
    assert distance(table, unscaled(rows)) < TOLERANCE


def test_stopped_pairs_would_not_slow(tmp_path: Path, sglang: SGLang) -> None:
    folder = extended(tmp_path, "pi", keep=0.5)
    rows = torch.arange(TARGET)
    for top in ({}, {"partial_rotary_factor": 0.5}):
        table = sglang.table(sglang.config(folder, top), rows, TARGET)
        assert distance(table, expected("pi", rows, keep=0.5)) > 1


@pytest.mark.parametrize("method", ["yarn", "longrope"])
def test_an_attention_factor_would_be_lost(tmp_path: Path, sglang: SGLang, method: str) -> None:
    folder = extended(tmp_path, method, attention_factor=1.0)
    rows = torch.arange(TARGET)
    table = sglang.table(sglang.config(folder), rows, TARGET)
    assert distance(table, expected(method, rows, attention_factor=1.0)) > WRONG


def test_a_longer_length_is_refused(tmp_path: Path, sglang: SGLang) -> None:
    with pytest.raises(ValueError, match="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"):
        sglang.length(sglang.config(extended(tmp_path)), TARGET + 1)


# --- scaled by others --------------------------------------------------------------------------

OLD: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 2.0,
    "original_max_position_embeddings": TRAINED,
}


@pytest.mark.parametrize(
    "stale",
    [{"attn_factor": 1.3}, {"beta_fast": 8.0}, {"mscale": 0.7, "mscale_all_dim": 1.0}],
    ids=["attn_factor", "beta_fast", "mscale"],
)
def test_the_original_was_scaled_already(
    tmp_path: Path, sglang: SGLang, stale: dict[str, float]
) -> None:
    """Its stale keys would stay beneath the flags; the folder itself is right."""
    config = scaled({**OLD, **stale}, 2 * TRAINED)
    folder = extended(tmp_path, "yarn", config, replace=True)
    length, table = served(sglang, folder, folder)
    rows = torch.arange(length)
    assert distance(table, expected("yarn", rows)) < TOLERANCE
    assert "carries a scaling of its own" in refusal(folder, "sglang", original=True)
    block = {"rope_parameters": {**OLD, "factor": 4.0}, "max_position_embeddings": TARGET}
    laid = sglang.config(tmp_path / "model", block)
    assert distance(sglang.table(laid, rows, length), expected("yarn", rows)) > WRONG


def test_a_whole_factor(tmp_path: Path, sglang: SGLang) -> None:
    block = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4}
    folder = found(tmp_path, scaled(block, TARGET))
    length, table = served(sglang, folder, folder, TRAINED)
    assert distance(table, expected("pi", torch.arange(length))) < TOLERANCE


def test_yarn_that_counts_from_the_configured_length(tmp_path: Path, sglang: SGLang) -> None:
    block = {k: v for k, v in OLD.items() if not k.startswith("original")}
    folder = found(tmp_path, scaled({**block, "factor": 4.0}, TRAINED))
    length, table = served(sglang, folder, folder)
    assert distance(table, expected("yarn", torch.arange(length))) < TOLERANCE


@pytest.mark.parametrize("name", FOREIGN_YARN)
def test_others_words(tmp_path: Path, sglang: SGLang, name: str) -> None:
    block, words = FOREIGN_YARN[name]
    folder = found(tmp_path, scaled({**OLD, "factor": 4.0, **block}, TARGET))
    length, table = served(sglang, folder, folder)
    assert distance(table, expected("yarn", torch.arange(length), **words)) < TOLERANCE


def test_longrope_whose_factor_is_not_the_ratio(tmp_path: Path, sglang: SGLang) -> None:
    block = {**OLD, "rope_type": "longrope", "short_factor": list(SHORT), "long_factor": list(LONG)}
    folder = found(tmp_path, scaled(block, TARGET))
    length, table = served(sglang, folder, folder)
    words = {"attention_factor": (1 + math.log(2) / math.log(TRAINED)) ** 0.5}
    assert distance(table, expected("longrope", torch.arange(length), **words)) < TOLERANCE
