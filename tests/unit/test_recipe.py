"""What a recipe says when it is wrong, and what it becomes when it is right."""

import math
from pathlib import Path
from typing import Any

import pytest

from ropepatch.errors import NoEffectError, RecipeError
from ropepatch.geometry import RotaryGeometry
from ropepatch.methods.dynamic_yarn import DynamicYarn
from ropepatch.methods.longrope import LongRope
from ropepatch.methods.p_rope import PRope
from ropepatch.methods.table import METHODS
from ropepatch.methods.yarn import Yarn
from ropepatch.recipe import Recipe, parse_length
from ropepatch.recipe_files import load_words, read_factors, read_recipe

GEOMETRY = RotaryGeometry(64, 64, 10000.0, 4096)
YARN_TAKES = "factor, beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim, truncate"


def faults(**words: Any) -> tuple[str, ...]:
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict(words)
    return caught.value.faults


# --- the method's name ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("yarm", "yarn"),
        ("long-rope", "longrope"),
        ("dynamic_ntkk", "dynamic-ntk"),
        ("ntk_by_part", "ntk-by-parts"),
        ("lama3", "llama3"),
        ("liner", "linear"),
    ],
)
def test_an_unknown_method_suggests_the_nearest(wrong: str, near: str) -> None:
    (fault,) = faults(method=wrong, factor=4)
    assert fault == (
        f"no method is called '{wrong}'. Did you mean '{near}'? Known: {', '.join(METHODS)}."
    )


@pytest.mark.parametrize("wrong", ["", "zzzzzz", "?"])
def test_a_method_unlike_any_other_lists_the_known(wrong: str) -> None:
    (fault,) = faults(method=wrong, factor=4)
    assert fault == f"no method is called '{wrong}'. Known: {', '.join(METHODS)}."


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("linear", "pi"),
        ("dynamic", "dynamic-ntk"),
        ("proportional", "p-rope"),
        ("su", "longrope"),
        ("YaRN", "yarn"),
        ("dynamic_ntk", "dynamic-ntk"),
        (" ntk ", "ntk"),
    ],
)
def test_other_words_for_a_method(word: str, name: str) -> None:
    extra = {"long_factor": [2.0] * 32} if name == "longrope" else {}
    assert Recipe.named(word, factor=4, **extra).method == name


# --- parameters -------------------------------------------------------------------------------


def test_an_unknown_parameter_names_the_known() -> None:
    (fault,) = faults(method="yarn", factor=4, beta_fats=16)
    assert fault == f"yarn takes no beta_fats; it takes {YARN_TAKES}"


def test_a_method_of_one_parameter_says_so() -> None:
    assert faults(method="ntk", factor=4, alpha=2) == ("ntk takes no alpha; it takes only factor",)


def test_words_of_other_methods_are_unknown() -> None:
    assert [f.partition(";")[0] for f in faults(method="pi", factor=2, beta_fast=1, alpha=2)] == [
        "pi takes no alpha",
        "pi takes no beta_fast",
    ]


@pytest.mark.parametrize("key", [1, 2.5, None, True, b"a", ("a", "b")], ids=repr)
def test_a_key_that_is_no_word_is_unknown(key: Any) -> None:
    """YAML has such keys: `1: 2` and `? [a, b]`; they must sort beside words."""
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict({"method": "yarn", "factor": 4, key: 1, "zebra": 2})
    assert len(caught.value.faults) == 2
    assert f"yarn takes no zebra; it takes {YARN_TAKES}" in caught.value.faults


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ({"method": "yarn", "beta_fast": "fast"}, "yarn: beta_fast must be a number, not 'fast'"),
        ({"method": "yarn", "beta_fast": True}, "yarn: beta_fast must be a number, not True"),
        ({"method": "yarn", "beta_fast": None}, "yarn: beta_fast must be a number, not None"),
        ({"method": "yarn", "beta_slow": [1]}, "yarn: beta_slow must be a number, not [1]"),
        ({"method": "yarn", "truncate": "no"}, "yarn: truncate must be true or false, not 'no'"),
        ({"method": "yarn", "truncate": 0}, "yarn: truncate must be true or false, not 0"),
        (
            {"method": "dynamic-ntk", "ntk_factor": math.nan},
            "dynamic-ntk: ntk_factor must be a number, not nan",
        ),
        ({"method": "pi", "keep": "most"}, "pi: keep must be a number or 'auto', not 'most'"),
        ({"method": "p-rope", "keep": True}, "p-rope: keep must be a number or 'auto', not True"),
        (
            {"method": "longrope", "long_factor": ["a"] * 2},
            "longrope: long_factor must be a list of numbers, not ['a', 'a']",
        ),
        (
            {"method": "longrope", "long_factor": 4},
            "longrope: long_factor must be a list of numbers, not 4",
        ),
    ],
)
def test_values_of_the_wrong_type(words: dict[str, Any], fault: str) -> None:
    assert faults(factor=4, **words) == (fault,)


