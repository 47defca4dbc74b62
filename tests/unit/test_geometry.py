"""The numbers of a rotary embedding, and what is refused."""

import dataclasses
import math
from typing import Any

import pytest

from ropepatch.errors import GeometryError
from ropepatch.geometry import Frequencies, RotaryGeometry

LLAMA = RotaryGeometry(128, 128, 10000.0, 4096)
VALID: dict[str, Any] = {
    "head_dim": 64,
    "rotary_dim": 64,
    "theta": 10000.0,
    "trained_length": 4096,
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rotary_dim": 63}, "rotary_dim must be even and at least 2, not 63"),
        ({"rotary_dim": 0}, "rotary_dim must be even and at least 2, not 0"),
        ({"rotary_dim": -2}, "rotary_dim must be even and at least 2, not -2"),
        ({"rotary_dim": 66}, "rotary_dim 66 exceeds head_dim 64"),
        ({"head_dim": 0}, "rotary_dim 64 exceeds head_dim 0"),
        ({"head_dim": 2**16 + 1}, "head_dim 65537 is beyond any model"),
        ({"theta": 1.0}, "rope_theta must be finite and above 1, not 1.0"),
        ({"theta": -10000.0}, "rope_theta must be finite and above 1, not -10000.0"),
        ({"theta": math.nan}, "rope_theta must be finite and above 1, not nan"),
        ({"theta": math.inf}, "rope_theta must be finite and above 1, not inf"),
        ({"trained_length": 0}, "the trained length must be positive, not 0"),
        ({"trained_length": -1}, "the trained length must be positive, not -1"),
        ({"turning_pairs": 33}, "33 of 32 pairs cannot turn"),
        ({"turning_pairs": -1}, "-1 of 32 pairs cannot turn"),
    ],
)
def test_one_fault(words: dict[str, Any], message: str) -> None:
    with pytest.raises(GeometryError) as caught:
        RotaryGeometry(**VALID | words)
    assert str(caught.value) == f"{message}."


def test_all_faults_together() -> None:
    with pytest.raises(GeometryError) as caught:
        RotaryGeometry(head_dim=64, rotary_dim=65, theta=0.5, trained_length=0, turning_pairs=99)
    assert str(caught.value) == (
        "rotary_dim must be even and at least 2, not 65; rotary_dim 65 exceeds head_dim 64; "
        "rope_theta must be finite and above 1, not 0.5; "
        "the trained length must be positive, not 0; 99 of 32 pairs cannot turn."
    )


@pytest.mark.parametrize(
    "words",
    [
        {"rotary_dim": 2},
        {"head_dim": 65},
        {"head_dim": 2**16},
        {"theta": 1.5},
        {"trained_length": 1},
        {"turning_pairs": 0},
        {"turning_pairs": 32},
    ],
)
def test_the_last_valid_values(words: dict[str, Any]) -> None:
    assert RotaryGeometry(**VALID | words).pairs == words.get("rotary_dim", 64) // 2


def test_the_fastest_pair_turns_one_radian_per_token() -> None:
    inv_freq = LLAMA.inverse_frequencies()
    assert len(inv_freq) == LLAMA.pairs == 64
    assert inv_freq[0] == 1.0
    assert inv_freq[32] == pytest.approx(1 / 100, rel=1e-15)
    assert inv_freq[63] == pytest.approx(10000 ** (-126 / 128), rel=1e-15)
    assert LLAMA.base_frequencies() == Frequencies(inv_freq, 1.0)


def test_another_base() -> None:
    inv_freq = LLAMA.inverse_frequencies(1e6)
    assert inv_freq == RotaryGeometry(128, 128, 1e6, 4096).inverse_frequencies()
    assert inv_freq != LLAMA.inverse_frequencies()


def test_exponents_run_over_the_rotated_width() -> None:
    partial = RotaryGeometry(64, 16, 10000.0, 2048)
    assert partial.inverse_frequencies() == RotaryGeometry(16, 16, 1e4, 2048).inverse_frequencies()


def test_stopped_pairs_are_the_slowest_and_stand_still() -> None:
    stopped = RotaryGeometry(128, 128, 10000.0, 4096, turning_pairs=16)
    assert (stopped.pairs, stopped.turning, LLAMA.turning) == (64, 16, 64)
    assert stopped.inverse_frequencies() == (*LLAMA.inverse_frequencies()[:16], *(0.0,) * 48)
    assert stopped.rotations()[16:] == (0.0,) * 48


def test_nothing_turns() -> None:
    still = RotaryGeometry(64, 64, 10000.0, 4096, turning_pairs=0)
    assert still.turning == 0
    assert set(still.inverse_frequencies()) == {0.0}


def test_rotations_count_full_turns() -> None:
    geometry = RotaryGeometry(4, 4, 10000.0, 4096)
    turns = 4096 / (2 * math.pi)
    assert geometry.rotations() == pytest.approx((turns, turns / 100), rel=1e-15)


@pytest.mark.parametrize(
    ("geometry", "incomplete"),
    [
        (LLAMA, 18),  # the correction dimension of one turn is 45.03: pairs 46 to 63
        (RotaryGeometry(128, 128, 10000.0, 4096, turning_pairs=50), 4),
        (RotaryGeometry(128, 128, 10000.0, 4096, turning_pairs=40), 0),
        (RotaryGeometry(128, 128, 10000.0, 6), 64),
        (RotaryGeometry(128, 128, 10000.0, 2**20), 0),
    ],
)
def test_incomplete_pairs(geometry: RotaryGeometry, incomplete: int) -> None:
    assert geometry.incomplete_pairs() == incomplete


def test_wavelengths() -> None:
    turn = 2 * math.pi
    assert Frequencies((1.0, 0.5, 0.0)).wavelengths() == (turn, 2 * turn, math.inf)


def test_with_trained_length() -> None:
    longer = LLAMA.with_trained_length(8192)
    assert longer == RotaryGeometry(128, 128, 10000.0, 8192)
    assert LLAMA.trained_length == 4096
    with pytest.raises(GeometryError, match="the trained length must be positive, not 0"):
        LLAMA.with_trained_length(0)


def test_values_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LLAMA.theta = 1e6  # type: ignore[misc]
