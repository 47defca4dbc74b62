"""What cannot be patched or asked for: one clear error of our own, and an untouched model."""

import math
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

import ropepatch
from ropepatch import Recipe, patch, patch_of
from ropepatch.errors import (
    AlreadyScaledError,
    ConfigError,
    GeometryError,
    NoEffectError,
    PatchConflictError,
    RecipeError,
    RopepatchError,
    UnsupportedModelError,
)
from tests import tiny
from tests.live.subjects import config_of, make, read, text, traces, untouched


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return make()


def line_of(error: RopepatchError) -> str:
    """A refusal is one line that ends like a sentence or a value, and not in a traceback."""
    line = str(error)
    assert line
    assert "\n" not in line
    assert len(line) < 400
    return line


# --- what is handed over ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "thing",
    ["meta-llama/Llama-3.2-1B", {}, None, 3, [], torch.zeros(2), transformers.LlamaForCausalLM],
    ids=["str", "dict", "None", "int", "list", "tensor", "class"],
)
def test_what_is_no_module_is_refused(thing: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="patch needs a transformers model, not") as no:
        patch(thing, "yarn", 4)
    assert type(thing).__name__ in line_of(no.value)
    with pytest.raises(UnsupportedModelError):
        patch_of(thing)


@pytest.mark.parametrize("module", [torch.nn.Linear(2, 2), torch.nn.Sequential()], ids=repr)
def test_a_module_without_a_model_is_refused(module: torch.nn.Module) -> None:
    before = sorted(module.__dict__)
    with pytest.raises(UnsupportedModelError, match="holds no transformers model"):
        patch(module, "yarn", 4)
    assert sorted(module.__dict__) == before


_TINY = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_BERT = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
WITHOUT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {**_TINY, "n_embd": 32, "n_layer": 1, "n_head": 2},
    ),
    "bert": ("BertModel", "BertConfig", {**_TINY, **_BERT, "hidden_size": 32}),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {**_TINY, "hidden_size": 32, "num_hidden_layers": 1},
    ),
    "bloom": ("BloomForCausalLM", "BloomConfig", {**_TINY, "hidden_size": 32, "n_layer": 1}),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_without_rotary_embeddings_is_refused(name: str) -> None:
    kind, config, words = WITHOUT[name]
    model: Any = getattr(transformers, kind)(getattr(transformers, config)(**words)).eval()
    before = traces(model)
    with pytest.raises(ConfigError, match="no rotary position embeddings") as refused:
        patch(model, "yarn", 4)
    assert name in line_of(refused.value)
    assert traces(model) == before
    assert patch_of(model) is None


# --- what is asked for --------------------------------------------------------------------------

NAN = math.nan
ASKED: list[tuple[str, tuple[Any, ...], dict[str, Any], type[RopepatchError], str]] = [
    ("layer type", ("yarn", 4), {"layers": "convolution"}, RecipeError, "it has full_attention"),
    ("layers", ("yarn", 4), {"layers": 3}, RecipeError, "layers must be words"),
    ("factor word", ("yarn", "four"), {}, RecipeError, "factor must be a number"),
    ("factor bool", ("yarn", True), {}, RecipeError, "factor must be a number"),
    ("factor list", ("yarn", [4]), {}, RecipeError, "factor must be a number"),
    ("factor half", ("yarn", 0.5), {}, RecipeError, "at least 1, not 0.5"),
    ("factor negative", ("yarn", -4), {}, RecipeError, "at least 1, not -4"),
    ("factor nan", ("yarn", NAN), {}, RecipeError, "factor must be a number"),
    ("factor inf", ("yarn", math.inf), {}, RecipeError, "at least 1, not inf"),
    ("factor one", ("yarn", 1), {}, RecipeError, "changes nothing"),
    ("factor huge", ("yarn", 1e9), {}, RecipeError, "beyond 4096"),
    ("neither", ("yarn",), {}, RecipeError, r"needs factor .* or to"),
    ("both", ("yarn", 4), {"to": 512}, RecipeError, "factor or to, not both"),
    ("to short", ("yarn",), {"to": 10}, RecipeError, "shorter than the 64"),
    ("to word", ("yarn",), {"to": "lots"}, RecipeError, "'lots' is not a length"),
    ("to same", ("yarn",), {"to": 64}, NoEffectError, "changes nothing"),
    ("unknown method", ("yran", 4), {}, RecipeError, "Did you mean 'yarn'"),
    ("method number", (3, 4), {}, RecipeError, "a name or a recipe, not int"),
    ("method none", (None, 4), {}, RecipeError, "a name or a recipe, not NoneType"),
    ("method file", ("my.yaml",), {}, RecipeError, "Recipe.from_yaml"),
    ("unknown word", ("yarn", 4), {"beta_fats": 2}, RecipeError, "takes no beta_fats"),
    ("static growth", ("yarn", 4), {"growth": 2.0}, RecipeError, "takes no growth"),
    ("growth one", ("dynamic-ntk", 4), {"growth": 1.0}, RecipeError, "at least 1.001"),
    ("growth nan", ("dynamic-ntk", 4), {"growth": NAN}, RecipeError, "growth must be a number"),
    ("growth bool", ("dynamic-ntk", 4), {"growth": True}, RecipeError, "growth must be a number"),
    ("exact word", ("yarn", 4), {"short_exact": "yes"}, RecipeError, "true or false"),
    ("trained zero", ("yarn", 4), {"trained_length": 0}, RecipeError, "'0' is not a length"),
    ("trained bool", ("yarn", 4), {"trained_length": True}, RecipeError, "is not a length"),
    ("recipe and word", ({"method": "yarn", "factor": 4}, 2), {}, RecipeError, "leave out factor"),
    ("recipe empty", ({},), {}, RecipeError, "'method: NAME'"),
    ("longrope alone", ("longrope", 4), {}, RecipeError, "needs long_factor"),
    (
        "recipe object and word",
        (Recipe.named("yarn", factor=4),),
        {"layers": "all", "growth": 2.0},
        RecipeError,
        "leave out growth, layers",
    ),
    (
        "longrope short",
        ("longrope", 4),
        {"long_factor": [1.0] * 3},
        GeometryError,
        "32 numbers in long_factor",
    ),
]


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case[0])
def test_a_malformed_request_is_refused(case: Any, llama: PreTrainedModel) -> None:
    _, arguments, words, kind, match = case
    with untouched(llama):
        with pytest.raises(kind, match=match) as refused:
            patch(llama, *arguments, **words)
        line_of(refused.value)
        assert type(refused.value) is kind
        assert patch_of(llama) is None