def test_an_absurdly_large_integer_is_refused() -> None:
    (fault,) = faults(method="yarn", factor=4, beta_fast=10**400)
    assert fault.startswith("yarn: beta_fast must be ")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            {"method": "yarn", "beta_fast": 1, "beta_slow": 2},
            "yarn: beta_fast (1) must not be below beta_slow (2)",
        ),
        ({"method": "yarn", "beta_slow": 0}, "yarn: beta_slow must be above 0, not 0"),
        ({"method": "yarn", "beta_fast": "inf"}, "yarn: beta_fast must be above 0, not inf"),
        (
            {"method": "yarn", "attention_factor": 0},
            "yarn: attention_factor must be above 0, not 0",
        ),
        (
            {"method": "yarn", "mscale": 0.7},
            "yarn: mscale and mscale_all_dim count only together; give both or neither",
        ),
        (
            {"method": "dynamic-yarn", "beta_slow": 33},
            "dynamic-yarn: beta_fast (32) must not be below beta_slow (33)",
        ),
        (
            {"method": "dynamic-yarn", "tuned_factor": 0.5},
            "dynamic-yarn: tuned_factor must be at least 1, not 0.5",
        ),
        (
            {"method": "dynamic-ntk", "ntk_factor": -1},
            "dynamic-ntk: ntk_factor must be above 0, not -1",
        ),
        (
            {"method": "llama3", "low_freq_factor": 4},
            "llama3: low_freq_factor (4) must be below high_freq_factor (4)",
        ),
        (
            {"method": "llama3", "low_freq_factor": 8, "high_freq_factor": 2},
            "llama3: low_freq_factor (8) must be below high_freq_factor (2)",
        ),
        (
            {"method": "llama3", "low_freq_factor": 0},
            "llama3: low_freq_factor must be above 0, not 0",
        ),
        (
            {"method": "ntk-by-parts", "alpha": 32},
            "ntk-by-parts: alpha (32) must be below beta (32)",
        ),
        (
            {"method": "p-rope", "keep": 1.5},
            "p-rope: keep must be a fraction from 0 to 1, or 'auto', not 1.5",
        ),
        (
            {"method": "pi", "keep": -0.1},
            "pi: keep must be a fraction from 0 to 1, or 'auto', not -0.1",
        ),
        (
            {"method": "longrope", "long_factor": [1, 0]},
            "longrope: long_factor must be a list of numbers above 0",
        ),
        (
            {"method": "longrope", "long_factor": [1, 2], "short_factor": [1, math.inf]},
            "longrope: short_factor must be a list of numbers above 0",
        ),
        (
            {"method": "longrope", "long_factor": [1, 2], "attention_factor": -1},
            "longrope: attention_factor must be above 0, not -1",
        ),
    ],
)
def test_values_out_of_range(words: dict[str, Any], fault: str) -> None:
    assert faults(factor=4, **words) == (fault,)


@pytest.mark.parametrize(
    "words",
    [
        {"method": "yarn", "beta_fast": 2, "beta_slow": 2},
        {"method": "yarn", "mscale": 1, "mscale_all_dim": 0.5},
        {"method": "p-rope", "keep": 0},
        {"method": "p-rope", "keep": 1},
        {"method": "dynamic-yarn", "tuned_factor": 1},
        {"method": "llama3", "low_freq_factor": 3.9},
    ],
)
def test_the_last_valid_values(words: dict[str, Any]) -> None:
    Recipe.from_dict({"factor": 4, **words}).bind(GEOMETRY)


