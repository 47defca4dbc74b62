"""What vLLM's own code makes of what it is told, against the method's formula in float64.

Measured with vLLM 0.33.0 and transformers 5.24.0: at most 4.3e-5, which is what a float32 angle of
1,023 radians is off by.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ropepatch.exporting import export
from tests.serving.engines.source import source_of
from tests.serving.engines.vllm import VLLM
from tests.serving.folders import (
    FOREIGN_YARN,
    LLAMA,
    LONG,
    SHORT,
    TARGET,
    Config,
    converted,
    distance,
    expected,
    extended,
    found,
    held,
    refusal,
    unscaled,
)
from tests.tiny import COMPOSITE, GEMMA3, TRAINED, V5, read_json

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
WRONG = 0.04
"""What any of the faults below comes to, at the least."""

RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "yarn": ("yarn", {}),
    "yarn, a fraction": ("yarn", {"factor": 3.3}),
    "yarn, attention 1.3": ("yarn", {"attention_factor": 1.3}),
    "yarn, attention 1": ("yarn", {"attention_factor": 1.0}),
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
}
NESTED = {name: RECIPES[name] for name in RECIPES if "fraction" not in name}


@pytest.fixture(scope="module")
def vllm() -> Iterator[VLLM]:
    engine = VLLM(source_of("vllm"))
    yield engine
    engine.close()


def served(
    vllm: VLLM, folder: Path, base: Path, label: str = "", trained: int | None = None
) -> tuple[int, Any]:
    """Length and table of a folder, or of its original, as it is exported."""
    done = export(folder, "vllm", original=base != folder, trained_length=trained)
    config = vllm.config(base, done.words.overrides)
    length = vllm.length(config, done.target_length)
    assert length == done.target_length
    return length, vllm.table(config, length, label)


def worst(table: Any, length: int, wanted: Any) -> float:
    assert len(table[0]) >= length
    return distance((table[0][:length], table[1][:length]), wanted)


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dialect", ["v4", "v5", "both"])
def test_a_llama(tmp_path: Path, vllm: VLLM, dialect: str, name: str, original: bool) -> None:
    method, words = RECIPES[name]
    if method == "p-rope" and dialect != "v5":
        pytest.skip("transformers 4 has no word for it")
    folder = extended(tmp_path, method, dialect=dialect, **words)
    length, table = served(vllm, folder, tmp_path / "model" if original else folder)
    wanted = expected(method, torch.arange(length), **words)
    found = worst(table, length, wanted)
    print(f"vllm {name} ({dialect}, original {original}): {found:.1e}, rows {len(table[0])}")
    assert found < TOLERANCE


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("config", [GEMMA3, COMPOSITE], ids=["gemma3", "composite"])
def test_a_nested_block(
    tmp_path: Path, vllm: VLLM, config: Config, name: str, original: bool
) -> None:
    method, words = NESTED[name]
    folder = extended(tmp_path, method, config, **words)
    base = tmp_path / "model" if original else folder
    length, table = served(vllm, folder, base, "full_attention")
    geometry = replace(LLAMA, theta=1e6)
    wanted = expected(method, torch.arange(length), geometry, **words)
    assert worst(table, length, wanted) < TOLERANCE
    length, sliding = served(vllm, folder, base, "sliding_attention")
    assert worst(sliding, length, unscaled(torch.arange(length))) < TOLERANCE


@pytest.mark.parametrize("length", [TRAINED, TARGET])
def test_longrope_is_short_in_a_short_server(tmp_path: Path, vllm: VLLM, length: int) -> None:
    """The note says so: which factors count is a matter of --max-model-len."""
    folder = extended(tmp_path, "longrope")
    cos, sin = vllm.table(vllm.config(folder), length)
    rows = torch.arange(TRAINED)
    last = torch.tensor([length - 1])
    both = torch.cat([rows, last]) if length > TRAINED else rows
    wanted = expected("longrope", both)
    assert distance((cos[both], sin[both]), wanted) < TOLERANCE


def test_no_encoding(tmp_path: Path, vllm: VLLM) -> None:
    folder = converted(tmp_path, "nope")
    length, (cos, sin) = served(vllm, folder, folder)
    assert length == TRAINED
    assert bool((cos == 1).all())
    assert bool((sin == 0).all())
    with pytest.raises(ValueError, match=r"partial_rotary_factor=0\.0"):
        vllm.table(vllm.config(folder), length)


# --- what is refused would run something else -------------------------------------------------


def test_dynamic_would_be_static(tmp_path: Path, vllm: VLLM) -> None:
    folder = extended(tmp_path, "dynamic-ntk")
    cos, sin = vllm.table(vllm.config(folder), TARGET)
    assert distance((cos, sin), unscaled(torch.arange(TRAINED))) < TOLERANCE
    with pytest.raises(ValueError, match="greater than the derived max_model_len"):
        vllm.length(vllm.config(folder), TARGET)


def test_stopped_pairs_would_not_slow(tmp_path: Path, vllm: VLLM) -> None:
    folder = extended(tmp_path, "pi", keep=0.5)
    cos, sin = vllm.table(vllm.config(folder), TARGET)
    wanted = expected("pi", torch.arange(TARGET), keep=0.5)
    assert distance((cos[:TARGET], sin[:TARGET]), wanted) > 1


def test_longropes_attention_factor_would_be_lost(tmp_path: Path, vllm: VLLM) -> None:
    folder = extended(tmp_path, "longrope", attention_factor=1.0)
    table = vllm.table(vllm.config(folder), TARGET)
    wanted = expected("longrope", torch.arange(TARGET), attention_factor=1.0)
    assert distance(table, wanted) > WRONG


def test_a_longer_length_is_refused(tmp_path: Path, vllm: VLLM) -> None:
    with pytest.raises(ValueError, match="greater than the derived max_model_len"):
        vllm.length(vllm.config(extended(tmp_path)), TARGET + 1)


def test_a_whole_factor_stops_it(tmp_path: Path, vllm: VLLM) -> None:
    block = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4}
    folder = found(tmp_path, V5 | {"max_position_embeddings": TARGET, "rope_parameters": block})
    with pytest.raises(TypeError):
        vllm.table(vllm.config(folder), TARGET)
    length, table = served(vllm, folder, folder, trained=TRAINED)
    assert worst(table, length, expected("pi", torch.arange(length))) < TOLERANCE


def test_the_original_was_scaled_already(tmp_path: Path, vllm: VLLM) -> None:
    old = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0, "attention_factor": 1.5}
    old["original_max_position_embeddings"] = TRAINED
    blocks = {**GEMMA3["rope_parameters"], "full_attention": old}
    text = {**COMPOSITE["text_config"], "rope_parameters": blocks}
    text["max_position_embeddings"] = 2 * TRAINED
    folder = extended(tmp_path, "yarn", {**COMPOSITE, "text_config": text}, replace=True)
    length, table = served(vllm, folder, folder, "full_attention")
    wanted = expected("yarn", torch.arange(length), replace(LLAMA, theta=1e6))
    assert worst(table, length, wanted) < TOLERANCE
    assert "carries a scaling of its own" in refusal(folder, "vllm", original=True)
    new = read_json(folder / "config.json")["text_config"]
    keys = ("rope_parameters", "max_position_embeddings")
    laid = vllm.config(tmp_path / "model", {"text_config": {key: new[key] for key in keys}})
    assert worst(vllm.table(laid, length, "full_attention"), length, wanted) > WRONG


@pytest.mark.parametrize("original", [False, True])
def test_a_nested_ramp_without_rounding(tmp_path: Path, vllm: VLLM, original: bool) -> None:
    block = {"rope_type": "default", "rope_theta": 1e4}
    config = {**V5, "model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"]}
    config |= {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 64,
        "rope_parameters": {"sliding_attention": block, "full_attention": block},
    }
    folder = extended(tmp_path, "yarn", config, truncate=False)
    said = refusal(folder, "vllm", original=original)
    assert "its length code stops at the 'truncate'" in said
    if original:
        return
    assert held(said, "vllm", config, tmp_path / "near") == "yarn"
    with pytest.raises(KeyError, match="rope_type"):
        vllm.length(vllm.config(folder), TARGET)
    near = tmp_path / "near" / "yarn" / "out"
    length, table = served(vllm, near, near, "full_attention")
    assert worst(table, length, expected("yarn", torch.arange(length))) < TOLERANCE


def test_yarn_that_counts_from_the_configured_length(tmp_path: Path, vllm: VLLM) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    folder = found(tmp_path, V5 | {"rope_parameters": rope})
    length, table = served(vllm, folder, folder)
    assert length == TARGET
    assert worst(table, length, expected("yarn", torch.arange(length))) < TOLERANCE


@pytest.mark.parametrize("name", FOREIGN_YARN)
def test_others_words(tmp_path: Path, vllm: VLLM, name: str) -> None:
    block, words = FOREIGN_YARN[name]
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, **block}
    rope["original_max_position_embeddings"] = TRAINED
    folder = found(tmp_path, V5 | {"max_position_embeddings": TARGET, "rope_parameters": rope})
    length, table = served(vllm, folder, folder)
    assert worst(table, length, expected("yarn", torch.arange(length), **words)) < TOLERANCE


def test_longrope_whose_factor_is_not_the_ratio(tmp_path: Path, vllm: VLLM) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}
    rope |= {"short_factor": list(SHORT), "long_factor": list(LONG)}
    rope["original_max_position_embeddings"] = TRAINED
    folder = found(tmp_path, V5 | {"max_position_embeddings": TARGET, "rope_parameters": rope})
    length, table = served(vllm, folder, folder)
    words = {"attention_factor": (1 + math.log(2) / math.log(TRAINED)) ** 0.5}
    assert worst(table, length, expected("longrope", torch.arange(length), **words)) < TOLERANCE
