"""What llama.cpp will turn by is what the method says, by two arithmetics and by known values."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.gguf_extending import extend_gguf, inspect_gguf
from ropepatch.recipe import Recipe
from tests.gguf_file import by_ggml
from tests.gguf_file.made import (
    EXPRESSIBLE,
    HEAD,
    LLAMA3,
    LONG,
    PAIRS,
    SHORT,
    TRAINED,
    YARN,
    make_model,
    read,
    tensors_of,
)

POSITIONS = [1, 7, 500, TRAINED - 1, 2 * TRAINED]
WHOLE = RotaryGeometry(HEAD, HEAD, 500000.0, TRAINED)


def agree(path: Path, words: dict[str, Any], geometry: RotaryGeometry = WHOLE) -> None:
    """The file's rotation is the method's at the trained and at the target length.

    The doubles may differ by what the file's float32 numbers lose. In float32 llama.cpp multiplies
    its angle by the same ratio once a pair, with two roundings each, and a ramp adds some more.
    """
    method = Recipe.from_dict(words).bind(geometry)
    target = method.target_length(geometry)
    rotation, loaded = inspect_gguf(path).rotation, by_ggml.load(path)
    assert loaded.n_ctx_train == rotation.context_length == target
    assert loaded.n_ctx_orig == rotation.original_length == geometry.trained_length
    for length in (1, geometry.trained_length, geometry.trained_length + 1, target):
        wanted = method.frequencies(geometry, length)
        found = rotation.frequencies(length)
        assert found.inv_freq == pytest.approx(wanted.inv_freq, rel=5e-7, abs=1e-29)
        assert found.attention_factor == pytest.approx(wanted.attention_factor, rel=2e-7)
        for position in POSITIONS:
            float32_agrees(loaded, length, position, wanted)


def float32_agrees(
    loaded: by_ggml.Loaded, context: int, position: int, wanted: Frequencies
) -> None:
    cos, sin = loaded.table(context, position)
    for pair, f in enumerate(wanted.inv_freq):
        angle = position * f
        allowed = wanted.attention_factor * (angle * (2 * pair + 10) * 2**-24 + 4e-7)
        assert abs(cos[pair] - wanted.attention_factor * math.cos(angle)) <= allowed
        assert abs(sin[pair] - wanted.attention_factor * math.sin(angle)) <= allowed


@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_every_method(case: str, tmp_path: Path) -> None:
    words = EXPRESSIBLE[case]
    done = extend_gguf(make_model(tmp_path / "x.gguf"), words)
    agree(done.target, words)
    assert done.proof is not None
    assert done.proof.pairs == PAIRS
    assert done.proof.worst_error < 1e-6


def test_the_comparison_would_tell(tmp_path: Path) -> None:
    """A factor off by a thousandth, or a ramp off by one, is seen."""
    target = extend_gguf(make_model(tmp_path / "x.gguf"), YARN).target
    agree(target, YARN)
    loaded = by_ggml.load(target)
    for near in ({"factor": 4.004}, {"beta_fast": 16}, {"attention_factor": 1.1385}):
        wrong = Recipe.from_dict(YARN | near).bind(WHOLE).frequencies(WHOLE, 1)
        with pytest.raises(AssertionError):
            float32_agrees(loaded, TRAINED, TRAINED - 1, wrong)


@pytest.mark.parametrize(
    ("base", "length", "head"),
    [
        (10000.0, 2048, 128),
        (1e6, 32768, 128),
        (100000.0, 8192, 64),
        (10000.0, 4096, 80),
        (10000.0, 131072, 64),  # the ramp would end beyond the last pair
    ],
)
@pytest.mark.parametrize("words", [YARN, LLAMA3, EXPRESSIBLE["ntk"]], ids=lambda w: w["method"])
def test_other_geometries(
    words: dict[str, Any], base: float, length: int, head: int, tmp_path: Path
) -> None:
    keys = {
        "rope.freq_base": base,
        "context_length": length,
        "embedding_length": 2 * head,
        "rope.dimension_count": head,
    }
    done = extend_gguf(make_model(tmp_path / "x.gguf", keys=keys), words)
    agree(done.target, words, RotaryGeometry(head, head, base, length))


def test_what_is_not_said_has_the_default(tmp_path: Path) -> None:
    """Base 10,000, and a head of all that the embedding gives it."""
    source = make_model(tmp_path / "x.gguf", without=("rope.freq_base", "rope.dimension_count"))
    done = extend_gguf(source, YARN)
    assert done.change.geometry == RotaryGeometry(HEAD, HEAD, 10000.0, TRAINED)
    agree(done.target, YARN, done.change.geometry)
    wide = make_model(
        tmp_path / "w.gguf",
        keys={"attention.key_length": 96},
        without=("rope.freq_base", "rope.dimension_count"),
    )
    done = extend_gguf(wide, YARN)
    assert done.change.geometry == RotaryGeometry(96, 96, 10000.0, TRAINED)
    agree(done.target, YARN, done.change.geometry)


# --- known values -----------------------------------------------------------------------------


def scaling(path: Path) -> dict[str, Any]:
    return {
        k.removeprefix("llama.rope."): v
        for k, v in read(path).items()
        if k.startswith("llama.rope")
    }


PLAIN = {
    "dimension_count": HEAD,
    "freq_base": 500000.0,
    "scaling.original_context_length": TRAINED,
}


def test_yarn(tmp_path: Path) -> None:
    target = extend_gguf(make_model(tmp_path / "x.gguf"), YARN).target
    assert scaling(target) == PLAIN | {"scaling.type": "yarn", "scaling.factor": 4.0}
    found = inspect_gguf(target).rotation.frequencies(1)
    assert found.attention_factor == pytest.approx(1.138629, abs=1e-6)
    assert by_ggml.load(target).table(1, 0)[0] == pytest.approx([1.138629] * PAIRS, abs=1e-6)
    # corr(32 turns) = 9.04, corr(1 turn) = 17.49 of 32 pairs: ends at 9 and 18
    base = WHOLE.inverse_frequencies()
    assert found.inv_freq[:10] == pytest.approx(base[:10], rel=1e-12)
    assert found.inv_freq[10] == pytest.approx(base[10] * (8 / 9 + 1 / 36), rel=1e-12)
    assert found.inv_freq[18:] == pytest.approx([f / 4 for f in base[18:]], rel=1e-12)


def test_yarn_with_an_attention_factor(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf")
    target = extend_gguf(source, YARN | {"attention_factor": 1.0}).target
    assert scaling(target)["scaling.attn_factor"] == pytest.approx(1 / 1.1386294, rel=1e-7)
    assert by_ggml.load(target).table(1, 0)[0] == pytest.approx([1.0] * PAIRS, abs=3e-7)
    same = YARN | {"attention_factor": 0.1 * math.log(4) + 1}
    assert "scaling.attn_factor" not in scaling(
        extend_gguf(source, same, tmp_path / "same.gguf").target
    )


def test_pi(tmp_path: Path) -> None:
    target = extend_gguf(make_model(tmp_path / "x.gguf"), EXPRESSIBLE["pi"]).target
    assert scaling(target) == PLAIN | {"scaling.type": "linear", "scaling.factor": 4.0}


def test_ntk(tmp_path: Path) -> None:
    """θ · 4^(64/62)."""
    target = extend_gguf(make_model(tmp_path / "x.gguf"), EXPRESSIBLE["ntk"]).target
    assert scaling(target) == PLAIN | {"freq_base": pytest.approx(500000 * 4 ** (64 / 62))}


def factors(path: Path, name: str) -> list[float]:
    row: list[float] = np.frombuffer(tensors_of(path)[name][2], np.float32).tolist()
    return row


def test_llama3(tmp_path: Path) -> None:
    """Against the rule as Meta's code writes it."""
    target = extend_gguf(make_model(tmp_path / "x.gguf"), LLAMA3).target
    assert scaling(target) == PLAIN
    wanted = []
    for pair in range(PAIRS):
        wave = 2 * math.pi * 500000 ** (2 * pair / HEAD)
        smooth = min(1.0, max(0.0, (TRAINED / wave - 1) / (4 - 1)))
        wanted.append(1 / ((1 - smooth) / 4 + smooth))
    assert {1.0, 4.0} < set(wanted)
    assert factors(target, by_ggml.FREQS) == pytest.approx(wanted, rel=1e-6)


def test_longrope(tmp_path: Path) -> None:
    target = extend_gguf(make_model(tmp_path / "x.gguf"), EXPRESSIBLE["longrope"]).target
    attention = math.sqrt(1 + math.log(4) / math.log(TRAINED))
    assert scaling(target) == PLAIN | {
        "scaling.type": "longrope",
        "scaling.attn_factor": pytest.approx(attention, rel=1e-7),
    }
    assert factors(target, by_ggml.LONG) == pytest.approx(LONG, rel=1e-7)
    assert factors(target, by_ggml.SHORT) == pytest.approx(SHORT, rel=1e-7)


def test_p_rope(tmp_path: Path) -> None:
    target = extend_gguf(make_model(tmp_path / "x.gguf"), EXPRESSIBLE["p-rope"]).target
    assert scaling(target) == PLAIN
    stopped = [float(np.float32(1e30))] * (PAIRS * 3 // 4)
    assert factors(target, by_ggml.FREQS) == [1.0] * (PAIRS // 4) + stopped
    cos, sin = by_ggml.load(target).table(1, 10**7)
    assert cos[PAIRS // 4 :].tolist() == [1.0] * len(stopped)
    assert abs(sin[PAIRS // 4 :]).max() < 1e-20