@pytest.mark.parametrize(
    "words",
    [
        {"method": "yarn", "mscale": "inf", "mscale_all_dim": 1},
        {"method": "yarn", "mscale": -50, "mscale_all_dim": 1},
        {"method": "yarn", "mscale": 1, "mscale_all_dim": -10 / math.log(4)},
        {"method": "dynamic-yarn", "tuned_factor": "inf"},
        {"method": "longrope", "long_factor": [2.0] * 32, "short_factor": []},
    ],
    ids=["infinite", "negative", "division by zero", "infinite scale", "empty list"],
)
def test_values_that_have_no_meaning(words: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        Recipe.from_dict({"factor": 4, **words})


def test_longrope_needs_its_list() -> None:
    assert faults(method="longrope", factor=4) == ("longrope needs long_factor",)


def test_longrope_needs_a_length() -> None:
    (fault,) = faults(method="longrope", long_factor=[2.0] * 32)
    assert "factor" in fault


def test_numbers_may_be_written_as_text() -> None:
    recipe = Recipe.named("yarn", factor="4", beta_fast="1.6e1")
    assert recipe.factor == 4.0
    assert dict(recipe.parameters) == {"beta_fast": 16.0}


def test_parameters_cannot_be_changed() -> None:
    recipe = Recipe.named("yarn", factor=4, beta_fast=16)
    with pytest.raises(TypeError):
        recipe.parameters["beta_fast"] = 1.0  # type: ignore[index]


# --- all faults together ----------------------------------------------------------------------


def test_all_faults_are_reported_together() -> None:
    found = faults(
        method="yarn",
        factor=4,
        to="soon",
        layers=3,
        beta_fats=1,
        truncate="no",
        beta_slow=64,
    )
    assert found == (
        "to: 'soon' is not a length; write tokens: 131072, 128k or 1m.",
        "layers must be words, not 3",
        f"yarn takes no beta_fats; it takes {YARN_TAKES}",
        "yarn: truncate must be true or false, not 'no'",
        "yarn: beta_fast (32) must not be below beta_slow (64)",
    )


def test_an_unknown_method_does_not_hide_a_wrong_factor() -> None:
    unknown, wrong = faults(method="yarm", factor=-1)
    assert unknown.startswith("no method is called 'yarm'.")
    assert wrong == "factor must be at least 1, not -1"


def test_several_faults_are_numbered_in_the_message() -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.named("pi", factor="x", keep=2)
    assert str(caught.value) == (
        "2 faults: (1) factor must be a number, not 'x'; "
        "(2) pi: keep must be a fraction from 0 to 1, or 'auto', not 2.0"
    )


def test_a_single_fault_stands_alone() -> None:
    assert str(RecipeError("one")) == str(RecipeError(["one"])) == "one"
    assert RecipeError("one").faults == ("one",)


# --- how far ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "fault"),
    [
        (1, "factor 1 changes nothing; ask for more than 1"),
        (0, "factor must be at least 1, not 0"),
        (0.5, "factor must be at least 1, not 0.5"),
        (-4, "factor must be at least 1, not -4"),
        ("inf", "factor must be at least 1, not inf"),
        ("-inf", "factor must be at least 1, not -inf"),
        (math.nan, "factor must be a number, not nan"),
        ("four", "factor must be a number, not 'four'"),
        (True, "factor must be a number, not True"),
        ([4], "factor must be a number, not [4]"),
    ],
)
@pytest.mark.parametrize("method", ["yarn", "pi", "dynamic-ntk"])
def test_factors_that_are_refused(method: str, factor: Any, fault: str) -> None:
    (found,) = faults(method=method, factor=factor)
    assert found.removeprefix(f"{method}: ") == fault


def test_nan_given_in_python_is_refused_too() -> None:
    with pytest.raises(RecipeError, match="yarn: factor must be at least 1, not nan"):
        Recipe("yarn", factor=math.nan)


@pytest.mark.parametrize("factor", [4096.5, 1e9, "1e300"])
def test_absurd_factors_are_refused(factor: Any) -> None:
    (fault,) = faults(method="yarn", factor=factor)
    assert fault == (
        f"yarn: factor {float(factor):g} is beyond 4096, twice the largest that any released "
        "model carries"
    )


def test_an_integer_beyond_floats_is_refused() -> None:
    (fault,) = faults(method="yarn", factor=10**400)
    assert "factor" in fault


def test_factor_and_target_exclude_each_other() -> None:
    assert faults(method="yarn", factor=4, to="16k") == ("give factor or to, not both",)


@pytest.mark.parametrize("method", ["yarn", "pi", "ntk", "dynamic-ntk", "dynamic-yarn", "llama3"])
def test_a_length_is_needed(method: str) -> None:
    (fault,) = faults(method=method)
    assert fault == f"{method} needs factor (times the trained length) or to (tokens)"


def test_p_rope_needs_no_length() -> None:
    assert Recipe.named("p-rope").bind(GEOMETRY) == PRope(factor=1.0)
    assert Recipe.named("p-rope", factor=1).bind(GEOMETRY) == PRope(factor=1.0)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (131072, 131072),
        ("131072", 131072),
        ("128k", 131072),
        ("128 K", 131072),
        ("1m", 1048576),
        ("0.5M", 524288),
        ("1.5k", 1536),
        (" 4096 ", 4096),
        (8192.0, 8192),
    ],
)
def test_lengths(text: Any, tokens: int) -> None:
    assert parse_length(text) == tokens


