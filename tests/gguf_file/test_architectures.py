"""What each architecture can be told, and that a refusal names something that is accepted."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from ropepatch.errors import NotExpressibleError
from ropepatch.geometry import RotaryGeometry
from ropepatch.gguf_extending import extend_gguf, inspect_gguf
from tests.gguf_file import made
from tests.gguf_file.by_ggml import FREQS, LONG, SHORT
from tests.gguf_file.made import (
    EXPRESSIBLE,
    HEAD,
    LLAMA3,
    LONGROPE,
    NTK,
    TRAINED,
    YARN,
    make_model,
    one_line,
    read,
    tensors_of,
)
from tests.gguf_file.test_numbers import agree

ATTENTION = YARN | {"attention_factor": 1.0}
BETAS = EXPRESSIBLE["yarn, betas"]
PI = EXPRESSIBLE["pi"]
WINDOW = {"attention.sliding_window": 512}


def below(path: Path, arch: str) -> dict[str, Any]:
    """Rotary keys without the architecture's name."""
    found = read(path).items()
    return {k.removeprefix(f"{arch}.rope."): v for k, v in found if k.startswith(f"{arch}.rope.")}


def refused(source: Path, words: dict[str, Any], said: str, **more: Any) -> str:
    """The one line of a refusal, after which nothing has changed."""
    before = {p.name: p.read_bytes() for p in source.parent.iterdir()}
    with pytest.raises(NotExpressibleError, match=said) as caught:
        extend_gguf(source, words, **more)
    assert {p.name: p.read_bytes() for p in source.parent.iterdir()} == before
    return one_line(caught.value)


def accepted(line: str, source: Path, **more: Any) -> None:
    """The methods that a refusal names do go."""
    (named,) = re.findall(r"--method ((?:[\w-]+)(?: or [\w-]+)*)", line.split("; ")[-1])
    for method in named.split(" or "):
        words = {"method": method, "factor": 4}
        extend_gguf(source, words, source.with_name("another.gguf"), dry_run=True, **more)


# --- without per-pair factors -----------------------------------------------------------------

