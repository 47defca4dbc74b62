"""What a training will need, by numbers that can be worked out by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropepatch.healing.estimate import Estimate, estimate, gib, probe
from ropepatch.healing.loss import BLOCK_BYTES
from ropepatch.healing.plan import HealPlan

GIB = 1024**3
BILLION = 10**9


def config(**words: Any) -> Any:
    """As of a Llama with a billion weights."""
    sizes = {"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32}
    return SimpleNamespace(**{**sizes, "intermediate_size": 8192, **words})


def asked(plan: dict[str, Any] | None = None, **words: Any) -> Estimate:
    made = HealPlan(**{"seq_len": 8192, "steps": 100, **(plan or {})})
    trained = BILLION if made.lora is None else BILLION // 50
    whole = {"parameters": BILLION, "trained": trained, "bfloat16": True, "free": 80 * GIB}
    return estimate(made, config(), **{**whole, **words})


def test_what_is_read() -> None:
    found = asked({"batch": 4, "seq_len": 2048})
    assert (found.steps, found.sequences, found.tokens) == (100, 400, 819_200)


@pytest.mark.parametrize(
    ("lora", "bfloat16", "weights", "optimizer"),
    [
        (None, False, 4.0, 12.0),  # float32, its gradients, two moments
        (None, True, 6.0, 12.0),  # and what autocast rounds
        (8, True, 2.08, 0.24),  # a frozen base in bfloat16, a fiftieth beside it
        (8, False, 4.0, 0.24),
    ],
)
def test_bytes_of_the_weights(
    lora: int | None, bfloat16: bool, weights: float, optimizer: float
) -> None:
    found = asked({"lora": lora}, bfloat16=bfloat16)
    assert found.weights / BILLION == pytest.approx(weights)
    assert found.optimizer / BILLION == pytest.approx(optimizer)


def test_bytes_of_a_teacher() -> None:
    assert asked(teacher=BILLION).teacher == 2 * BILLION
    assert asked(teacher=BILLION, bfloat16=False).teacher == 4 * BILLION
    assert asked().teacher == 0
    assert asked(teacher=BILLION).operations > asked().operations


def test_memory_is_the_sum() -> None:
    found = asked(teacher=BILLION)
    parts = (found.weights, found.optimizer, found.teacher, found.activations, found.loss)
    assert all(part > 0 for part in parts)
    assert found.memory == sum(parts)
    assert found.to_dict()["memory"] == found.memory
    assert found.loss >= 4 * BLOCK_BYTES


@given(
    short=st.sampled_from([512, 1024, 8192]),
    times=st.integers(2, 16),
    lora=st.sampled_from([None, 8]),
    bfloat16=st.booleans(),
    free=st.sampled_from([None, GIB, 24 * GIB, 1000 * GIB]),
)
def test_more_asks_for_more(
    short: int, times: int, lora: int | None, bfloat16: bool, free: int | None
) -> None:
    words: dict[str, Any] = {"bfloat16": bfloat16, "free": free}
    checkpointing = asked({"seq_len": short, "lora": lora}, **words).checkpointing
    base = {"seq_len": short, "lora": lora, "gradient_checkpointing": checkpointing, "batch": 16}
    one = asked(base, **words)
    longer = asked({**base, "seq_len": short * times}, **words)
    assert longer.memory > one.memory
    assert longer.operations > times * one.operations  # attention grows with the square
    assert longer.operations < times**2 * one.operations
    wider = asked({**base, "batch": 16 * times}, **words)
    assert wider.operations == pytest.approx(times * one.operations)
    assert wider.memory == one.memory
    side_by_side = asked({**base, "micro_batch": 4}, **words)
    assert side_by_side.activations == 4 * one.activations
    assert side_by_side.operations == one.operations
    more_steps = asked({**base, "steps": 100 * times}, **words)
    assert more_steps.operations == pytest.approx(times * one.operations)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_adapters_need_less(bfloat16: bool) -> None:
    full, lora = (asked({"lora": rank}, bfloat16=bfloat16) for rank in (None, 8))
    assert lora.memory < full.memory
    assert lora.optimizer < full.optimizer
    assert lora.operations < full.operations


def test_checkpointing_is_chosen_where_activations_are_large() -> None:
    whole = asked({"gradient_checkpointing": False}).activations
    assert whole > GIB
    assert not asked(free=None).checkpointing
    assert not asked(free=4 * whole).checkpointing
    assert asked(free=4 * whole - 4).checkpointing
    again = asked(free=4 * whole - 4)
    assert again.activations < whole / 5
    # once more forward
    assert again.operations == pytest.approx(asked(free=None).operations * 4 / 3)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("free", [None, 1, 10**18])
def test_checkpointing_is_what_is_asked_for(wanted: bool, free: int | None) -> None:
    assert asked({"gradient_checkpointing": wanted}, free=free).checkpointing is wanted


def test_operations_by_hand() -> None:
    """6 per weight and token, and attention: 2 products of half the length, of 3 passes."""
    found = asked({"seq_len": 8192, "batch": 1, "steps": 1}, free=None)
    attention = 3 * 2 * 16 * 2048 * 8192
    assert found.operations == pytest.approx(8192 * (6 * BILLION + attention))


def test_seconds() -> None:
    assert asked().seconds is None
    one = asked(speed=1e14)
    assert one.seconds == pytest.approx(one.operations / 4e13)
    four = asked(speed=1e14, world=4).seconds
    assert one.seconds is not None
    assert four == pytest.approx(one.seconds / 4)


@pytest.mark.parametrize(
    "words",
    [
        {"intermediate_size": None},
        {"intermediate_size": [4096, 8192]},
        {"num_attention_heads": None},
        {"head_dim": 64},
        {"head_dim": None},
    ],
)
def test_other_configs(words: dict[str, Any]) -> None:
    plan = HealPlan(8192, steps=100)
    given_: Any = {"parameters": BILLION, "trained": BILLION, "bfloat16": True}
    found = estimate(plan, config(**words), **given_)
    assert found.activations == estimate(plan, config(), **given_).activations


def test_a_probe_measures_this_machine() -> None:
    assert 1e8 < probe("cpu", bfloat16=False) < 1e15


@pytest.mark.parametrize(
    ("number", "said"), [(GIB, "1.0 GiB"), (2.55 * GIB, "2.5 GiB"), (GIB / 2, "512 MiB")]
)
def test_sizes_in_words(number: float, said: str) -> None:
    assert gib(number) == said
