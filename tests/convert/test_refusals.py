"""What cannot be converted is refused in one line that names it, and nothing has changed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    FalconConfig,
    GPT2Config,
    ModernBertConfig,
    OPTConfig,
    PreTrainedModel,
)

import ropepatch
from ropepatch import ConversionRecipe
from ropepatch.errors import (
    AlreadyConvertedError,
    ConfigError,
    NoEffectError,
    NotExpressibleError,
    RecipeError,
    RopepatchError,
    UnsupportedModelError,
)
from ropepatch.runtime.attention import IMPLEMENTATIONS
from tests import tiny
from tests.families.small import build
from tests.live.subjects import make, read, text, traces, untouched

Wanted = type[BaseException]


def refused(model: Any, error: Wanted, match: str, **words: Any) -> None:
    """In one line, and the model is as it was."""
    before = traces(model)
    with pytest.raises(error, match=match) as found:
        ropepatch.convert(model, **words)
    assert "\n" not in str(found.value)
    assert traces(model) == before


# --- by family ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("falcon", "to alibi: .* attention functions; --to nope may do"),
        ("gpt_neox_japanese", "its attention keeps its own count"),
    ],
)
def test_attention_that_no_function_can_be_put_into(family: str, why: str) -> None:
    model = build(family)
    with untouched(model):
        refused(
            model,
            NotExpressibleError,
            f"'{family}' cannot be converted.*{why}",
            to="alibi",
        )


def test_the_hint_of_that_refusal_is_true() -> None:
    model = build("falcon")
    base = read(model, text(60))
    with untouched(model), ropepatch.convert(model, to="nope"):
        assert (read(model, text(60)) - base).abs().max() > 0.01


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa", "qwen4_exp_text"])
def test_attention_that_chooses_keys_by_an_index(family: str) -> None:
    refused(build(family), NotExpressibleError, f"'{family}'.*index of its own", to="alibi")


@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_an_encoder(to: str) -> None:
    config = ModernBertConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=128,
        pad_token_id=0,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = AutoModelForMaskedLM.from_config(config).eval()
    refused(model, RopepatchError, "modernbert.*(decoder|rotary)", to=to)


@pytest.mark.parametrize("to", ["alibi", "nope"])
@pytest.mark.parametrize("config", [GPT2Config, OPTConfig])
def test_a_model_without_rotation(config: Callable[..., Any], to: str) -> None:
    small = config(
        vocab_size=128,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = tiny.build(small)
    with untouched(model):
        refused(model, ConfigError, f"'{small.model_type}' have no rotary", to=to)


def test_a_falcon_whose_biases_are_off_is_a_rotary_model() -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 64,
    }
    model = tiny.build(FalconConfig(alibi=False, multi_query=False, **sizes))
    refused(model, NotExpressibleError, "'falcon' cannot be converted", to="alibi")


@pytest.mark.parametrize("thing", [None, 3, "llama", torch.nn.Linear(2, 2), AutoTokenizer])
def test_what_is_no_model(thing: Any) -> None:
    with pytest.raises(UnsupportedModelError):
        ropepatch.convert(thing, to="alibi")


# --- by what was asked for ----------------------------------------------------------------------


@pytest.fixture
def llama() -> PreTrainedModel:
    return make(num_hidden_layers=4)


WORDS: list[tuple[dict[str, Any], str]] = [
    ({"to": "rope"}, "alibi or nope, not to 'rope'"),
    ({"to": ""}, "alibi or nope"),
    ({"to": None}, "alibi or nope"),
    ({"to": "alibi", "layers": []}, "layers is a list"),
    ({"to": "alibi", "layers": [4]}, "layer 4: this 'llama' has layers 0 to 3"),
    ({"to": "alibi", "layers": [-1]}, "layer"),
    ({"to": "alibi", "layers": "0,9"}, "layer 9"),
    ({"to": "alibi", "layers": [True]}, "layers is a list"),
    ({"to": "alibi", "layers": [1.5]}, "layers is a list"),
    ({"to": "alibi", "layers": {"0": 1}}, "layers is a list"),
    ({"to": "alibi", "layers": "sliding_attention"}, "no layers of type 'sliding_attention'"),
    ({"to": "alibi", "keep_rope_every": 1}, "at least 2, not 1"),
    ({"to": "alibi", "keep_rope_every": 2.0}, "whole number"),
    ({"to": "alibi", "keep_rope_every": True}, "whole number"),
    ({"to": "alibi", "alibi_bias_max": 0}, "alibi_bias_max is a number above 0"),
    ({"to": "alibi", "alibi_bias_max": 65}, "at most 64"),
    ({"to": "alibi", "slope_scale": -1.0}, "slope_scale is a number above 0"),
    ({"to": "alibi", "slope_scale": float("nan")}, "slope_scale"),
    ({"to": "alibi", "slope_scale": True}, "slope_scale"),
    ({"to": "alibi", "factor": 0.5}, "factor is a number at least 1"),
    ({"to": "alibi", "factor": float("inf")}, "factor"),
    ({"to": "alibi", "factor": "4"}, "factor"),
    ({"to": "nope", "factor": 4.0}, "factor is for alibi"),
    ({"to": "nope", "alibi_bias_max": 16.0}, "alibi_bias_max is for alibi"),
    ({"to": "nope", "slope_scale": 2.0}, "slope_scale is for alibi"),
    ({"to": "alibi", "kernel": "cuda"}, "kernel is auto"),
    ({"to": ConversionRecipe("alibi"), "factor": 2.0}, "leave out factor"),
]


@pytest.mark.parametrize(("words", "reason"), WORDS, ids=lambda value: str(value)[:50])
def test_words_that_mean_nothing(
    words: dict[str, Any], reason: str, llama: PreTrainedModel
) -> None:
    refused(llama, RecipeError, reason, **words)


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(RecipeError) as found:
        ConversionRecipe("rope", keep_rope_every=1, factor=0.0)
    assert len(found.value.faults) == 3


def test_an_unknown_word_is_named(llama: PreTrainedModel) -> None:
    with pytest.raises(RecipeError, match="takes no slopes; it takes to, layers"):
        ConversionRecipe.from_words({"to": "alibi", "slopes": 3})
    with pytest.raises(TypeError, match="slopes"):
        ropepatch.convert(llama, to="alibi", slopes=3)  # type: ignore[call-arg]


NOTHING: list[dict[str, Any]] = [
    {"to": "alibi", "layers": [1], "keep_rope_every": 2},
    {"to": "nope", "layers": [3], "keep_rope_every": 4},
]


@pytest.mark.parametrize("words", NOTHING)
def test_no_layer_left(words: dict[str, Any], llama: PreTrainedModel) -> None:
    refused(llama, NoEffectError, "no layer of this 'llama' would change", **words)


def test_a_layer_that_does_not_turn_loses_nothing() -> None:
    model = build("smollm3")
    with untouched(model):
        refused(model, NoEffectError, "layer 3.*nothing to convert", to="nope", layers=[3])


def test_a_kernel_that_cannot_be_is_named_before_anything_changes(llama: Any) -> None:
    llama.config._attn_implementation = "no_such_thing"
    with pytest.raises(UnsupportedModelError, match=", ".join(IMPLEMENTATIONS)):
        ropepatch.convert(llama, to="alibi")
    assert type(llama).__name__ == "LlamaForCausalLM"
    assert llama.config._attn_implementation == "no_such_thing"


# --- by what was done before --------------------------------------------------------------------


@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_a_loaded_conversion_is_replaced_only_on_request(to: str, tmp_path: Any) -> None:
    plain, ids = make(), text(60)
    base = read(plain, ids)
    with ropepatch.convert(plain, to=to):
        wanted = read(plain, ids)
        plain.save_pretrained(tmp_path)
    loaded = ropepatch.load(tmp_path, dtype=torch.float32).eval()
    assert torch.equal(read(loaded, ids), wanted)
    refused(loaded, AlreadyConvertedError, f"already written '{to}'", to="nope")
    assert torch.equal(read(loaded, ids), wanted)
    ropepatch.convert(loaded, to="nope", replace=True)
    with ropepatch.convert(plain, to="nope"):
        assert torch.equal(read(loaded, ids), read(plain, ids))
    ropepatch.revert(loaded)
    assert torch.equal(read(loaded, ids), base)