NEEDS_FACTORS = {
    "yarn, betas": "yarn with another ramp",
    "yarn, no floor": "yarn with another ramp",
    "pi, keep": "pi with stopped pairs",
    "ntk-by-parts": "ntk-by-parts",
    "llama3": "llama3",
    "p-rope": "p-rope",
    "p-rope, auto": "p-rope",
}


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "gemma", "gptneox", "gpt-oss", "smollm3"])
@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_keys_alone(case: str, arch: str, tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", arch)
    words = EXPRESSIBLE[case]
    if case in NEEDS_FACTORS:
        said = (
            f"llama.cpp reads no per-pair factors for '{arch}', which {NEEDS_FACTORS[case]} needs"
        )
        accepted(refused(source, words, said), source)
    elif "longrope" in case:
        line = refused(source, words, f"reads no long and short factors for '{arch}'")
        accepted(line, source)
    else:
        done = extend_gguf(source, words)
        agree(done.target, words)
        assert done.change.tensors == {}


def test_one_set_of_factors(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", "arcee")
    assert extend_gguf(source, LLAMA3).change.tensors == {FREQS: "added"}
    accepted(refused(source, LONGROPE, "no long and short factors for 'arcee'"), source)


# --- windows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["gemma3", "gemma3n", "olmo2"])
def test_windows_of_their_own(arch: str, tmp_path: Path) -> None:
    """Their layers with a window keep base and scale, and so must what would touch them."""
    source = make_model(tmp_path / "x.gguf", arch, keys=WINDOW)
    plain = {"dimension_count": HEAD, "scaling.original_context_length": TRAINED}
    yarn = extend_gguf(source, YARN)
    agree(yarn.target, YARN)
    assert below(yarn.target, arch) == plain | {
        "freq_base": 500000.0,
        "scaling.type": "yarn",
        "scaling.factor": 4.0,
    }
    assert any("look back 512 tokens" in note for note in yarn.change.advice)
    ntk = extend_gguf(source, NTK)
    agree(ntk.target, NTK)
    theta = pytest.approx(500000 * 4 ** (64 / 62))
    own = {"freq_base_swa": 500000.0} if arch == "olmo2" else {}
    assert below(ntk.target, arch) == plain | {"freq_base": theta} | own
    agree(extend_gguf(source, PI).target, PI)
    line = refused(source, ATTENTION, "attention factor on the windowed layers")
    assert "leave it at its default" in line
    for layers in ("all", "full_attention", "sliding_attention"):
        said = "cannot name layers: those with a window keep their own base"
        assert "leave --layers out" in refused(source, YARN | {"layers": layers}, said)


@pytest.mark.parametrize("arch", ["gemma2", "gpt-oss"])
def test_windows_that_turn_as_the_others(arch: str, tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", arch, keys=WINDOW)
    words = ATTENTION | {"layers": "all"}
    agree(extend_gguf(source, words).target, words)
    said = "cannot name layers: all of them turn alike"
    refused(source, YARN | {"layers": "full_attention"}, said)


# --- long and short factors -------------------------------------------------------------------


@pytest.mark.parametrize("case", EXPRESSIBLE)
@pytest.mark.parametrize("arch", ["phi3", "phimoe"])
def test_long_and_short_always(arch: str, case: str, tmp_path: Path) -> None:
    """These read both tensors under any type, and no rope_freqs."""
    source = make_model(tmp_path / "x.gguf", arch)
    done = extend_gguf(source, EXPRESSIBLE[case])
    agree(done.target, EXPRESSIBLE[case])
    assert FREQS not in tensors_of(done.target)


LONG_KEYS = {
    "context_length": 4 * TRAINED,
    "rope.scaling.original_context_length": TRAINED,
    "rope.scaling.attn_factor": 1.19,
}
LONG_TENSORS = {LONG: made.LONG, SHORT: made.SHORT}


@pytest.mark.parametrize("case", EXPRESSIBLE)
@pytest.mark.parametrize(
    ("arch", "typed"), [("phi3", False), ("phi3", True), ("llama", True), ("mistral3", True)]
)
def test_files_with_long_and_short(arch: str, case: str, typed: bool, tmp_path: Path) -> None:
    """As Phi-3's of 128k; the trained length is the original one."""
    keys = LONG_KEYS | ({"rope.scaling.type": "longrope"} if typed else {})
    source = make_model(tmp_path / "x.gguf", arch, keys=keys, tensors=LONG_TENSORS)
    done = extend_gguf(source, EXPRESSIBLE[case], replace=True)
    assert done.change.geometry.trained_length == TRAINED
    agree(done.target, EXPRESSIBLE[case])
    assert set(tensors_of(done.target)) == set(tensors_of(source))


def test_when_the_context_is_made(tmp_path: Path) -> None:
    """llama.cpp chooses by the size of the context, and the user is told."""
    done = extend_gguf(make_model(tmp_path / "x.gguf", "phi3"), LONGROPE)
    (note,) = [n for n in done.change.advice if "-c" in n]
    assert f"more than {TRAINED} tokens" in note


def test_longrope_beside_rope_freqs(tmp_path: Path) -> None:
    """Where both stand, llama.cpp would not even load the file."""
    tensors = {FREQS: [1.0] * 16 + [4.0] * 16}
    source = make_model(tmp_path / "x.gguf", tensors=tensors)
    said = "a tensor rope_freqs.weight, which llama.cpp prefers"
    more: dict[str, Any] = {"replace": True}
    words = LONGROPE | {"trained_length": TRAINED}
    line = refused(source, words, said, **more)
    for method in ("llama3", "ntk-by-parts"):
        assert method in line
        extend_gguf(source, LLAMA3 | {"trained_length": TRAINED}, dry_run=True, **more)


# --- ramps that are read ----------------------------------------------------------------------


def test_mistral3_reads_the_ends_of_the_ramp(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", "mistral3")
    done = extend_gguf(source, BETAS)
    agree(done.target, BETAS)
    assert done.change.tensors == {}
    found = below(done.target, "mistral3")
    assert (found["scaling.yarn_beta_fast"], found["scaling.yarn_beta_slow"]) == (16.0, 2.0)


def test_mistral3_with_a_scaling_of_its_own(tmp_path: Path) -> None:
    """As released: yarn, with a multiplier that cancels the temperature."""
    keys = {
        "context_length": 4 * TRAINED,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": TRAINED,
        "rope.scaling.yarn_beta_fast": 64.0,
        "rope.scaling.yarn_beta_slow": 2.0,
        "rope.scaling.yarn_log_multiplier": 1.0,
    }
    source = make_model(tmp_path / "x.gguf", "mistral3", keys=keys)
    rotation = inspect_gguf(source).rotation
    assert (rotation.beta_fast, rotation.beta_slow) == (64.0, 2.0)
    assert rotation.frequencies(1).attention_factor == pytest.approx(1.0)
    for words in (YARN | {"factor": 8}, BETAS, NTK, LLAMA3):
        done = extend_gguf(source, words, tmp_path / "y.gguf", replace=True)
        agree(done.target, words)
        done.target.unlink()


def test_elsewhere_these_keys_are_read_by_nobody(tmp_path: Path) -> None:
    keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.yarn_beta_fast": 64.0,
        "rope.scaling.yarn_attn_factor": 3.0,
        "rope.scaling.yarn_log_multiplier": 1.0,
    }
    rotation = inspect_gguf(make_model(tmp_path / "x.gguf", keys=keys)).rotation
    assert (rotation.beta_fast, rotation.log_multiplier) == (32.0, 0.0)
    found = rotation.frequencies(1).attention_factor
    assert found == pytest.approx(0.1 * math.log(4) + 1)


# --- parts of a head --------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["gptneox", "phi2", "stablelm", "glm4", "granite"])
def test_a_part_of_the_head_turns(arch: str, tmp_path: Path) -> None:
    keys = {"rope.dimension_count": 24, "attention.key_length": 96}
    source = make_model(tmp_path / "x.gguf", arch, keys=keys)
    geometry = RotaryGeometry(96, 24, 500000.0, TRAINED)
    for words in (YARN, PI, NTK):
        done = extend_gguf(source, words)
        assert done.change.geometry == geometry
        agree(done.target, words, geometry)


def test_pairs_that_stand_still_already(tmp_path: Path) -> None:
    """Pretrained as p-RoPE: pi and ntk leave them alone, others would not."""
    tensors = {FREQS: [1.0] * 24 + [1e30] * 8}
    source = make_model(tmp_path / "x.gguf", tensors=tensors)
    found = inspect_gguf(source)
    assert not found.rotation.scaled
    geometry = RotaryGeometry(HEAD, HEAD, 500000.0, TRAINED, 24)
    for words in (PI, NTK):
        done = extend_gguf(source, words)
        assert done.change.geometry == geometry
        agree(done.target, words, geometry)
    accepted(refused(source, LLAMA3, "stops 8 of its pairs"), source)
    accepted(refused(source, YARN, "stops 8 of its pairs"), source)
