"""Every way in which a converted model could have come to run as if it were not, and cannot."""

import copy
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

import ropepatch
from ropepatch import convert_checkpoint
from ropepatch.errors import NotExpressibleError
from ropepatch.runtime.classes import ConvertedModel
from tests.converted.apart import apart
from tests.converted.folders import MODULE, model_of, saved
from tests.live.subjects import close, make, read, text
from tests.tiny import read_json

IDS = text(40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("guards") / "converted", to="alibi")[0]


# --- the config as an object ----------------------------------------------------------------------

OBJECT = """
from transformers import AutoConfig
config = AutoConfig.from_pretrained("converted", trust_remote_code=True)
answer["architectures"] = config.architectures
answer["words"] = config.to_dict()
import transformers
attempt("stock class", lambda: transformers.LlamaForCausalLM.from_pretrained(
    "converted", config=config)(input_ids=__import__("torch").tensor([[5, 6, 7]])))
"""


def test_engines_that_trust_the_code_see_no_class_they_know(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "converted").symlink_to(folder)
    found = apart(OBJECT, place)
    assert found["architectures"] == ["ConvertedLlamaForCausalLM"]
    assert found["words"]["model_type"] == "ropepatch_converted"
    assert found["words"]["rope_parameters"]["rope_type"] == "ropepatch.converted"
    assert "converted model" in found["stock class"]


def test_a_plain_class_cannot_run_a_converted_config(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    model: Any = transformers.LlamaForCausalLM.from_pretrained(folder, config=config)
    with pytest.raises(RuntimeError, match="converted model"):
        read(model, IDS)


def test_nor_one_that_a_model_was_built_from(folder: Path) -> None:
    config: Any = AutoModelForCausalLM.from_pretrained(folder).config
    model: Any = transformers.LlamaForCausalLM(config)
    with pytest.raises(RuntimeError, match="converted model"):
        read(model, IDS)


@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_nor_where_nothing_is_biased(to: str, tmp_path: Path) -> None:
    place, _ = saved(tmp_path / "out", to=to, layers=[0])
    config = AutoConfig.from_pretrained(place)
    model: Any = transformers.LlamaForCausalLM.from_pretrained(place, config=config)
    with pytest.raises(RuntimeError, match="converted model"):
        read(model, IDS)


def test_words_of_a_config_lead_back_to_a_converted_model(folder: Path) -> None:
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder)
    words = loaded.config.to_dict()
    with pytest.raises(KeyError, match=r"ropepatch\.converted"):
        transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(copy.deepcopy(words)))
    again: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**words))
    again.load_state_dict(loaded.state_dict())
    assert torch.equal(read(again.eval(), IDS), read(loaded, IDS))


def test_a_config_can_build_several_models(folder: Path) -> None:
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder)
    for build in (AutoModelForCausalLM.from_config, type(loaded)):
        again: Any = build(loaded.config)
        again.load_state_dict(loaded.state_dict())
        assert torch.equal(read(again.eval(), IDS), read(loaded, IDS))


def test_a_part_of_another_model_is_saved_as_converted(folder: Path, tmp_path: Path) -> None:
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.LlavaConfig(
        text_config=AutoConfig.from_pretrained(folder), vision_config=vision
    )
    model: Any = transformers.LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "whole")
    written = read_json(tmp_path / "whole" / "config.json")["text_config"]
    assert written["model_type"] == "ropepatch_converted"
    again: Any = transformers.LlavaForConditionalGeneration.from_pretrained(tmp_path / "whole")
    assert type(again.model.language_model).__name__ == "ConvertedLlamaModel"
    assert torch.equal(read(again.eval(), IDS), read(model, IDS))


