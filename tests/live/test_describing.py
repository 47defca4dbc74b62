"""`describe` and `verify`: numbers read back from the model, and a model that lies is caught."""

import math
from typing import Any

import pytest
import torch

import ropepatch
from ropepatch.errors import PatchConflictError, VerificationError
from ropepatch.model.rotary import PatchedRotaryEmbedding
from ropepatch.model.turning import Turn
from tests.live.by_hand import GEOMETRY
from tests.live.subjects import (
    CASES,
    DYNAMIC,
    FIRST,
    STATIC,
    TRAINED,
    Case,
    make,
    name_of,
    patched,
)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_numbers_are_the_methods_own(case: Case) -> None:
    """The float64 formulas, against what `describe` measured on the module's output."""
    method = ropepatch.METHODS[case[0]](**case[1])
    base = GEOMETRY.inverse_frequencies()
    with patched(make(), case) as handle:
        found = handle.describe()
    length = round(method.factor * TRAINED)
    want = method.frequencies(GEOMETRY, length)
    turning = [f for f in want.inv_freq if f]
    (one,) = found.proof.schedules
    assert (found.trained_length, found.target_length) == (TRAINED, length)
    assert (one.label, one.method, one.pairs, one.layers) == ("", case[0], 32, 2)
    assert one.changed_pairs == sum(
        not math.isclose(a, b, rel_tol=1e-6) for a, b in zip(want.inv_freq, base, strict=True)
    )
    assert one.attention_factor == pytest.approx(want.attention_factor, rel=1e-6)
    assert one.slowest_before == pytest.approx(2 * math.pi / min(base), rel=1e-5)
    assert one.slowest_after == pytest.approx(2 * math.pi / min(turning), rel=1e-5)
    assert one.worst_error <= method.float32_tolerance
    assert found.changes == (
        "growing" if method.grows else "once" if method.length_dependent else "never"
    )
    assert not found.short_exact
    assert found.recipe == {"method": case[0], **case[1]}


@pytest.mark.parametrize("case", FIRST, ids=name_of)
def test_short_exact_numbers(case: Case) -> None:
    with patched(make(), case, short_exact=True) as handle:
        found = handle.describe()
        assert found.short_exact
        assert found.live_only
        assert found.changes in ("once", "growing")
        assert found.proof.schedules[0].changed_pairs > 0
        assert "up to 64 tokens the pretrained frequencies" in str(found)
        assert "saved, it loads with ropepatch.load only" in str(found)


def test_every_schedule_is_described() -> None:
    with patched(make("gemma3"), STATIC) as handle:
        found = handle.describe()
        schedules = {one.label: one for one in found.proof.schedules}
        assert schedules["full_attention"].method == "yarn"
        assert schedules["sliding_attention"].method is None
        assert schedules["sliding_attention"].changed_pairs == 0
        assert (found.proof.layers_changed, found.proof.layer_count) == (1, 2)
        assert "sliding_attention: as before (1 layers)" in str(found)


def test_the_words_say_the_main_facts() -> None:
    with patched(make(), STATIC) as handle:
        shown = str(handle.describe())
    for fact in (
        "yarn on LlamaForCausalLM: 64 to 256 tokens, 2 of 2 layers",
        "factor 4",
        "31 of 32 pairs changed",
        "slowest wave 47,117 to 188,469 tokens",
        "attention factor 1.13863",
        "the same frequencies at every length",
    ):
        assert fact in shown
    with patched(make(), DYNAMIC) as handle:
        assert "follow the length from 64 tokens on" in str(handle.describe())
        assert repr(handle) == "<Patch dynamic-ntk of LlamaForCausalLM: 64 to 256 tokens>"
    assert repr(handle).endswith("(reverted)>")


def test_describing_changes_nothing_and_does_not_need_the_trained_regime() -> None:
    model = make()
    with patched(model, DYNAMIC) as handle, handle.pinned(200):
        assert handle.describe() == handle.describe()
        assert handle.describe().proof.length == 256


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_cast_model_is_described_alike(dtype: torch.dtype) -> None:
    model = make()
    with patched(model, STATIC) as handle:
        before = handle.describe()
        model.to(dtype)  # type: ignore[arg-type]
        assert handle.describe() == before


def test_a_patch_that_is_gone_is_not_described() -> None:
    model = make()
    handle = patched(model, STATIC)
    assert ropepatch.verify(model).proof == handle.describe().proof
    handle.revert()
    with pytest.raises(PatchConflictError, match="reverted"):
        handle.describe()
    with pytest.raises(PatchConflictError, match="carries no patch"):
        ropepatch.verify(model)


# --- models that turn by other numbers ----------------------------------------------------------


def turn_of(module: PatchedRotaryEmbedding, label: str, regime: int) -> Turn:
    if label in module.fixed:
        return module.fixed[label]
    assert module.varying is not None
    return module.varying.turn(label, regime)


@pytest.mark.parametrize("regime", [64, 256])
def test_a_table_broken_by_hand_is_found_at_both_ends(regime: int) -> None:
    with patched(make(), DYNAMIC) as handle:
        turn = turn_of(handle.modules[0], "", regime)
        for name in ("inv_freq", "wide"):
            getattr(turn, name).mul_(1.01)
        with pytest.raises(VerificationError, match="other frequencies"):
            handle.describe()
        with pytest.raises(VerificationError, match="other frequencies"):
            ropepatch.verify(handle.model)


def broken(model: Any, *names: str) -> None:
    """Whatever the module keeps its frequencies in, slower by a hundredth."""
    for module in model.modules():
        if isinstance(module, PatchedRotaryEmbedding):
            for turn in module.fixed.values():
                for name in names:
                    getattr(turn, name).mul_(1.01)


@pytest.mark.parametrize("name", ["inv_freq", "wide"])
def test_a_broken_table_is_found_whichever_it_is(name: str) -> None:
    """One serves single tokens, one serves longer inputs; both must be the method's."""
    with patched(make(), STATIC) as handle:
        broken(handle.model, name)
        with pytest.raises(VerificationError, match="other frequencies"):
            handle.describe()


def test_a_broken_schedule_that_was_to_stay_is_found() -> None:
    with patched(make("gemma3"), STATIC) as handle:
        turn = handle.modules[0].fixed["sliding_attention"]
        for name in ("inv_freq", "wide"):
            getattr(turn, name).mul_(1.01)
        with pytest.raises(VerificationError):
            handle.describe()


def test_a_broken_attention_factor_is_found() -> None:
    with patched(make(), STATIC) as handle:
        handle.modules[0].fixed[""].attention_factor = 1.0
        with pytest.raises(VerificationError, match="attention factor"):
            handle.describe()


def test_a_module_that_somebody_put_back_is_found() -> None:
    """The proof is of the model, not of the modules the patch once made."""
    model: Any = make()
    stock = model.model.rotary_emb
    with patched(model, STATIC) as handle:
        model.model.rotary_emb = stock
        with pytest.raises(VerificationError):
            handle.describe()