@pytest.mark.parametrize(
    "text",
    [
        "",
        "k",
        "0",
        0,
        -1,
        "-4k",
        "1.5",
        "0.0001k",
        "1e3",
        "12 8k",
        "4kk",
        "4g",
        "128kb",
        True,
        None,
    ],
)
def test_no_lengths(text: Any) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_length(text)
    assert str(caught.value) == f"'{text}' is not a length; write tokens: 131072, 128k or 1m."


@pytest.mark.parametrize(
    "text",
    ["9" * 400, "9" * 400 + "m", 10**400, "1" * 5000],
    ids=["digits", "megas", "integer", "thousands of digits"],
)
def test_endless_lengths_are_refused(text: Any) -> None:
    with pytest.raises(RecipeError):
        parse_length(text)


@pytest.mark.parametrize("key", ["to", "trained_length"])
def test_a_wrong_length_names_its_word(key: str) -> None:
    found = faults(method="p-rope", **{key: "soon"})
    assert found == (f"{key}: 'soon' is not a length; write tokens: 131072, 128k or 1m.",)


# --- binding ----------------------------------------------------------------------------------


def test_bind_by_factor() -> None:
    method = Recipe.named("yarn", factor=8, beta_fast=16).bind(GEOMETRY)
    assert method == Yarn(factor=8.0, beta_fast=16.0)


def test_bind_by_target() -> None:
    assert Recipe.named("yarn", to="10k").bind(GEOMETRY) == Yarn(factor=2.5)


@pytest.mark.parametrize("trained", [1000, 3000, 3001])
def test_a_target_is_met_to_the_token(trained: int) -> None:
    geometry = GEOMETRY.with_trained_length(trained)
    targets = range(trained + 1, 2 * trained)
    lengths = [Recipe("pi", to=to).bind(geometry).target_length(geometry) for to in targets]
    assert lengths == list(targets)


def test_bind_to_less_than_trained() -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.named("yarn", to=4095).bind(GEOMETRY)
    assert str(caught.value) == (
        "the target of 4095 tokens is shorter than the 4096 the model was trained on; ask for "
        "more, or give the true length with trained_length."
    )


@pytest.mark.parametrize("method", [n for n in METHODS if n not in ("longrope", "p-rope")])
def test_bind_to_the_trained_length_has_no_effect(method: str) -> None:
    with pytest.raises(NoEffectError) as caught:
        Recipe.named(method, to=4096).bind(GEOMETRY)
    assert str(caught.value) == (
        f"{method} with factor 1 changes nothing: the target equals the 4096 tokens the model "
        "was trained on."
    )


def test_bind_beyond_what_float32_positions_count() -> None:
    long = GEOMETRY.with_trained_length(2**20)
    assert Recipe.named("yarn", factor=16).bind(long) == Yarn(factor=16.0)
    with pytest.raises(RecipeError) as caught:
        Recipe.named("yarn", factor=17).bind(long)
    assert str(caught.value) == (
        f"{17 * 2**20} tokens are beyond 16777216, where float32 positions stop being exact."
    )


def test_bind_to_an_absurd_target() -> None:
    with pytest.raises(RecipeError, match="yarn: factor 8192 is beyond 4096"):
        Recipe.named("yarn", to=4096 * 8192).bind(GEOMETRY)


def test_bind_longrope_keeps_its_list() -> None:
    method = Recipe.named("longrope", to="16k", long_factor=[2] * 32).bind(GEOMETRY)
    assert method == LongRope(factor=4.0, long_factor=(2.0,) * 32)


def test_bind_dynamic_yarn() -> None:
    method = Recipe.named("dynamic-yarn", factor=4, tuned_factor=2).bind(GEOMETRY)
    assert method == DynamicYarn(factor=4.0, tuned_factor=2.0)


# --- words, layers and YAML -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "kept"),
    [
        ("auto", ("auto",)),
        ("all", ("all",)),
        ("full_attention", ("full_attention",)),
        ("full_attention, sliding_attention", ("full_attention", "sliding_attention")),
        (["full_attention", " sliding_attention"], ("full_attention", "sliding_attention")),
        ("", ("auto",)),
        ([], ("auto",)),
    ],
)
def test_layers(layers: Any, kept: tuple[str, ...]) -> None:
    assert Recipe.named("yarn", factor=4, layers=layers).layers == kept


