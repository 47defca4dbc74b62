"""Every method against numbers that others computed: peers' own code, and mpmath from the papers.

The two files in `tests/data` hold the numbers and say where they come from. Both are exact to
float64, and so must the methods be.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ropepatch.geometry import RotaryGeometry
from ropepatch.methods.base import Method, ntk_theta
from ropepatch.methods.dynamic_ntk import DynamicNtk
from ropepatch.methods.dynamic_yarn import DynamicYarn
from ropepatch.methods.llama3 import Llama3
from ropepatch.methods.longrope import LongRope
from ropepatch.methods.ntk import NtkAware
from ropepatch.methods.ntk_by_parts import NtkByParts
from ropepatch.methods.p_rope import PRope
from ropepatch.methods.pi import PositionInterpolation
from ropepatch.methods.ramps import correction_dim
from ropepatch.methods.table import METHODS
from ropepatch.methods.yarn import Yarn
from tests.oracle.compare import assert_close, relative_error

TOLERANCE = 1e-12
DATA = Path(__file__).parents[1] / "data"
PEERS: dict[str, Any] = json.loads((DATA / "inv_freq.json").read_text(encoding="utf-8"))["tables"]
PAPERS: dict[str, Any] = json.loads((DATA / "handcalc.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Row:
    """One method at one length, and the numbers it must give."""

    name: str
    method: Method
    geometry: RotaryGeometry
    length: int
    inv_freq: tuple[float, ...]
    attention_factor: float


# --- peers' own code --------------------------------------------------------------------------

Case = dict[str, float]


def any_length(*methods: Callable[[Case], Method]) -> Callable[[Case], list[tuple[Method, int]]]:
    """Static methods: whatever the length, here ten times the trained one."""
    return lambda case: [(m(case), 10 * int(case.get("original_ctx", 4096))) for m in methods]


def at_ratio(method: Callable[[Case], Method]) -> Callable[[Case], list[tuple[Method, int]]]:
    """Methods that follow the length, which the case gives as a multiple of the trained one."""
    return lambda case: [(method(case), round(case["seq_len_over_original"] * trained(case)))]


def trained(case: Case) -> int:
    return int(case.get("original_ctx", 4096))


def proportional(case: Case) -> list[tuple[Method, int]]:
    keep = case["proportion"]
    slowed = PositionInterpolation(factor=case["factor"], keep=keep)
    return [(slowed, 4096), *([(PRope(keep=keep), 4096)] if case["factor"] == 1 else [])]


READERS: dict[str, Callable[[Case], list[tuple[Method, int]]]] = {
    "linear": any_length(lambda c: PositionInterpolation(factor=c["factor"])),
    "ntk": any_length(lambda c: NtkAware(factor=c["factor"])),
    "yarn": any_length(lambda c: Yarn(factor=c["factor"])),
    "yarn_truncate_false": any_length(lambda c: Yarn(factor=c["factor"], truncate=False)),
    "dynamic_ntk": at_ratio(lambda c: DynamicNtk(factor=8, ntk_factor=c["factor"])),
    "dynamic_yarn": at_ratio(lambda c: DynamicYarn(factor=8)),
    # s = max(length / original, 4) in the source too: it divides by the original length
    "dynamic_yarn_finetuned4x": at_ratio(lambda c: DynamicYarn(factor=8, tuned_factor=4)),
    "llama3": any_length(lambda c: Llama3(factor=c["factor"])),
    "llama3_high32": any_length(
        lambda c: NtkByParts(factor=c["factor"]),
        lambda c: Llama3(factor=c["factor"], low_freq_factor=1, high_freq_factor=32),
    ),
    "proportional": proportional,
}


def rows_of_peers() -> Iterator[Row]:
    for table, content in PEERS.items():
        for row in content["rows"]:
            case = row["case"]
            width = int(case["head_dim"] if "head_dim" in case else case["rotary_dim"])
            geometry = RotaryGeometry(width, width, case["base"], trained(case))
            label = ",".join(f"{value:g}" for value in case.values())
            for method, length in READERS[table](case):
                yield Row(
                    f"{table}[{label}]-{method.name}",
                    method,
                    geometry,
                    length,
                    tuple(row["inv_freq"]),
                    row["attention_factor"],
                )


# --- mpmath, from the papers ------------------------------------------------------------------


def floats(digits: list[str]) -> tuple[float, ...]:
    return tuple(float(text) for text in digits)


def geometry_of(model: dict[str, Any]) -> RotaryGeometry:
    width = model["head_dim"]
    return RotaryGeometry(width, width, model["base"], model["original_ctx"])


def static_rows(model: dict[str, Any]) -> Iterator[tuple[str, Method, float]]:
    """(array, method, attention factor), at ten times the trained length."""
    factor = model["factor"]
    temperature = float(model["sqrt_1_over_t"])
    mistral = float(model["jq_mistral_mscale_0_07"])
    longrope = float(model["longrope_attention_factor"])
    yield "pi", PositionInterpolation(factor=factor), 1.0
    yield "ntk_aware", NtkAware(factor=factor), 1.0
    yield "ntk_by_parts_paper", NtkByParts(factor=factor), 1.0
    yield "yarn_code_truncate", Yarn(factor=factor), temperature
    yield "yarn_code_no_truncate", Yarn(factor=factor, truncate=False), temperature
    yarn_mistral = Yarn(factor=factor, beta_fast=128, beta_slow=2, attention_factor=mistral)
    yield "yarn_code_beta128_2", yarn_mistral, mistral
    yield "pi", LongRope(factor=factor, long_factor=(factor,) * 64), longrope
    base, blend = (floats(model["inv_freq"][k]) for k in ("default", "yarn_code_truncate"))
    searched = tuple(b / y for b, y in zip(base, blend, strict=True))
    yield "yarn_code_truncate", LongRope(factor=factor, long_factor=searched), longrope


def dynamic_rows(model: dict[str, Any]) -> Iterator[tuple[str, Method, float, float]]:
    """(array, method, length over the trained one, attention factor)."""
    factor = model["factor"]
    temperature = float(model["sqrt_1_over_t"])
    for name in model["inv_freq"]:
        match = re.fullmatch(r"dynamic_ntk_(paper|hf_factor(\d+))_len([\d.]+)L", name)
        if match:
            ntk_factor = float(match[2] or 1)
            yield name, DynamicNtk(factor=factor, ntk_factor=ntk_factor), float(match[3]), 1.0
    yield "default", DynamicYarn(factor=factor), 1.0, 1.0
    yield "yarn_code_truncate", DynamicYarn(factor=factor), factor, temperature
    yield "yarn_code_truncate", DynamicYarn(factor=1, tuned_factor=factor), 0.5, temperature
    yield "yarn_code_no_truncate", DynamicYarn(factor=1, truncate=False), factor, temperature
    longrope = float(model["longrope_attention_factor"])
    yield "default", LongRope(factor=factor, long_factor=(9.0,) * 64), 1.0, longrope
    swapped = LongRope(factor=factor, short_factor=(factor,) * 64, long_factor=(9.0,) * 64)
    yield "pi", swapped, 1.0, longrope


def rows_of_papers() -> Iterator[Row]:
    for label, model in PAPERS["models"].items():
        geometry = geometry_of(model)
        static = ((key, method, 10.0, warm) for key, method, warm in static_rows(model))
        for key, method, ratio, warm in (*static, *dynamic_rows(model)):
            length = round(ratio * geometry.trained_length)
            name = f"{label.partition(' ')[0]}-{key}-{method.name}-{length}"
            numbers = floats(model["inv_freq"][key])
            yield Row(name, method, geometry, length, numbers, warm)
    gemma = PAPERS["gemma4_global"]
    width, keep = gemma["head_dim"], gemma["proportion"]
    whole = RotaryGeometry(width, width, gemma["base"], 131072)
    numbers = floats(gemma["inv_freq"])
    yield Row("gemma4-p-rope", PRope(keep=keep), whole, 4096, numbers, 1.0)
    stopped = RotaryGeometry(width, width, gemma["base"], 131072, gemma["rotated_pairs"])
    slow = tuple(f / 4 for f in numbers)
    yield Row("gemma4-pi", PositionInterpolation(factor=4), stopped, 4096, slow, 1.0)


ROWS = (*rows_of_peers(), *rows_of_papers())
COVERED = {row.method.name for row in ROWS}


# --- tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_there_is_an_oracle(name: str) -> None:
    assert name in COVERED, f"no oracle for method {name}"


def test_every_table_is_read() -> None:
    assert PEERS.keys() == READERS.keys()
    assert all(PEERS[table]["rows"] for table in PEERS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_numbers(row: Row) -> None:
    answer = row.method.frequencies(row.geometry, row.length)
    assert_close(answer.inv_freq, row.inv_freq, TOLERANCE)
    assert relative_error(answer.attention_factor, row.attention_factor) <= TOLERANCE


@pytest.mark.parametrize("label", PAPERS["models"])
def test_geometry(label: str) -> None:
    model = PAPERS["models"][label]
    geometry = geometry_of(model)
    assert_close(geometry.inverse_frequencies(), floats(model["inv_freq"]["default"]), TOLERANCE)
    assert_close(geometry.rotations(), floats(model["rotations_r"]), TOLERANCE)


def test_geometry_of_gemma4() -> None:
    gemma = PAPERS["gemma4_global"]
    width, turning = gemma["head_dim"], gemma["rotated_pairs"]
    geometry = RotaryGeometry(width, width, gemma["base"], 131072, turning)
    assert geometry.pairs - geometry.turning == gemma["zero_pairs"]
    assert_close(geometry.inverse_frequencies(), floats(gemma["inv_freq"]), TOLERANCE)


@pytest.mark.parametrize("label", PAPERS["models"])
def test_base_of_ntk(label: str) -> None:
    model = PAPERS["models"][label]
    base = ntk_theta(geometry_of(model), model["factor"])
    assert relative_error(base, float(model["ntk_new_base"])) <= TOLERANCE


@pytest.mark.parametrize("label", PAPERS["models"])
def test_ends_of_the_yarn_ramp(label: str) -> None:
    model = PAPERS["models"][label]
    geometry = geometry_of(model)
    raw = model["correction_dims_raw"]
    low, high = correction_dim(32, geometry), correction_dim(1, geometry)
    assert relative_error(low, float(raw["beta_fast32"])) <= TOLERANCE
    assert relative_error(high, float(raw["beta_slow1"])) <= TOLERANCE
    assert [math.floor(low), math.ceil(high)] == model["correction_dims_code"]


@pytest.mark.parametrize("factor", PAPERS["yarn_sqrt_1_over_t_table"])
def test_temperature_of_yarn(factor: str) -> None:
    expected = float(PAPERS["yarn_sqrt_1_over_t_table"][factor])
    geometry = RotaryGeometry(64, 64, 10000.0, 4096)
    static = Yarn(factor=float(factor)).frequencies(geometry, 1)
    dynamic = DynamicYarn(factor=1).frequencies(geometry, round(float(factor) * 4096))
    assert relative_error(static.attention_factor, expected) <= TOLERANCE
    assert relative_error(dynamic.attention_factor, expected) <= TOLERANCE


@pytest.mark.parametrize("label", PAPERS["models"])
def test_temperature_of_yarn_mistral(label: str) -> None:
    """0.07 ln s + 1: a numerator of 0.7 over a denominator that vanishes."""
    model = PAPERS["models"][label]
    method = Yarn(factor=model["factor"], mscale=0.7, mscale_all_dim=1e-300)
    expected = float(model["jq_mistral_mscale_0_07"])
    assert relative_error(method.temperature(), expected) <= TOLERANCE


@pytest.mark.parametrize("case", PAPERS["longrope_attention_factor_table"])
def test_attention_of_longrope(case: str) -> None:
    length, factor = re.fullmatch(r"L=(\d+),s=([\d.]+)", case).groups()  # type: ignore[union-attr]
    geometry = RotaryGeometry(64, 64, 10000.0, int(length))
    method = LongRope(factor=float(factor), long_factor=(2.0,) * 32)
    expected = float(PAPERS["longrope_attention_factor_table"][case])
    for current in (1, geometry.trained_length, geometry.trained_length + 1):
        answer = method.frequencies(geometry, current)
        assert relative_error(answer.attention_factor, expected) <= TOLERANCE


@pytest.mark.parametrize("label", PAPERS["models"])
def test_longrope_switches_strictly_above_the_trained_length(label: str) -> None:
    model = PAPERS["models"][label]
    geometry = geometry_of(model)
    method = LongRope(factor=model["factor"], long_factor=(model["factor"],) * 64)
    short, long = (floats(model["inv_freq"][key]) for key in ("default", "pi"))
    length = geometry.trained_length
    assert_close(method.frequencies(geometry, length).inv_freq, short, TOLERANCE)
    assert_close(method.frequencies(geometry, length + 1).inv_freq, long, TOLERANCE)
