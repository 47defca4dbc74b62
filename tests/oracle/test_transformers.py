"""Every method that transformers has words for, against transformers' own functions in float32.

A configuration carries the method's block and nothing else of ours; transformers computes.
"""

import logging
from dataclasses import dataclass
from typing import Any

import pytest
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ropepatch.errors import NotExpressibleError
from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method
from ropepatch.methods.llama3 import Llama3
from ropepatch.methods.table import METHODS, method_of_block
from ropepatch.methods.yarn import Yarn
from tests.examples import EXAMPLES
from tests.oracle.compare import assert_close, relative_error

FACTORS = (1.25, 6.0, 16.0)
SHAPES = [
    (width, theta, trained)
    for width in (64, 80, 128)
    for theta, trained in ((1e4, 4096), (5e5, 8192), (1e6, 32768))
]
EXPRESSIBLE = [name for name, cls in METHODS.items() if cls.rope_type is not None]
READ_BACK = ("yarn", "pi", "dynamic-ntk", "llama3", "longrope")
"""Methods that a block names; the others are written in another method's words."""


@dataclass(frozen=True)
class Case:
    """A method for a geometry, both small enough to name in a test's id."""

    method: Method
    geometry: RotaryGeometry

    @property
    def label(self) -> str:
        g = self.geometry
        shape = f"{g.rotary_dim}of{g.head_dim}-{g.theta:g}"
        others = [
            f"{key}={value}"
            for key, value in self.method.parameters().items()
            if isinstance(value, int | float | str) and key != "factor"
        ]
        return "-".join([self.method.name, f"{self.method.factor:g}", shape, *others])

    @property
    def lengths(self) -> tuple[int, ...]:
        """Below, at and above the trained length; one is enough for a static method."""
        trained = self.geometry.trained_length
        if not self.method.length_dependent:
            return (trained,)
        return (trained // 2, trained, trained + 1, 2 * trained, 8 * trained)


def resized(values: Any, pairs: int) -> Any:
    """An example's list for another number of pairs, still one number per pair."""
    if not isinstance(values, list):
        return values
    return tuple(float(values[i % len(values)]) for i in range(pairs))


def build(name: str, parameters: dict[str, Any], pairs: int) -> Method:
    return METHODS[name](**{key: resized(value, pairs) for key, value in parameters.items()})


def cases(*, partial: bool) -> list[Case]:
    """Every example at every shape; the first of each method at more factors."""
    found = []
    for name in EXPRESSIBLE:
        first = EXAMPLES[name][0]
        for width, theta, trained in SHAPES[::4] if partial else SHAPES:
            rotary = width // 4 if partial else width
            geometry = RotaryGeometry(width, rotary, theta, trained)
            for parameters in (*EXAMPLES[name], *({**first, "factor": f} for f in FACTORS)):
                method = build(name, parameters, geometry.pairs)
                if not (partial and (name == "p-rope" or "keep" in parameters)):
                    found.append(Case(method, geometry))
    return found


def config_of(case: Case) -> Any:
    """A tiny configuration that carries the method's block."""
    geometry, heads = case.geometry, 2
    block = case.method.rope_parameters(geometry)
    words: dict[str, Any] = {
        "hidden_size": heads * geometry.head_dim,
        "num_attention_heads": heads,
        "max_position_embeddings": case.method.config_length(geometry),
    }
    if geometry.rotary_dim == geometry.head_dim:
        return LlamaConfig(rope_parameters=block, **words)
    block["partial_rotary_factor"] = geometry.rotary_dim / geometry.head_dim
    return GPTNeoXConfig(rope_parameters=block, **words)


def transformers_says(config: Any, length: int) -> Frequencies:
    """What transformers computes for an input of `length` tokens."""
    rope_type = config.rope_parameters["rope_type"]
    if rope_type == "default":
        partial = isinstance(config, GPTNeoXConfig)
        module: Any = GPTNeoXRotaryEmbedding if partial else LlamaRotaryEmbedding
        inv_freq, attention = module.compute_default_rope_parameters(config)
    else:
        inv_freq, attention = ROPE_INIT_FUNCTIONS[rope_type](config, "cpu", seq_len=length)
    return Frequencies(tuple(inv_freq.double().tolist()), float(attention))


def assert_agrees(case: Case) -> None:
    config = config_of(case)
    for length in case.lengths:
        ours = case.method.frequencies(case.geometry, length)
        theirs = transformers_says(config, length)
        assert_close(theirs.inv_freq, ours.inv_freq, case.method.float32_tolerance)
        assert relative_error(theirs.attention_factor, ours.attention_factor) <= 1e-7


@pytest.mark.parametrize("case", cases(partial=False), ids=lambda case: case.label)
def test_whole_heads(case: Case) -> None:
    assert_agrees(case)


@pytest.mark.parametrize("case", cases(partial=True), ids=lambda case: case.label)
def test_partly_turned_heads(case: Case) -> None:
    assert_agrees(case)


@pytest.mark.parametrize(
    ("name", "turning"),
    [*(("pi", turning) for turning in (0, 1, 16, 31)), *(("ntk", t) for t in (2, 16, 31))],
)
def test_heads_with_stopped_pairs(name: str, turning: int) -> None:
    """p-RoPE models: `proportional`, with the base or the factor of the method."""
    geometry = RotaryGeometry(64, 64, 1e6, 8192, turning)
    assert_agrees(Case(METHODS[name](factor=4.0), geometry))


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("betas", "theta", "trained"),
    [
        ((32.0, 1.0), 1e4, 128),  # the fastest pair turns less than 32 times: low clamps to 0
        ((32.0, 1.0), 1e4, 4),  # even less than once: both ends clamp to 0
        ((32.0, 1.0), 1e4, 2**17),  # the slowest pair turns more than once: high is beyond it
        ((32.0, 1.0), 100.0, 2**17),  # and far more often: high clamps to d - 1
        ((4.0, 4.0), 1e4, 4096),  # one end for both, kept apart by 0.001
    ],
)
def test_guards_of_the_yarn_ramp(
    betas: tuple[float, float], theta: float, trained: int, truncate: bool
) -> None:
    fast, slow = betas
    method = Yarn(factor=8.0, beta_fast=fast, beta_slow=slow, truncate=truncate)
    assert_agrees(Case(method, RotaryGeometry(64, 64, theta, trained)))


