"""Commands and what they lay over a config, on a tiny Llama, word by word."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ropepatch.exporting import export
from ropepatch.serving.base import Words
from tests.serving.folders import (
    FACTOR,
    LONG,
    SHORT,
    TARGET,
    converted,
    extended,
    option,
    refusal,
)
from tests.tiny import TRAINED, V5

THETA = 10000.0
NTK_THETA = THETA * FACTOR ** (32 / 30)
BLOCKS: dict[str, dict[str, Any]] = {
    "yarn": {"rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": TRAINED},
    "pi": {"rope_type": "linear", "factor": FACTOR},
    "ntk": {"rope_type": "default", "rope_theta": pytest.approx(NTK_THETA)},
    "ntk-by-parts": {
        "rope_type": "llama3",
        "factor": FACTOR,
        "low_freq_factor": 1.0,
        "high_freq_factor": 32.0,
        "original_max_position_embeddings": TRAINED,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": FACTOR,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": TRAINED,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": FACTOR,
        "short_factor": list(SHORT),
        "long_factor": list(LONG),
        "original_max_position_embeddings": TRAINED,
    },
    "p-rope": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
}
"""What transformers must find, written out once more."""
OWN = 1.25
TRIPLE = {
    "attention_factor": OWN,
    "mscale": pytest.approx((OWN - 1) / (0.1 * 1.3862943611198906)),
    "mscale_all_dim": 0.0,
}
LONG_OWN = {"short_mscale": OWN, "long_mscale": OWN}
LENGTH = str(TARGET)
VLLM = ("--max-model-len", LENGTH)
SGLANG = ("--context-length", LENGTH)


def said(folder: Path, target: str, *, original: bool = False) -> Words:
    return export(folder, target, original=original).words


@pytest.mark.parametrize("method", BLOCKS)
def test_vllm_takes_a_folder_as_it_is(tmp_path: Path, method: str) -> None:
    folder = extended(tmp_path, method)
    words = said(folder, "vllm")
    assert words.commands == (("vllm", "serve", str(folder), *VLLM),)
    assert (words.overrides, words.config) == (None, None)


@pytest.mark.parametrize("method", BLOCKS)
def test_sglang_takes_a_folder_as_it_is(tmp_path: Path, method: str) -> None:
    folder = extended(tmp_path, method)
    words = said(folder, "sglang")
    command = ("sglang", "serve", "--model-path", str(folder), *SGLANG)
    (found,) = words.commands
    assert found[: len(command)] == command
    if method != "p-rope":
        assert (found, words.overrides) == (command, None)
        return
    block = {"rope_theta": THETA, **BLOCKS["p-rope"]}
    assert words.overrides == {"partial_rotary_factor": 0.5, "rope_parameters": block}


@pytest.mark.parametrize("method", BLOCKS)
@pytest.mark.parametrize(
    ("target", "flag"), [("vllm", "--hf-overrides"), ("sglang", "--json-model-override-args")]
)
def test_the_original_gets_the_whole_block(
    tmp_path: Path, target: str, flag: str, method: str
) -> None:
    folder = extended(tmp_path, method)
    words = said(folder, target, original=True)
    (command,) = words.commands
    assert str(tmp_path / "model") in command
    assert str(folder) not in command
    overrides = json.loads(option(command, flag))
    assert overrides == words.overrides
    extra = {"partial_rotary_factor": 0.5} if (method, target) == ("p-rope", "sglang") else {}
    block = {"rope_theta": THETA, **BLOCKS[method]}
    assert overrides == {"max_position_embeddings": TARGET, "rope_parameters": block, **extra}
    assert isinstance(overrides["rope_parameters"].get("factor", FACTOR), float)
    assert "null" not in option(command, flag)
    assert words.how == "override"


@pytest.mark.parametrize("method", ["yarn", "longrope"])
@pytest.mark.parametrize("target", ["vllm", "sglang"])
@pytest.mark.parametrize("original", [False, True])
def test_an_attention_factor_in_words_that_are_read(
    tmp_path: Path, target: str, method: str, original: bool
) -> None:
    words = said(extended(tmp_path, method, attention_factor=OWN), target, original=original)
    if (target, method, original) == ("vllm", "yarn", False):
        assert words.overrides is None  # read as it stands
        assert any("since 0.30.0" in note for note in words.notes)
        return
    assert words.overrides is not None
    wanted = {"rope_theta": THETA, **BLOCKS[method], "attention_factor": OWN}
    if method == "longrope":
        wanted |= LONG_OWN
    elif target == "sglang":
        wanted |= TRIPLE
    assert words.overrides["rope_parameters"] == wanted


def test_a_pair_of_mscales_is_read_alike(tmp_path: Path) -> None:
    pair: dict[str, Any] = {"mscale": 0.707, "mscale_all_dim": 1.0}
    folder = extended(tmp_path, **pair)
    wanted = {"rope_theta": THETA, **BLOCKS["yarn"], **pair}
    for target in ("vllm", "sglang"):
        assert said(folder, target).overrides is None
        over = said(folder, target, original=True).overrides
        assert over == {"max_position_embeddings": TARGET, "rope_parameters": wanted}


@pytest.mark.parametrize("ramp", [{"beta_fast": 16.0}, {"truncate": False}, {"beta_slow": 2.0}])
def test_another_ramp(tmp_path: Path, ramp: dict[str, Any]) -> None:
    folder = extended(tmp_path, **ramp)
    for target in ("vllm", "sglang"):
        assert said(folder, target).overrides is None
        overrides = said(folder, target, original=True).overrides
        assert overrides is not None
        assert ramp.items() <= overrides["rope_parameters"].items()
    assert "its yarn has one ramp" in refusal(folder, "tgi")
    assert "--backend pytorch" in said(folder, "lmdeploy").shell
    steps = said(folder, "llama.cpp")
    ((key, value),) = ramp.items()
    assert option(steps.commands[1], "--set") == f"{key}={value}"
    assert "no flags for factors per pair" in refusal(folder, "llama.cpp", original=True)


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_pairs_that_stop_and_slow_down(tmp_path: Path, target: str) -> None:
    folder = extended(tmp_path, "pi", keep=0.5)
    assert "passes over their factor. Nearest: ropepatch" in refusal(folder, target)
    for other in ("transformers4", "tgi", "lmdeploy"):
        assert "Nearest: ropepatch extend" in refusal(folder, other)
    assert option(said(folder, "llama.cpp").commands[1], "--keep") == "0.5"


def test_lengths_of_the_others(tmp_path: Path) -> None:
    folder = extended(tmp_path)
    name = str(folder)
    limits = ("--max-input-tokens", str(TARGET - 1), "--max-total-tokens", LENGTH)
    assert said(folder, "tgi").commands == (
        ("text-generation-launcher", "--model-id", name, *limits),
    )
    lmdeploy = ("lmdeploy", "serve", "api_server", name)
    pytorch = ("--backend", "pytorch")
    assert said(folder, "lmdeploy").commands == ((*lmdeploy, *pytorch, "--session-len", LENGTH),)
    convert = ("python", "convert_hf_to_gguf.py", name, "--outfile", "out.gguf")
    first, serve = said(folder, "llama.cpp").commands
    assert first[: len(convert)] == convert
    assert serve == ("llama-server", "-m", "out.gguf", "-c", LENGTH)
    assert said(folder, "ollama").config == f"FROM ./out.gguf\nPARAMETER num_ctx {LENGTH}\n"
    assert said(folder, "transformers4").commands == ()


@pytest.mark.parametrize("method", ["pi", "ntk", "llama3", "ntk-by-parts"])
def test_lmdeploy_takes_its_faster_backend(tmp_path: Path, method: str) -> None:
    folder = extended(tmp_path, method)
    command = ("lmdeploy", "serve", "api_server", str(folder), "--session-len", LENGTH)
    assert said(folder, "lmdeploy").commands == (command,)


def test_no_type_of_lmdeploys_reads_longropes_attention_factor(tmp_path: Path) -> None:
    assert "takes the attention factor from the two lengths. Nearest: " in refusal(
        extended(tmp_path, "longrope", attention_factor=OWN), "lmdeploy"
    )


def test_llama_cpp_over_the_original(tmp_path: Path) -> None:
    folder = extended(tmp_path, attention_factor=OWN)
    (command,) = said(folder, "llama.cpp", original=True).commands
    assert command[:3] == ("llama-server", "-m", "model.gguf")
    assert option(command, "--rope-scaling") == "yarn"
    assert option(command, "--yarn-orig-ctx") == str(TRAINED)
    keys = [command[i + 1] for i, word in enumerate(command) if word == "--override-kv"]
    times = OWN / 1.1386294361119891
    assert keys[0] == f"llama.context_length=int:{TARGET}"
    assert keys[1].startswith("llama.rope.scaling.attn_factor=float:")
    assert float(keys[1].split(":")[1]) == pytest.approx(times)


@pytest.mark.parametrize("target", ["transformers4", "tgi", "lmdeploy", "ollama"])
def test_who_has_no_flags_for_the_original(tmp_path: Path, target: str) -> None:
    assert "leave --original out" in refusal(extended(tmp_path), target, original=True)


@pytest.mark.parametrize("target", ["vllm", "sglang", "tgi", "lmdeploy", "llama.cpp"])
@pytest.mark.parametrize("name", ["it's a model", 'say "x" $HOME', "-dash; rm *", "ünï\tcode"])
def test_any_path_survives_a_shell(tmp_path: Path, name: str, target: str) -> None:
    folder = extended(tmp_path / name, "yarn", attention_factor=OWN)
    for original in (False, True) if target in ("vllm", "sglang", "llama.cpp") else (False,):
        words = said(folder, target, original=original)
        lines = [tuple(shlex.split(line)) for line in words.shell.splitlines()]
        assert tuple(lines) == words.commands
        if target != "llama.cpp" or not original:
            place = folder if not original else folder.parent / "model"
            assert str(place) in words.commands[0]


@pytest.mark.parametrize("dialect", ["v4", "v5", "both"])
@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_the_words_of_the_config_do_not_matter(tmp_path: Path, target: str, dialect: str) -> None:
    folder = extended(tmp_path, dialect=dialect)
    assert said(folder, target).overrides is None
    over = said(folder, target, original=True).overrides
    block = {"rope_theta": THETA, **BLOCKS["yarn"]}
    assert over == {"max_position_embeddings": TARGET, "rope_parameters": block}
    warned = any("transformers 4 may be installed" in note for note in said(folder, "vllm").notes)
    assert warned == (dialect == "v5")


def test_nothing_needs_a_config_where_transformers_4_reads_it(tmp_path: Path) -> None:
    for dialect in ("v4", "both"):
        folder = extended(tmp_path / dialect, dialect=dialect)
        for target in ("transformers4", "tgi"):
            words = said(folder, target)
            assert (words.how, words.config) == ("native", None)


def test_no_encoding_at_all(tmp_path: Path) -> None:
    folder = converted(tmp_path, "nope")
    over = said(folder, "vllm").overrides
    assert over is not None
    assert over["architectures"] == V5["architectures"]
    part = over["rope_parameters"]["partial_rotary_factor"]
    assert 0 < part < 2 / 32  # less than one pair, and not the 0 that vLLM refuses
    over = said(folder, "sglang").overrides
    assert over is not None
    assert over["partial_rotary_factor"] == 0.0
    assert over["architectures"] == V5["architectures"]


@pytest.mark.parametrize(
    ("dialect", "words", "why"),
    [
        ("v5", {}, "TGI reads no rope_parameters, and would serve it unscaled with rope_theta"),
        ("v5", {"attention_factor": OWN}, "TGI reads no rope_parameters, and would serve it"),
        ("v4", {"attention_factor": OWN}, "TGI reads other keys than transformers does."),
        ("both", {"attention_factor": OWN}, "TGI reads other keys than transformers does."),
    ],
)
def test_why_tgi_needs_a_config(
    tmp_path: Path, dialect: str, words: dict[str, Any], why: str
) -> None:
    folder = extended(tmp_path, dialect=dialect, **words)
    (note,) = said(folder, "tgi").notes
    assert note.startswith(f"needs this config.json in {folder}: {why}")


def test_why_transformers_4_needs_a_config(tmp_path: Path) -> None:
    folder = extended(tmp_path)
    why = "its words are transformers 5's alone"
    assert said(folder, "transformers4").notes == (f"put it over {folder}/config.json: {why}.",)
