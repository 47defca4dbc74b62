"""Scalings of others: what they do not say is asked for, and what contradicts itself is refused."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from ropepatch.errors import ConfigError, RecipeError, RopepatchError
from ropepatch.exporting import export
from ropepatch.geometry import RotaryGeometry
from ropepatch.gguf_extending import extend_gguf
from ropepatch.recipe import Recipe
from ropepatch.serving.table import ENGINES
from tests.end_to_end.program import Run, line_of
from tests.serving.folders import LONG, SHORT, TARGET, extended, found, refusal, scaled
from tests.serving.test_found import small_gguf
from tests.tiny import TRAINED, V4

LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LISTS = {"short_factor": list(SHORT), "long_factor": list(LONG)}


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return found(tmp_path, scaled(LINEAR))


# --- a length that has to be told -------------------------------------------------------------


@pytest.mark.parametrize("target", ENGINES)
def test_linear_does_not_say_what_it_counts_from(linear: Path, target: str) -> None:
    with pytest.raises(ConfigError) as caught:
        export(linear, target)
    assert str(caught.value) == (
        f"{linear}: a linear scaling does not say what it counts from: {TRAINED} tokens if "
        f"max_position_embeddings ({TARGET}) is the extended length, {TARGET} if it is the trained "
        "one: say which with --trained-length."
    )


@pytest.mark.parametrize("trained", [128, TRAINED, 512])
def test_a_length_that_is_told(linear: Path, trained: int) -> None:
    done = export(linear, "vllm", trained_length=trained)
    assert (done.row, done.trained_length, done.target_length) == ("pi", trained, 4 * trained)
    assert str(4 * trained) in done.words.commands[0]
    raised = {"max_position_embeddings": 4 * trained} if trained > TRAINED else None
    assert done.words.overrides == raised


def test_the_program_is_told(linear: Path, run: Run) -> None:
    words = ("export", linear, "--for", "vllm", "--command")
    assert line_of(run(*words)).endswith(": say which with --trained-length.")
    answer = run(*words, "--trained-length", "256")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"vllm serve {linear} --max-model-len {TARGET}\n"
    assert " --max-model-len 8192 " in run(*words, "--trained-length", "2k").out
    for word in ("0", "-1", "x", ""):
        assert run(*words, "--trained-length", word).code == 2


@pytest.mark.parametrize("target", ["vllm", "tgi", "llama.cpp"])
def test_one_of_ours_knows_it(tmp_path: Path, target: str) -> None:
    for method in ("yarn", "pi"):
        folder = extended(tmp_path / method, method)
        assert refusal(folder, target, trained_length=TRAINED) == (
            f"{folder} says itself what it was trained on; leave --trained-length out."
        )


@pytest.mark.parametrize("trained", [0, -1])
def test_no_length(linear: Path, trained: int) -> None:
    said = refusal(linear, "vllm", trained_length=trained)
    assert said == f"'{trained}' is not a length; write tokens: 131072, 128k or 1m."


@pytest.mark.parametrize("trained", ["8 k tokens", True, 2.5, 10**12])
def test_what_is_no_length(linear: Path, trained: Any) -> None:
    with pytest.raises(RopepatchError):
        export(linear, "vllm", trained_length=trained)


def test_a_named_command_is_told_too(linear: Path, tmp_path: Path, run: Run) -> None:
    said = refusal(linear, "tgi", trained_length=TRAINED)
    command = re.search(r"Nearest: ropepatch (extend .*?)(?: \(or .*?\))?; its price", said)
    assert command is not None
    answer = run(*shlex.split(command[1]), "--no-verify", "--output", tmp_path / "new")
    assert (answer.code, answer.err) == (0, "")


@pytest.mark.parametrize("block", [YARN, {**YARN, "rope_type": "longrope", **LISTS}])
def test_what_a_block_says_itself_cannot_be_told(tmp_path: Path, block: dict[str, Any]) -> None:
    folder = found(tmp_path, scaled(block))
    assert "leave --trained-length out" in refusal(folder, "vllm", trained_length=2 * TRAINED)


def test_a_gguf_file_is_told_nothing(tmp_path: Path) -> None:
    target = tmp_path / "y.gguf"
    extend_gguf(small_gguf(tmp_path / "x.gguf"), Recipe.named("yarn", factor=4), target)
    assert "leave --trained-length out" in refusal(target, "llama.cpp", trained_length=5)


def test_a_table_is_told_nothing(run: Run) -> None:
    assert run("export", "--table", "--trained-length", "8k").code == 2


# --- what transformers 5 stops at -------------------------------------------------------------


@pytest.mark.parametrize("target", ["vllm", "sglang", "llama.cpp", "tgi"])
@pytest.mark.parametrize("dialect", ["v4", "v5"])
@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"rope_type": "yarn"}, "its 'yarn' block has no factor"),
        ({**YARN, "factor": None}, "its 'yarn' block has no factor"),
        (LLAMA3 | {"original_max_position_embeddings": TRAINED}, "'llama3' block has no factor"),
        ({"rope_type": "linear"}, "the 'linear' block of config.json lacks factor"),
        ({"rope_type": "dynamic"}, "the 'dynamic' block of config.json lacks factor"),
        ({**YARN, "type": "linear"}, "its block has the type linear and yarn both"),
        ({**YARN, "rope_type": "default", "type": "yarn"}, "the type default and yarn both"),
        ({"type": "su", **LISTS}, "transformers 5 stops at the type 'su'; it is longrope now"),
        ({"rope_type": "su", **LISTS}, "transformers 5 stops at the type 'su'"),
        ({"rope_type": "su", "type": "longrope", **LISTS}, "the type longrope and su both"),
    ],
)
def test_what_makes_no_sense(
    tmp_path: Path, target: str, dialect: str, block: dict[str, Any], said: str
) -> None:
    config = scaled(block)
    if dialect == "v4":
        config = {**V4, "max_position_embeddings": TARGET, "rope_scaling": block}
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        export(found(tmp_path, config), target)
    assert len(str(caught.value).splitlines()) == 1


def test_both_words_may_say_the_same(tmp_path: Path) -> None:
    folder = found(tmp_path, scaled({**YARN, "type": "yarn"}))
    assert export(folder, "vllm").words.overrides is None


@pytest.mark.parametrize("dialect", ["v4", "v5"])
def test_yarn_that_counts_from_the_configured_length(tmp_path: Path, dialect: str) -> None:
    block = {"rope_type": "yarn", "factor": 4.0}
    config = scaled(block, TRAINED) if dialect == "v5" else {**V4, "rope_scaling": block}
    folder = found(tmp_path, config)
    whole = {"rope_theta": 10000.0, **YARN}
    for target in ("vllm", "sglang"):
        done = export(folder, target)
        assert (done.trained_length, done.target_length) == (TRAINED, TARGET)
        laid = {"rope_parameters": whole, "max_position_embeddings": TARGET}
        assert done.words.overrides == laid
        assert done.words.how == "override"
    words = export(folder, "lmdeploy").words
    assert words.overrides == {"rope_parameters": whole}
    content = export(folder, "transformers4").words.config
    assert content is not None
    assert json.loads(content)["rope_scaling"]["original_max_position_embeddings"] == TRAINED


# --- no arguments, and lengths that are asked for -----------------------------------------------


@pytest.mark.parametrize(("model", "target"), [(None, "vllm"), ("x", None), (None, None), (b"", 1)])
def test_no_model_or_no_engine(model: Any, target: Any) -> None:
    with pytest.raises(RecipeError, match="takes a folder or a GGUF file, and the name of an eng"):
        export(model, target)


@pytest.mark.parametrize(
    ("trained", "to"),
    [(10000, 46892), (8192, 32768), (256, 1000), (3000, 9999), (1000003, 3000017)],
)
def test_a_factor_is_never_a_token_short(trained: int, to: int) -> None:
    geometry = RotaryGeometry(head_dim=32, rotary_dim=32, theta=1e4, trained_length=trained)
    method = Recipe.named("yarn", to=to).bind(geometry)
    assert int(trained * method.factor) == to
    assert method.target_length(geometry) == to
    assert method.factor == pytest.approx(to / trained, rel=1e-15)