@pytest.mark.parametrize("layers", [3, None, [1], {"full_attention": True}])
def test_layers_must_be_words(layers: Any) -> None:
    assert faults(method="yarn", factor=4, layers=layers) == (
        f"layers must be words, not {layers!r}",
    )


@pytest.mark.parametrize("words", [{}, {"factor": 4}, {"method": None}, {"method": ["yarn"]}])
def test_a_method_is_needed(words: dict[str, Any]) -> None:
    assert faults(**words) == ("a recipe is a mapping with at least 'method: NAME'.",)


@pytest.mark.parametrize("text", ["", "yarn", "- method: yarn", "4", "null"])
def test_yaml_that_is_no_mapping(text: str) -> None:
    for read in (load_words, Recipe.from_yaml):
        with pytest.raises(RecipeError) as caught:
            read(text)
        assert str(caught.value) == "a recipe is a mapping with at least 'method: NAME'."


@pytest.mark.parametrize("text", ["method: [yarn", "a: b: c", "\tmethod: yarn", "? *x", "\x00"])
def test_not_yaml(text: str) -> None:
    with pytest.raises(RecipeError, match=r"^not YAML: ") as caught:
        Recipe.from_yaml(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value", ["2024-13-45", "0x_", "!!int ''", "!!float x", "!!bool x", "!!timestamp x"]
)
def test_yaml_values_that_pyyaml_stumbles_over(value: str) -> None:
    with pytest.raises(RecipeError):
        Recipe.from_yaml(f"method: yarn\nfactor: {value}\n")


def test_yaml_of_a_person() -> None:
    text = """
    # to 32k, for the long documents
    method: YaRN
    to: 32k
    trained_length: 4k
    layers: full_attention
    beta_fast: 16
    truncate: false
    model: some/model
    note: tried on Monday
    """
    assert Recipe.from_yaml(text) == Recipe(
        method="yarn",
        to=32768,
        trained_length=4096,
        layers=("full_attention",),
        parameters={"beta_fast": 16.0, "truncate": False},
    )


def test_to_yaml_leaves_out_what_was_not_set() -> None:
    assert Recipe.named("yarn", factor=4).to_yaml() == "method: yarn\nfactor: 4.0\n"
    long = Recipe.named("longrope", to="8k", layers="a,b", long_factor=[1, 2.5])
    assert long.to_yaml() == (
        "method: longrope\nto: 8192\nlayers:\n- a\n- b\nlong_factor:\n- 1.0\n- 2.5\n"
    )


def test_read_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("method: yarn\nto: 32k\nnote: unchecked\n", encoding="utf-8")
    assert read_recipe(path) == {"method": "yarn", "to": "32k", "note": "unchecked"}


def test_read_recipe_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    with pytest.raises(RecipeError, match=r"recipe\.yaml: No such file or directory\.$"):
        read_recipe(path)
    path.write_bytes(b"method: \xff\xfe")
    with pytest.raises(RecipeError, match=r"recipe\.yaml: not UTF-8 text\.$"):
        read_recipe(path)
    path.write_text("- yarn", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"recipe\.yaml: a recipe is a mapping"):
        read_recipe(path)
    path.write_text("a: b: c", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"recipe\.yaml: not YAML: "):
        read_recipe(path)
    with pytest.raises(RecipeError, match="Is a directory"):
        read_recipe(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "long_factor: [1, 2.5]\nshort_factor: [1, 1]\nfactor: 8\n",
        '{"long_factor": [1, 2.5], "short_factor": [1, 1]}',
        '{"rope_scaling": {"type": "su", "long_factor": [1, 2.5], "short_factor": [1, 1]}}',
        '{"rope_parameters": {"long_factor": [1, 2.5], "short_factor": [1, 1]}, "x": 1}',
    ],
)
def test_read_factors(tmp_path: Path, text: str) -> None:
    path = tmp_path / "factors.json"
    path.write_text(text, encoding="utf-8")
    assert read_factors(path) == {"long_factor": [1, 2.5], "short_factor": [1, 1]}


def test_read_factors_without_a_short_list(tmp_path: Path) -> None:
    path = tmp_path / "factors.yaml"
    path.write_text("long_factor: [1, 2.5]", encoding="utf-8")
    assert read_factors(path) == {"long_factor": [1, 2.5]}


@pytest.mark.parametrize("text", ["short_factor: [1, 1]", "rope_scaling: {factor: 2}", "a: null"])
def test_read_factors_needs_the_long_list(tmp_path: Path, text: str) -> None:
    path = tmp_path / "factors.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"factors\.yaml has no long_factor; it needs that list"):
        read_factors(path)