def test_several_faults_are_told_together(llama: PreTrainedModel) -> None:
    with untouched(llama), pytest.raises(RecipeError) as refused:
        patch(llama, "yarn", 0.5, beta_fats=2, growth=1.5, to="x")
    assert len(refused.value.faults) >= 3


def test_layers_that_do_not_turn_or_gain_nothing_are_refused() -> None:
    model = make("mistral")
    with untouched(model), pytest.raises(NoEffectError, match="layers"):
        patch(model, "yarn", 4)
    gemma = make("gemma3")
    with untouched(gemma), pytest.raises(RecipeError, match="full_attention, sliding_attention"):
        patch(gemma, "yarn", 4, layers="full")


# --- when and where -----------------------------------------------------------------------------


def test_inference_mode_is_refused(llama: PreTrainedModel) -> None:
    with untouched(llama):
        with torch.inference_mode(), pytest.raises(PatchConflictError, match="inference_mode"):
            patch(llama, "yarn", 4)
        assert patch_of(llama) is None


@pytest.mark.parametrize("method", ["yarn", "dynamic-ntk"])
def test_a_patched_model_runs_in_inference_mode_and_trains_after(
    method: str, llama: PreTrainedModel
) -> None:
    model, ids = make(), text(150)
    with patch(model, method, 4) as handle:
        with torch.inference_mode():
            first = model(input_ids=ids).logits.clone()
        assert torch.equal(read(model, ids), first)
        model.train()
        model(input_ids=ids, labels=ids).loss.backward()
        handle.describe()
    with torch.inference_mode():
        handle.revert()


@pytest.mark.parametrize("length", [0, -1, True, "x", 1.5, None, 2**25])
def test_a_length_that_cannot_be_pinned_is_refused(length: Any, llama: PreTrainedModel) -> None:
    with patch(llama, "dynamic-ntk", 4) as handle:
        with pytest.raises(RecipeError, match="whole number of tokens"), handle.pinned(length):
            pass
        assert handle.follower.pin() is None


def test_a_reverted_patch_pins_nothing(llama: PreTrainedModel) -> None:
    handle = patch(llama, "dynamic-ntk", 4)
    handle.revert()
    with pytest.raises(PatchConflictError, match="reverted"), handle.pinned(100):
        pass


def scaled() -> PreTrainedModel:
    """A model that came with PI, from 64 to 128 tokens."""
    block = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    config = config_of("llama")
    config.rope_parameters = block
    config.max_position_embeddings = 128
    return tiny.build(config)


def test_a_scaled_model_is_refused_unless_it_may_be_replaced() -> None:
    model, ids = scaled(), text(150)
    with untouched(model):
        with pytest.raises(AlreadyScaledError, match="already scaled: 'linear'"):
            patch(model, "yarn", 4)
        with pytest.raises(ConfigError, match="does not say what it counts from"):
            patch(model, "yarn", 4, replace=True)
        with patch(model, "yarn", 4, replace=True, trained_length=64):
            found = read(model, ids)
    with patch(make(), "yarn", 4) as handle:
        torch.testing.assert_close(found, read(handle.model, ids), rtol=0, atol=1e-4)


def test_every_refusal_is_a_ropepatch_error() -> None:
    kinds = {case[3] for case in ASKED}
    assert all(issubclass(kind, ropepatch.RopepatchError) for kind in kinds)