def test_every_type_is_tried() -> None:
    tried = {case.method.rope_parameters(case.geometry)["rope_type"] for case in examples()}
    assert tried == {*ROPE_INIT_FUNCTIONS, "default"}


@pytest.mark.parametrize("name", METHODS)
def test_the_written_type_is_the_announced_one(name: str) -> None:
    geometry = RotaryGeometry(64, 64, 10000.0, 4096)
    cls = METHODS[name]
    method = build(name, EXAMPLES[name][0], geometry.pairs)
    if cls.rope_type is None:
        with pytest.raises(NotExpressibleError):
            method.rope_parameters(geometry)
    else:
        assert method.rope_parameters(geometry)["rope_type"] == cls.rope_type


def examples() -> list[Case]:
    """Every example once, as is."""
    geometry = RotaryGeometry(64, 64, 10000.0, 4096)
    return [
        Case(build(name, parameters, geometry.pairs), geometry)
        for name in EXPRESSIBLE
        for parameters in EXAMPLES[name]
    ]


@pytest.mark.parametrize("case", examples(), ids=lambda case: case.label)
def test_transformers_has_no_complaint(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """Its validation logs what it finds odd, on loggers that do not propagate."""
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        config_of(case)
    finally:
        logger.removeHandler(caplog.handler)
    complaints = [record.getMessage() for record in caplog.records]
    block = case.method.rope_parameters(case.geometry)
    if block["rope_type"] == "proportional" and "factor" in block:
        # it computes with this factor, and calls it unrecognized
        complaints = [c for c in complaints if "Unrecognized keys" not in c or "factor" not in c]
    assert complaints == []


# --- reading back -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", examples(), ids=lambda case: case.label)
def test_a_block_reads_back(case: Case) -> None:
    """As the method itself, or at least as one with the same frequencies."""
    method, geometry = case.method, case.geometry
    block = method.rope_parameters(geometry)
    read = method_of_block(block)
    if block["rope_type"] in ("default", "proportional"):  # theta and the stopped pairs are
        turning = round(block.get("partial_rotary_factor", 1) * geometry.pairs)  # the geometry's
        geometry = RotaryGeometry(64, 64, block["rope_theta"], 4096, turning)
    for length in case.lengths:
        ours = method.frequencies(case.geometry, length)
        again = read.frequencies(geometry, length) if read else geometry.base_frequencies()
        assert again == ours


@pytest.mark.parametrize("name", READ_BACK)
def test_a_block_reads_back_as_the_same_method(name: str) -> None:
    geometry = RotaryGeometry(64, 64, 10000.0, 4096)
    for parameters in EXAMPLES[name]:
        if "keep" in parameters:  # becomes the geometry's
            continue
        method = build(name, parameters, geometry.pairs)
        lost: dict[str, Any] = {}
        if name == "dynamic-ntk":  # how far it was meant to reach stands nowhere
            lost = {"factor": 1.0}
        if name == "longrope" and "short_factor" not in parameters:
            lost = {"short_factor": (1.0,) * geometry.pairs}
        read = method_of_block(method.rope_parameters(geometry))
        assert read == type(method)(**{**method.parameters(), **lost})


def test_ntk_by_parts_reads_back_as_llama3() -> None:
    geometry = RotaryGeometry(64, 64, 10000.0, 4096)
    block = METHODS["ntk-by-parts"](factor=4.0).rope_parameters(geometry)
    read = method_of_block(block)
    assert read == Llama3(factor=4.0, low_freq_factor=1.0, high_freq_factor=32.0)
