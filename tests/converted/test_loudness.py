"""Nothing takes a converted checkpoint for the original: whoever does not know it, stops."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING

from tests import tiny
from tests.converted.apart import apart
from tests.converted.folders import IDS, NATIVE, converted, model_of
from tests.tiny import read_json

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "alibi": ("llama", {"to": "alibi"}),
    "mixed": ("gemma3_text", {"to": "alibi", "layers": [0]}),
    "still": ("llama", {"to": "nope", "layers": [1, 2]}),
    "composite": ("gemma3", {"to": "alibi"}),
    **{kind: (kind, {"to": "alibi", "factor": 2.0}) for kind in NATIVE},
}

ATTEMPTS = """
import transformers
for name, (model, config) in {names!r}.items():
    for template in ("AutoConfig", "AutoModelForCausalLM", "AutoModel", model, config):
        cls = getattr(transformers, template)
        attempt(name + " " + template, lambda: cls.from_pretrained(name))
"""
STOCK = {
    "alibi": ("LlamaForCausalLM", "LlamaConfig"),
    "mixed": ("Gemma3ForCausalLM", "Gemma3TextConfig"),
    "still": ("LlamaForCausalLM", "LlamaConfig"),
    "composite": ("Gemma3ForConditionalGeneration", "Gemma3Config"),
    "bloom": ("BloomForCausalLM", "BloomConfig"),
    "mpt": ("MptForCausalLM", "MptConfig"),
    "falcon": ("FalconForCausalLM", "FalconConfig"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each case, as `convert` writes it."""
    place = tmp_path_factory.mktemp("loud")
    for name, (kind, words) in CASES.items():
        model_of(kind).save_pretrained(place / f"plain-{name}")
        converted(place / f"plain-{name}", name, **words)
    return place


@pytest.fixture(scope="module")
def answer(place: Path) -> Any:
    """How every attempt to load them ended, where ropepatch is not installed."""
    return apart(ATTEMPTS.format(names=STOCK), place)


@pytest.mark.parametrize("template", ["AutoConfig", "AutoModelForCausalLM", "AutoModel"])
@pytest.mark.parametrize("name", CASES)
def test_auto_classes_ask_for_trust(name: str, template: str, answer: Any) -> None:
    said = answer[f"{name} {template}"]
    assert not said.startswith("done")
    assert "trust_remote_code=True" in said


@pytest.mark.parametrize("name", ["alibi", "still"])
def test_the_stock_class_stops_at_the_rotary_type(name: str, answer: Any) -> None:
    assert "KeyError: 'ropepatch.converted'" in answer[f"{name} LlamaForCausalLM"]


@pytest.mark.parametrize("name", CASES)
def test_the_stock_class_stops(name: str, answer: Any) -> None:
    """Also where a block per layer type is missing, or where nothing turns in the first place."""
    assert not answer[f"{name} {STOCK[name][0]}"].startswith("done")


def names_known() -> set[str]:
    """Classes and model types that somebody loads."""
    return {*dir(transformers), *CONFIG_MAPPING}


@pytest.mark.parametrize("name", CASES)
def test_the_config_says_nothing_that_anybody_knows(name: str, place: Path) -> None:
    config = read_json(place / name / "config.json")
    assert config["model_type"] == "ropepatch_converted"
    assert len(config["architectures"]) == 1
    known = names_known() - {"ropepatch_converted"}
    top = {config["model_type"], *config["architectures"]}
    top |= {where.split(".")[-1] for where in config["auto_map"].values()}
    assert not top & known
    if name in ("bloom", "mpt"):  # no rotary words at all
        return
    text = config.get("text_config", config)
    stop = dict.fromkeys(("rope_type", "type"), "ropepatch.converted")
    assert text["rope_scaling"] == stop
    layered = name in ("mixed", "composite")
    found = list(text["rope_parameters"].values()) if layered else [text["rope_parameters"]]
    assert found == [stop] * (2 if layered else 1)
    assert not {"rope_theta", "rope_local_base_freq"} & set(text)


@pytest.mark.parametrize("name", CASES)
def test_the_code_is_asked_for_under_every_auto_class_that_would_load_the_original(
    name: str, place: Path
) -> None:
    asked = read_json(place / name / "config.json")["auto_map"]
    wanted = {"AutoConfig", "AutoModel"}
    if name != "composite":
        wanted.add("AutoModelForCausalLM")
    assert wanted <= set(asked)


# --- no position encoding, in transformers' own words -------------------------------------------

FAMILIES = ("llama", "qwen2", "mistral")
ALONE = """
import torch, transformers
for family in {families!r}:
    model = transformers.AutoModelForCausalLM.from_pretrained(family)
    with torch.no_grad():
        found = model(input_ids=torch.load("ids.pt"), use_cache=False).logits
    torch.save(found, family + ".pt")
    answer[family] = [type(model).__name__, type(model).__module__.split(".")[0]]
"""


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole models without position encoding, read where ropepatch is not installed."""
    place = tmp_path_factory.mktemp("still")
    for family in FAMILIES:
        model_of(family).save_pretrained(place / f"plain-{family}")
        converted(place / f"plain-{family}", family, to="nope")
    torch.save(IDS, place / "ids.pt")
    answer = apart(ALONE.format(families=FAMILIES), place)
    for family in FAMILIES:
        assert answer[family] == [type(model_of(family)).__name__, "transformers"]
    return place


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_nope_is_the_stock_model_at_position_zero(family: str, still: Path) -> None:
    model: Any = model_of(family)
    words: dict[str, Any] = {
        "input_ids": IDS,
        "attention_mask": torch.ones_like(IDS),  # else places that stand still mean packed texts
        "use_cache": False,
    }
    with torch.no_grad():
        wanted = model(position_ids=torch.zeros_like(IDS), **words).logits
        turned = model(**words).logits
    assert torch.equal(torch.load(still / f"{family}.pt"), wanted)
    assert (wanted - turned).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_nope_has_a_class_that_engines_do_not_know(family: str, still: Path) -> None:
    config = read_json(still / family / "config.json")
    assert config["architectures"] == [f"NoPE{type(model_of(family)).__name__}"]
    assert not hasattr(transformers, config["architectures"][0])
    assert config["rope_scaling"] == config["rope_parameters"]
    assert config["rope_parameters"]["rope_type"] == "proportional"
    assert config["model_type"] == family
    assert "auto_map" not in config
    assert not list((still / family).glob("*.py"))


def test_a_config_of_transformers_4_gets_both_blocks(tmp_path: Path) -> None:
    config = tiny.V4
    target = converted(tiny.bare_checkpoint(tmp_path / "model", config), to="nope", verify=False)
    written = read_json(target / "config.json")
    assert written["rope_scaling"] == written["rope_parameters"]
    assert written["rope_parameters"]["rope_type"] == "proportional"
    assert written["architectures"] == ["NoPELlamaForCausalLM"]