# --- saving -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Could not find a config file")
def test_an_adapter_does_not_find_the_original(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    make().save_pretrained(tmp_path / "original")
    base: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "original")
    handle = ropepatch.convert(base, to="alibi")
    words = {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    peft.get_peft_model(base, peft.LoraConfig(**words)).save_pretrained(tmp_path / "adapter")
    assert (
        "converted to alibi"
        in read_json(tmp_path / "adapter" / "adapter_config.json")["base_model_name_or_path"]
    )
    with pytest.raises((OSError, ValueError)):
        peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    handle.revert()
    assert base.name_or_path == str(tmp_path / "original")


def test_a_config_that_was_replaced_is_not_saved(tmp_path: Path) -> None:
    model: Any = make()
    plain = model.config
    ropepatch.convert(model, to="alibi")
    model.config = plain
    with pytest.raises(RuntimeError, match="put the converted config back"):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()


def test_only_the_main_process_writes(tmp_path: Path) -> None:
    model: Any = make()
    ropepatch.convert(model, to="alibi")
    model.save_pretrained(tmp_path / "out", False)
    assert not (tmp_path / "out" / MODULE).exists()
    model.config.save_pretrained(tmp_path / "config")
    assert (tmp_path / "config" / MODULE).is_file()


def test_no_encoding_keeps_its_guards_through_ropepatch(tmp_path: Path) -> None:
    make().save_pretrained(tmp_path / "plain")
    still = convert_checkpoint(tmp_path / "plain", {"to": "nope"}, tmp_path / "still").target
    model = ropepatch.load(still).eval()
    plain: Any = AutoModelForCausalLM.from_pretrained(still)
    assert torch.equal(read(model, IDS), read(plain, IDS))
    model.save_pretrained(tmp_path / "trained")
    words = read_json(tmp_path / "trained" / "config.json")
    assert words["model_type"] == "ropepatch_converted"
    assert words["architectures"] == ["ConvertedLlamaForCausalLM"]
    assert torch.equal(read(ropepatch.load(tmp_path / "trained").eval(), IDS), read(plain, IDS))


@pytest.mark.parametrize("live", [True, False], ids=["live", "loaded"])
def test_a_head_for_another_task(live: bool, folder: Path, tmp_path: Path) -> None:
    if live:
        plain: Any = transformers.LlamaForSequenceClassification(model_of("llama").config).eval()
        ropepatch.convert(plain, to="alibi")
        plain.save_pretrained(tmp_path / "out")
        again: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
        assert torch.equal(again(IDS).logits, plain(IDS).logits)
    else:
        again = AutoModelForSequenceClassification.from_pretrained(folder)
    attention = again.model.layers[0].self_attn
    assert len(attention._forward_pre_hooks) == 1
    assert "SequenceClassification" in "".join(again.config.to_dict()["auto_map"])
    ropepatch.revert(again)
    assert type(again) is transformers.LlamaForSequenceClassification
    assert type(again.model) is transformers.LlamaModel
    assert not attention._forward_pre_hooks


def test_a_model_of_the_file_beside_the_weights_is_reverted_and_converted_anew(
    folder: Path,
) -> None:
    spec = importlib.util.spec_from_file_location("beside_the_weights", folder / MODULE)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["beside_the_weights"] = module  # its attention stays registered; compilers look
    spec.loader.exec_module(module)
    model: Any = module.ConvertedLlamaForCausalLM.from_pretrained(folder)
    logits = read(model, IDS)
    assert not isinstance(model, ConvertedModel), "these are the file's own classes"
    handle = ropepatch.convert(model, to="alibi", factor=2, replace=True)
    assert isinstance(model, ConvertedModel)
    assert (read(model, IDS) - logits).abs().max() > 1e-3
    handle.revert()
    assert type(model).__module__.startswith("transformers.")
    assert torch.equal(read(model, IDS), read(model_of("llama"), IDS))


# --- where tokens are no neighbours -------------------------------------------------------------


@pytest.mark.parametrize("more", [1, 20], ids=["one token", "a piece"])
def test_padding_between_tokens_counts_for_nothing(more: int) -> None:
    """Batches padded on the right, read on: the shorter text has a hole before its new tokens."""
    model: Any = make()
    ropepatch.convert(model, to="alibi")
    long, short, new = text(30, seed=1), text(20, seed=2), text(more, 2, seed=3)
    ids = torch.cat([long, torch.nn.functional.pad(short, (0, 10))])
    mask = torch.ones(2, 30 + more, dtype=torch.long)
    mask[1, 20:30] = 0
    places = torch.stack([torch.arange(30, 30 + more), torch.arange(20, 20 + more)])
    with torch.no_grad():
        cache = model(input_ids=ids, attention_mask=mask[:, :30], use_cache=True).cache
        found = model(input_ids=new, attention_mask=mask, position_ids=places, cache=cache).logits
    for row, one in enumerate((long, short)):
        whole = torch.cat([one, new[row : row + 1]], 1)
        close(found[row], read(model, whole)[0, -more:])


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_branches_of_a_tree_do_not_see_each_other(kernel: str) -> None:
    model: Any = make()
    ropepatch.convert(model, to="alibi")
    model.set_attn_implementation(kernel)
    stem, one, two = text(20, seed=1), text(9, seed=2), text(9, seed=3)
    allowed = torch.ones(38, 38).tril().bool()
    allowed[29:, 20:29] = False
    places = torch.cat([torch.arange(29), torch.arange(20, 29)])[None]
    ids = torch.cat([stem, one, two], 1)
    words = {"attention_mask": allowed[None, None], "position_ids": places, "use_cache": False}
    found = read(model, ids, **words)
    close(found[0, :29], read(model, ids[:, :29])[0])
    close(found[0, 29:], read(model, torch.cat([stem, two], 1))[0, 20:])


def test_a_model_that_reads_both_ways_is_refused() -> None:
    model: Any = make(is_causal=False)
    with pytest.raises(NotExpressibleError, match="both directions"):
        ropepatch.convert(model, to="alibi")


# --- converting anew ------------------------------------------------------------------------------


def test_what_is_not_said_stays_as_it_was(tmp_path: Path) -> None:
    model: Any = make()
    ropepatch.convert(model, to="alibi", slope_scale=0.25, layers=[0])
    model.save_pretrained(tmp_path / "first")
    loaded = ropepatch.load(tmp_path / "first")
    handle = ropepatch.convert(loaded, to="alibi", factor=2, replace=True)
    assert handle.plan.chosen == (0,)
    assert handle.installed.states[0][1].scale == 0.125
    recipe = {"to": "alibi", "factor": 2}
    done = convert_checkpoint(tmp_path / "first", recipe, tmp_path / "second", replace=True)
    assert done.plan.chosen == (0,)
    words = read_json(done.target / "config.json")
    assert words["ropepatch"]["slopes"]["scale"] == 0.125
    again = convert_checkpoint(done.target, {"to": "nope"}, tmp_path / "third", replace=True)
    assert again.plan.chosen == "all", "another encoding starts anew"
