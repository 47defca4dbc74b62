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
from ropepatch.config_json.write import (
    POSITION_KEYS,
    STAMP,
    Change,
    erase_recipe,
    write_recipe,
)
from ropepatch.errors import AlreadyScaledError, NotExpressibleError, RopepatchError
from ropepatch.families.table import family_of
from ropepatch.methods.table import METHODS
from ropepatch.recipe import Recipe
from tests.properties.strategies import VALID, divisors

Json = dict[str, Any]

FLAT = {
    "llama": ((1.0,), "rope_theta", None),
    "mistral": ((1.0,), "rope_theta", None),
    "qwen3": ((1.0,), "rope_theta", None),
    "mixtral": ((1.0,), "rope_theta", None),
    "smollm3": ((1.0,), "rope_theta", None),
    "deepseek_v3": ((1.0,), "rope_theta", None),
    "phi3": ((0.75, 1.0), "rope_theta", "partial_rotary_factor"),
    "stablelm": ((0.25, 0.5), "rope_theta", "partial_rotary_factor"),
    "gpt_neox": ((0.25, 0.5, 1.0), "rotary_emb_base", "rotary_pct"),
    "llama_of_somebody": ((1.0,), "rope_theta", None),
}
"""model_type -> parts of a head that may turn, and version 4's keys of theta and of that part."""

NESTED = {
    "gemma3_text": {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"},
    "olmo3": {"full_attention": "rope_theta"},
    "modernbert-decoder": {
        "full_attention": "global_rope_theta",
        "sliding_attention": "local_rope_theta",
    },
}
"""model_type -> version 4's keys of theta by layer type."""

DIALECTS = ("auto", "v4", "v5", "both")
TRAINED = (512, 2048, 4096, 32768)
factors = st.sampled_from([2.0, 4.0, 8.0]) | st.integers(65, 2048).map(lambda n: n / 64)
"""Reaching whole numbers of tokens: version 4's Phi has no other word for a factor."""
thetas = st.sampled_from([10000.0, 10000, 500000.0, 1e6])
strays: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {},
    optional={
        "rope_theta_note": st.text(max_size=3),
        "rope_interleaved": st.booleans(),
        "attention_bias": st.booleans(),
        "quantization_config": st.just({"bits": 4, "group": [1, 2]}),
        "pad_token_id": st.none(),
    },
)


def scalings(trained: int, pairs: int) -> st.SearchStrategy[tuple[Json, int]]:
    """Blocks that shipped files carry, with their `max_position_embeddings`."""
    factor = st.sampled_from([2.0, 4, 8.0])
    block: st.SearchStrategy[Json] = st.one_of(
        st.fixed_dictionaries(
            {"rope_type": st.just("yarn"), "factor": factor},
            optional={
                "beta_fast": st.just(32),
                "mscale": st.just(1.0),
                "attention_factor": st.just(1.0),
                "truncate": st.booleans(),
                "finetuned": st.just(True),
                "original_max_position_embeddings": st.just(trained),
            },
        ),
        st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": factor}),
        st.fixed_dictionaries({"rope_type": st.just("dynamic"), "factor": factor}),
        st.fixed_dictionaries(
            {
                "rope_type": st.just("llama3"),
                "factor": factor,
                "low_freq_factor": st.just(1.0),
                "high_freq_factor": st.just(4.0),
                "original_max_position_embeddings": st.just(trained),
            }
        ),
        st.fixed_dictionaries(
            {
                "rope_type": st.just("longrope"),
                "short_factor": divisors(pairs).map(list),
                "long_factor": divisors(pairs).map(list),
                "original_max_position_embeddings": st.just(trained),
            },
            optional={"factor": factor},
        ),
        st.fixed_dictionaries(
            {
                "rope_type": st.just("proportional"),
                "partial_rotary_factor": st.sampled_from([0.25, 0.5, 0.75]),
            },
            optional={"factor": factor},
        ),
    )
    lengths = st.sampled_from([trained, 2 * trained, 4 * trained])
    return st.tuples(block, lengths)


@st.composite
def sizes(draw: st.DrawFn, trained: int) -> tuple[Json, int]:
    """Sizes of a model, and the width of its heads."""
    heads, width = draw(st.sampled_from([2, 4])), draw(st.sampled_from([64, 96, 128]))
    words: Json = {
        "vocab_size": 128,
        "hidden_size": heads * width,
        "num_hidden_layers": draw(st.integers(1, 9)),
        "num_attention_heads": heads,
        "max_position_embeddings": trained,
    }
    kind = draw(st.sampled_from(["silent", "null", "own"]))
    if kind == "own":
        width = draw(st.sampled_from([64, 128]))
        words["head_dim"] = width
    elif kind == "null":
        words["head_dim"] = None
    return words, width


