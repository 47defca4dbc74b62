"""Any recipe in any config: written and taken out again without a trace, or refused by name."""

import contextlib
import copy
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from ropepatch.config_json.layout import Layout, Schedule, read_layout
from ropepatch.config_json.plain import without_scaling
from ropepatch.config_json.plan import POSITION_KEYS, STAMP, erase_recipe
from ropepatch.config_json.write import Change, write_recipe
from ropepatch.errors import (
    AlreadyScaledError,
    ConfigError,
    GeometryError,
    NotExpressibleError,
    RopepatchError,
)
from ropepatch.families.table import family_of
from ropepatch.methods.table import METHODS
from ropepatch.recipe import Recipe
from tests.properties.configs import (
    DIALECTS,
    FLAT,
    FUZZED,
    NESTED,
    STRUCTURE,
    Json,
    configs,
    plausible,
    recipes,
    requests,
    thetas,
    values,
)


def written(config: Json, recipe: Recipe, dialect: Any) -> Change:
    """The change; what is refused is not of interest."""
    try:
        return write_recipe(config, recipe, dialect=dialect, replace=True)
    except RopepatchError as error:
        event(f"refused: {type(error).__name__}")
        assume(False)
        raise


def bare(config: Json) -> Json:
    return {key: value for key, value in config.items() if key != STAMP}


def reach(schedule: Schedule, length: int) -> tuple[float, ...]:
    """All a schedule says at a length, as one tuple of numbers."""
    found = schedule.frequencies(length)
    return (*found.inv_freq, found.attention_factor)


