"""What others scaled: published yarn, words that ropepatch does not write, scaled originals."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ropepatch.errors import NoEffectError
from ropepatch.exporting import export
from ropepatch.serving.table import ENGINES
from tests.serving.folders import (
    LONG,
    SHORT,
    TARGET,
    Config,
    extended,
    found,
    held,
    option,
    refusal,
    scaled,
)
from tests.tiny import GEMMA3, TRAINED, V4, V5

YARN = {"factor": 4.0, "original_max_position_embeddings": TRAINED}
QWEN_YARN: dict[str, Any] = V4 | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "rope_scaling": {"type": "yarn", **YARN},
}
"""As Qwen's model cards tell one to write it; max_position_embeddings stays."""

LONGROPE: dict[str, Any] = {
    **{"rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0},
    **{"short_factor": list(SHORT), "long_factor": list(LONG)},
    "original_max_position_embeddings": TRAINED,
}


# --- as published -------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [False, True])
def test_yarn_from_a_model_card(tmp_path: Path, raised: bool) -> None:
    config = QWEN_YARN | ({"max_position_embeddings": TARGET} if raised else {})
    folder = found(tmp_path, config)
    for target, flag in (("vllm", "--max-model-len"), ("sglang", "--context-length")):
        done = export(folder, target)
        assert (done.row, done.trained_length, done.target_length) == ("yarn", TRAINED, TARGET)
        assert option(done.words.commands[0], flag) == str(TARGET)
        wanted = None if raised else {"max_position_embeddings": TARGET}
        assert done.words.overrides == wanted
    tgi = export(folder, "tgi").words
    assert (tgi.how, tgi.config, tgi.notes) == ("native", None, ())  # its flags raise the length
    assert option(tgi.commands[0], "--max-total-tokens") == str(TARGET)
    words = export(folder, "transformers4").words
    if raised:
        assert (words.how, words.config) == ("native", None)
    else:
        assert words.config is not None
        assert json.loads(words.config)["max_position_embeddings"] == TARGET
        why = f"the folder's own promises only {TRAINED} tokens"
        assert words.notes == (f"put it over {folder}/config.json: {why}.",)
    assert "is not known" in refusal(folder, "vllm", original=True)


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize("config", [V4, V5, GEMMA3], ids=["v4", "v5", "gemma3"])
def test_what_is_not_scaled_needs_no_words(tmp_path: Path, target: str, config: Config) -> None:
    with pytest.raises(NoEffectError, match="engines serve it as it is"):
        export(found(tmp_path, config), target)


@pytest.mark.parametrize(
    "config",
    [
        scaled({"rope_type": "linear", "factor": 4}),
        {**V4, "max_position_embeddings": TARGET, "rope_scaling": {"type": "linear", "factor": 4}},
    ],
    ids=["v5", "v4"],
)
def test_a_whole_number_gets_a_point_for_vllm(tmp_path: Path, config: Config) -> None:
    (command,) = export(found(tmp_path, config), "vllm", trained_length=TRAINED).words.commands
    assert '"factor": 4.0' in option(command, "--hf-overrides")
    assert '"rope_theta": 10000.0' in option(command, "--hf-overrides")


def test_a_whole_number_gets_a_point_for_sglang(tmp_path: Path) -> None:
    folder = found(tmp_path, scaled({"rope_type": "linear", "factor": 4}))
    (command,) = export(folder, "sglang", trained_length=TRAINED).words.commands
    assert '"factor": 4.0' in option(command, "--json-model-override-args")


def test_pairs_that_others_stopped(tmp_path: Path) -> None:
    folder = found(tmp_path, scaled({"rope_type": "proportional", "partial_rotary_factor": 0.5}))
    done = export(folder, "sglang")
    assert (done.row, done.words.how) == ("p-rope", "override")
    assert done.words.overrides is not None
    assert done.words.overrides["partial_rotary_factor"] == 0.5
    refusal(folder, "transformers4")


def test_a_path_that_is_none_or_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty" in refusal(tmp_path / "empty", "vllm")
    assert "nowhere" in refusal(tmp_path / "nowhere", "vllm")


# --- words that ropepatch does not write ------------------------------------------------------

LN4 = math.log(4.0)


def block_of(folder: Path, target: str) -> Config:
    """What is laid over the block."""
    over = export(folder, target).words.overrides
    assert over is not None
    assert set(over) == {"rope_parameters"}
    block: Config = over["rope_parameters"]
    return block


@pytest.mark.parametrize("target", ["vllm", "sglang"])
@pytest.mark.parametrize("length", [TRAINED, TARGET, 2 * TARGET])
def test_yarn_reaches_as_far_as_it_says(tmp_path: Path, target: str, length: int) -> None:
    """Factor times the original length, beside any configured one."""
    folder = found(tmp_path, scaled({"rope_type": "yarn", **YARN, "factor": 2.0}, length))
    done = export(folder, target)
    assert (done.trained_length, done.target_length) == (TRAINED, 2 * TRAINED)
    assert str(2 * TRAINED) in done.words.commands[0]
    raised = {"max_position_embeddings": 2 * TRAINED} if length == TRAINED else None
    assert done.words.overrides == raised


@pytest.mark.parametrize("key", ["attn_factor", "extrapolation_factor"])
@pytest.mark.parametrize("value", [0.5, 1.3])
def test_keys_that_sglang_alone_reads(tmp_path: Path, key: str, value: float) -> None:
    block = {"rope_type": "yarn", "rope_theta": 1e4, **YARN, key: value}
    folder = found(tmp_path, scaled(block))
    assert block_of(folder, "sglang") == {**block, key: 1.0}
    assert export(folder, "vllm").words.overrides is None


@pytest.mark.parametrize("key", ["mscale", "mscale_all_dim"])
def test_a_lone_mscale(tmp_path: Path, key: str) -> None:
    """transformers takes a pair, or the usual attention factor."""
    folder = found(tmp_path, scaled({"rope_type": "yarn", **YARN, key: 0.5}))
    block = block_of(folder, "sglang")
    assert block["attention_factor"] == pytest.approx(0.1 * LN4 + 1)
    assert (block["mscale"], block["mscale_all_dim"]) == (pytest.approx(1.0), 0.0)
    content = export(folder, "tgi").words.config
    assert content is not None
    for words in (json.loads(content)["rope_scaling"], json.loads(content)["rope_parameters"]):
        assert (words["mscale"], words["mscale_all_dim"]) == (pytest.approx(1.0), 0.0)
    assert export(folder, "vllm").words.overrides is None


def test_a_pair_of_mscales_is_read_alike(tmp_path: Path) -> None:
    pair = {"mscale": 0.707, "mscale_all_dim": 1.0}
    folder = found(tmp_path, scaled({"rope_type": "yarn", **YARN, **pair}))
    for target in ("vllm", "sglang"):
        assert export(folder, target).words.overrides is None
    content = export(folder, "tgi").words.config
    assert content is not None
    assert pair.items() <= json.loads(content)["rope_scaling"].items()
    # unless something stands beside it that is read first
    folder = found(
        tmp_path / "b", scaled({"rope_type": "yarn", **YARN, **pair, "attention_factor": 1.0})
    )
    block = block_of(folder, "sglang")
    assert [block[key] for key in ("attention_factor", "mscale", "mscale_all_dim")] == [1, 0, 0]


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_nulls_that_transformers_takes_for_defaults(tmp_path: Path, target: str) -> None:
    block = {"rope_type": "yarn", "rope_theta": 1e4, **YARN}
    nulls = {"beta_fast": None, "beta_slow": None}
    folder = found(tmp_path, scaled({**block, **nulls}))
    assert block_of(folder, target) == {**block, "beta_fast": 32.0, "beta_slow": 1.0}


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_a_whole_factor_of_yarn_is_read(tmp_path: Path, target: str) -> None:
    folder = found(tmp_path, scaled({"rope_type": "yarn", **YARN, "factor": 4}))
    assert export(folder, target).words.overrides is None


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_longrope_whose_factor_is_not_the_ratio(tmp_path: Path, target: str) -> None:
    wanted = pytest.approx((1 + math.log(2) / math.log(TRAINED)) ** 0.5)
    block = block_of(found(tmp_path, scaled(LONGROPE)), target)
    assert (block["short_mscale"], block["long_mscale"]) == (wanted, wanted)
    assert LONGROPE.items() <= block.items()


def test_lmdeploy_goes_by_the_ratio(tmp_path: Path) -> None:
    said = refusal(found(tmp_path / "a", scaled(LONGROPE)), "lmdeploy")
    assert "its longrope takes the attention factor from the two lengths. Nearest: " in said
    assert held(said, "lmdeploy", V5, tmp_path) == "yarn"
    folder = found(tmp_path / "b", scaled({**LONGROPE, "factor": 4.0}))
    assert "--backend pytorch" in export(folder, "lmdeploy").words.shell
    for target in ("vllm", "sglang"):
        assert export(folder, target).words.overrides is None


# --- an original that was scaled --------------------------------------------------------------


@pytest.mark.parametrize("target", ["vllm", "sglang", "llama.cpp"])
def test_flags_do_not_take_a_scaling_away(tmp_path: Path, target: str) -> None:
    config = scaled({"rope_type": "yarn", **YARN, "factor": 2.0, "beta_fast": 8.0}, 2 * TRAINED)
    folder = extended(tmp_path, "yarn", config, replace=True)
    said = refusal(folder, target, original=True)
    assert said == (
        f"{tmp_path / 'model'} carries a scaling of its own, whose keys would stay beneath the "
        "flags; leave --original out."
    )
    assert export(folder, target).target_length == TARGET