@st.composite
def flat_configs(draw: st.DrawFn, *, scaled: bool = True) -> tuple[Json, int]:
    """A config with one schedule, and its number of pairs."""
    model_type = draw(st.sampled_from(list(FLAT)))
    partials, theta_key, partial_key = FLAT[model_type]
    partial = draw(st.sampled_from(partials))
    trained = draw(st.sampled_from(TRAINED))
    words, width = draw(sizes(trained))
    if model_type in ("qwen3", "deepseek_v3"):  # their classes have a width of their own
        words["qk_rope_head_dim" if model_type == "deepseek_v3" else "head_dim"] = width
    pairs = int(width * partial) // 2
    block: Json = {"rope_type": "default"}
    if scaled and draw(st.booleans()):
        block, words["max_position_embeddings"] = draw(scalings(trained, pairs))
    theta = draw(thetas)
    dialect = draw(st.sampled_from(["v4", "v5", "both"]))
    if dialect != "v5":
        word = draw(st.sampled_from(["type", "rope_type"]))
        old: Json = {word: block["rope_type"], **{k: block[k] for k in block if k != "rope_type"}}
        plain = block == {"rope_type": "default"} and draw(st.booleans())
        words |= {theta_key: theta, "rope_scaling": None if plain else old}
    if dialect != "v4":
        words["rope_parameters"] = {**block, "rope_theta": theta}
    if partial_key and block["rope_type"] != "proportional":
        if dialect != "v5":
            words[partial_key] = partial
        if dialect != "v4":
            words["rope_parameters"]["partial_rotary_factor"] = partial
        if dialect == "both" and words["rope_scaling"] is not None:
            words["rope_scaling"]["partial_rotary_factor"] = partial
    if draw(st.booleans()):
        words["original_max_position_embeddings"] = trained
    return {"model_type": model_type, **draw(strays), **words}, pairs


@st.composite
def nested_configs(draw: st.DrawFn, *, scaled: bool = True) -> tuple[Json, int]:
    """A config with a schedule per layer type, and the number of pairs of each."""
    model_type = draw(st.sampled_from(list(NESTED)))
    trained = draw(st.sampled_from(TRAINED))
    words, width = draw(sizes(trained))
    if model_type == "gemma3_text":
        words["head_dim"] = width
    count = words["num_hidden_layers"]
    if draw(st.booleans()):
        kinds = st.sampled_from(["full_attention", "sliding_attention"])
        words["layer_types"] = draw(st.lists(kinds, min_size=count, max_size=count))
    words["sliding_window"] = draw(st.sampled_from([64, 1024]))
    blocks: dict[str, Json] = {
        label: {"rope_type": "default", "rope_theta": draw(thetas)}
        for label in ("full_attention", "sliding_attention")
    }
    if scaled and draw(st.booleans()):
        block, words["max_position_embeddings"] = draw(scalings(trained, width // 2))
        blocks["full_attention"] |= block
    if draw(st.booleans()):
        words["rope_parameters"] = blocks
    else:
        for label, key in NESTED[model_type].items():
            words[key] = blocks[label].pop("rope_theta")
        full = blocks["full_attention"]
        full.pop("rope_theta", None)
        words["rope_scaling"] = None if full == {"rope_type": "default"} else full
    config = {"model_type": model_type, **draw(strays), **words}
    if model_type == "gemma3_text" and draw(st.booleans()):
        config = {"model_type": "gemma3", "text_config": config, "vision_config": {"x": [1]}}
    return config, width // 2


def configs(*, scaled: bool = True) -> st.SearchStrategy[tuple[Json, int]]:
    return flat_configs(scaled=scaled) | nested_configs(scaled=scaled)


@st.composite
def recipes(draw: st.DrawFn, pairs: int, name: str | None = None) -> Recipe:
    """A recipe that fits a number of pairs."""
    name = name or draw(st.sampled_from(list(METHODS)))
    parameters = draw(VALID[name](pairs))
    return Recipe(
        method=name,
        factor=draw(factors),
        layers=draw(st.sampled_from([("auto",), ("all",), ("auto",), ("full_attention",)])),
        parameters=parameters,
    )


@st.composite
def requests(draw: st.DrawFn, *, scaled: bool = True) -> tuple[Json, Recipe, Any]:
    """A config, a recipe that fits its heads, and a dialect."""
    config, pairs = draw(configs(scaled=scaled))
    return config, draw(recipes(pairs)), draw(st.sampled_from(DIALECTS))


def written(config: Json, recipe: Recipe, dialect: Any, *, replace: bool = True) -> Change:
    """The change; what is refused is not of interest."""
    try:
        return write_recipe(config, recipe, dialect=dialect, replace=replace)
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


# --- nonsense ---------------------------------------------------------------------------------

json_keys = st.sampled_from(
    [
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "short_factor",
        "long_factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "full_attention",
        "sliding_attention",
        "model_type",
    ]
) | st.text(max_size=3)
scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([10**4, 4096, 10**30, -(10**30), 10**400, 0.25, 1e308, -1.5, 5e-324])
    | st.floats()
    | st.sampled_from(
        ["yarn", "linear", "dynamic", "llama3", "longrope", "proportional", "default", "mrope"]
    )
    | st.sampled_from(["su", "full_attention", "sliding_attention", "llama", "", "1", "nan"])
    | st.text(max_size=4)
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(json_keys, inner, max_size=5)
        | st.dictionaries(st.sampled_from(["rope_type", "rope_theta", "factor"]), inner, min_size=2)
    ),
    max_leaves=8,
)
STRUCTURE = (
    *POSITION_KEYS,
    "rotary_pct",
    "rotary_dim",
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "no_rope_layers",
    "no_rope_layer_interval",
    "cross_attention_layers",
    "attention_chunk_size",
    "qk_rope_head_dim",
    "global_head_dim",
    "per_layer_config",
    "alibi",
    "transformers_version",
    "model_type",
    "text_config",
    "llm_config",
)
"""Keys that are read somewhere."""

FUZZED = [*FLAT, *NESTED, "gemma4_text", "llama4_text", "falcon", "mllama_text_model", "gpt2"]
plausible: Json = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
}
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