def assert_same(found: tuple[float, ...], wanted: tuple[float, ...]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert math.isclose(a, b, rel_tol=1e-12), (found, wanted)


LENGTHS = (1, 100, 5000, 100_000)
often = settings(max_examples=100, suppress_health_check=list(HealthCheck))


# --- written and taken out again --------------------------------------------------------------


@often
@given(request=requests())
def test_erasing_is_the_inverse_of_writing(request: tuple[Json, Recipe, Any]) -> None:
    config, recipe, dialect = request
    given_ = copy.deepcopy(config)
    try:
        change = write_recipe(config, recipe, dialect=dialect, replace=True)
    except RopepatchError as error:
        event(f"refused: {type(error).__name__}")
        assert config == given_
        return
    event(f"written: {recipe.method}")
    assert config == given_
    assert change.before == given_
    after = json.loads(json.dumps(change.after, allow_nan=False))  # as from the disk
    assert after == change.after
    assert erase_recipe(after) == given_
    assert after == change.after
    assert erase_recipe(after) == given_


@often
@given(request=requests())
def test_only_position_keys_change(request: tuple[Json, Recipe, Any]) -> None:
    config, recipe, dialect = request
    change = written(config, recipe, dialect)
    old, new = config, bare(change.after)
    if "text_config" in config:
        assert {k: v for k, v in old.items() if k != "text_config"} == {
            k: v for k, v in new.items() if k != "text_config"
        }
        old, new = old["text_config"], new["text_config"]
    changed = {k for k in {*old, *new} if old.get(k, "absent") != new.get(k, "absent")}
    assert changed <= set(POSITION_KEYS)


def test_every_key_that_a_family_may_write_is_remembered() -> None:
    for model_type in (*FLAT, *NESTED):
        family = family_of(model_type)
        assert {key for key, _ in family.theta_keys} <= set(POSITION_KEYS)
        assert set(family.partial_keys) <= set(POSITION_KEYS)


@often
@given(request=requests())
def test_twice_needs_replace(request: tuple[Json, Recipe, Any]) -> None:
    config, recipe, dialect = request
    after = written(config, recipe, dialect).after
    with pytest.raises(AlreadyScaledError):
        write_recipe(after, recipe, dialect=dialect)


@often
@given(request=requests(), data=st.data())
def test_replacing_never_compounds(request: tuple[Json, Recipe, Any], data: Any) -> None:
    config, first, dialect = request
    middle = written(config, first, data.draw(st.sampled_from(DIALECTS)))
    schedule = next(iter(middle.layout.schedules.values()))
    second = data.draw(recipes(schedule.geometry.pairs))
    at_once = written(config, second, dialect)
    assert write_recipe(middle.after, second, dialect=dialect, replace=True).after == at_once.after


@often
@given(request=requests(scaled=False))
def test_plain_configs_need_no_replace(request: tuple[Json, Recipe, Any]) -> None:
    config, recipe, dialect = request
    try:
        after = write_recipe(config, recipe, dialect=dialect).after
    except AlreadyScaledError:
        raise AssertionError("a plain config was taken for a scaled one") from None
    except RopepatchError:
        return
    assert after == write_recipe(config, recipe, dialect=dialect, replace=True).after


# --- what was written is what is read ---------------------------------------------------------


@often
@given(request=requests())
def test_what_is_read_back_is_what_was_meant(request: tuple[Json, Recipe, Any]) -> None:
    config, recipe, dialect = request
    change = written(config, recipe, dialect)
    read = read_layout(bare(change.after))
    assert read.family == change.layout.family
    assert read.groups == change.layout.groups
    for label, schedule in change.layout.schedules.items():
        if not read.groups_of(label):
            continue
        for length in (*LENGTHS, change.target_length):
            if label in change.methods:
                found = change.methods[label].frequencies(schedule.geometry, length)
                wanted = (*found.inv_freq, found.attention_factor)
            else:
                wanted = reach(schedule, length)
            assert_same(reach(read.schedules[label], length), wanted)


@often
@given(request=requests())
def test_dialects_mean_the_same(request: tuple[Json, Recipe, Any]) -> None:
    config, recipe, _ = request
    read: dict[str, Layout] = {}
    for dialect in ("v4", "v5", "both"):
        with contextlib.suppress(NotExpressibleError):
            after = written(config, recipe, dialect).after
            read[dialect] = read_layout(bare(after))
            assert read[dialect].dialect == dialect
    for dialect, layout in read.items():
        event(dialect)
        assert layout.schedules.keys() == read["v5"].schedules.keys()
        for label, schedule in layout.schedules.items():
            for length in LENGTHS:
                assert_same(reach(schedule, length), reach(read["v5"].schedules[label], length))


@often
@given(request=requests())
def test_auto_keeps_the_dialect(request: tuple[Json, Recipe, Any]) -> None:
    config, recipe, _ = request
    change = written(config, recipe, "auto")
    assert change.dialect in (change.layout.dialect, "v5")
    if change.dialect == change.layout.dialect:
        assert read_layout(bare(change.after)).dialect == change.dialect
    else:
        assert any("no words" in note for note in change.advice)


@often
@given(config_and_pairs=configs())
def test_without_scaling_is_plain(config_and_pairs: tuple[Json, int]) -> None:
    """What `verify` compares a foreign checkpoint with."""
    config, _ = config_and_pairs
    given_ = copy.deepcopy(config)
    try:
        layout = read_layout(config)
    except RopepatchError:  # such as a yarn of Phi-3, whose class reads longrope only
        return
    plain = read_layout(without_scaling(config))
    assert config == given_
    assert not plain.scaled
    for label, schedule in layout.schedules.items():
        base = schedule.geometry.base_frequencies()
        assert_same(reach(plain.schedules[label], 1), (*base.inv_freq, base.attention_factor))


# --- nothing is refused that need not be ------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", METHODS)
@given(data=st.data())
def test_a_plain_llama_takes_every_method(name: str, dialect: Any, data: Any) -> None:
    theta = data.draw(thetas)
    style: Json = data.draw(
        st.sampled_from(
            [
                {"rope_theta": theta, "rope_scaling": None},
                {"rope_theta": theta},
                {"rope_parameters": {"rope_type": "default", "rope_theta": theta}},
                {},
            ]
        )
    )
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": 4096,
        **style,
    }
    recipe = data.draw(recipes(32, name))
    if METHODS[name].rope_type is None:
        with pytest.raises(NotExpressibleError):
            write_recipe(config, recipe, dialect=dialect)
        return
    try:
        change = write_recipe(config, recipe, dialect=dialect)
    except RopepatchError as error:
        said = str(error)
        stopping = "'proportional'" in said and dialect in ("v4", "both")
        assert stopping or "changes nothing" in said or "nothing would change" in said, said
        return
    assert change.target_length == change.methods[""].target_length(
        change.layout.schedules[""].geometry
    )


# --- found once, and kept ---------------------------------------------------------------------

PHI2: Json = {
    "model_type": "phi",
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 2048,
    "partial_rotary_factor": 0.4,
    "rope_theta": 10000.0,
}


@pytest.mark.parametrize("scaling", [{}, {"rope_scaling": None}, {"rope_scaling": {}}], ids=str)
def test_the_part_that_turns_counts_without_a_scaling(scaling: Json) -> None:
    """The class default, 0.5, is not what Phi-2 was trained with."""
    assert read_layout(PHI2 | scaling).schedules[""].geometry.rotary_dim == 32


def test_stopped_pairs_of_mla_are_read_back() -> None:
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 2,
        "max_position_embeddings": 4096,
        "qk_rope_head_dim": 64,
    }
    after = write_recipe(config, Recipe.named("p-rope", keep=0.5)).after
    assert read_layout(bare(after)).schedules[""].geometry.turning == 16


def test_an_untouched_dynamic_schedule_is_not_moved() -> None:
    """`dynamic` counts from max_position_embeddings, which the other schedule would raise."""
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "max_position_embeddings": 512,
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
    }
    with pytest.raises(NotExpressibleError, match=r"full_attention layers are 'dynamic'"):
        write_recipe(config, Recipe.named("yarn", factor=4, layers="sliding_attention"))
    write_recipe(config, Recipe.named("yarn", factor=4, layers="all"), replace=True)


def test_version_4_cannot_name_a_theta_that_it_has_no_key_for() -> None:
    config = {
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "sliding_window": 64,
        "max_position_embeddings": 512,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }
    with pytest.raises(NotExpressibleError, match=r"no key for the rope_theta 10000 of sliding"):
        write_recipe(config, Recipe.named("yarn", factor=4), dialect="v4")


@pytest.mark.parametrize(
    "words",
    [
        {"head_dim": 10**9},
        {"hidden_size": 2**40},
        {"max_position_embeddings": 10**400},
        {"rope_theta": math.nan},
        {"rope_theta": "10000"},
        {"num_attention_heads": 0.25},
        {"sliding_window": [4096]},
        {"rope_scaling": {"rope_type": ["yarn"], "factor": 4}},
        {"rope_scaling": {"rope_type": "linear", "factor": 5e-324}},
        {"rope_scaling": {"rope_type": "yarn", "factor": "4"}},
    ],
    ids=str,
)
def test_absurd_values_cost_neither_time_nor_a_traceback(words: Json) -> None:
    with pytest.raises((ConfigError, GeometryError)):
        read_layout({"model_type": "llama", **plausible, **words})


# --- nonsense ---------------------------------------------------------------------------------

hurried = settings(max_examples=200, suppress_health_check=list(HealthCheck))


@hurried
@given(
    model_type=st.sampled_from(FUZZED),
    words=st.dictionaries(st.sampled_from(STRUCTURE), values, min_size=1, max_size=4),
    recipe=recipes(32),
    dialect=st.sampled_from(DIALECTS),
)
def test_nonsense_is_refused_by_name(
    model_type: str, words: Json, recipe: Recipe, dialect: Any
) -> None:
    """Refused with an error of ours, or understood; never anything else."""
    config = {"model_type": model_type, **plausible, **words}
    given_ = copy.deepcopy(config)
    with contextlib.suppress(RopepatchError):
        for schedule in read_layout(config).schedules.values():
            for length in LENGTHS:
                schedule.frequencies(length)
    with contextlib.suppress(RopepatchError):
        without_scaling(config)
    with contextlib.suppress(RopepatchError):
        after = write_recipe(config, recipe, dialect=dialect, replace=True).after
        # NaN is not equal to itself, so the two are compared as texts
        assert repr(sorted(erase_recipe(after).items())) == repr(sorted(given_.items()))


@hurried
@given(
    stamp=values | st.dictionaries(st.sampled_from(["before", "path", "recipe"]), values),
    words=st.dictionaries(st.sampled_from(STRUCTURE), values, max_size=2),
    recipe=recipes(32),
)
def test_nonsense_in_the_stamp_is_refused_by_name(stamp: Any, words: Json, recipe: Recipe) -> None:
    config = {"model_type": "llama", **plausible, **words, STAMP: stamp}
    with contextlib.suppress(RopepatchError):
        erase_recipe(config)
    for replace in (False, True):
        with contextlib.suppress(RopepatchError):
            write_recipe(config, recipe, replace=replace)


@hurried
@given(config=st.dictionaries(st.sampled_from(STRUCTURE) | st.text(max_size=3), values))
def test_any_object_is_refused_by_name(config: Json) -> None:
    with contextlib.suppress(RopepatchError):
        read_layout(config)
    with contextlib.suppress(RopepatchError):
        write_recipe(config, Recipe.named("yarn", factor=4))
