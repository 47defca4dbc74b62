"""`verify` on a converted folder: it passes, and whatever was tampered with is named."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import ropepatch
from ropepatch.errors import VerificationError
from ropepatch.model.encoding_proof import ConversionProof
from tests.converted.folders import MODULE, NATIVE, converted, model_of, saved, tamper
from tests.tiny import read_json, tree

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "alibi": ("llama", {"to": "alibi"}),
    "longer": ("llama", {"to": "alibi", "factor": 4.0}),
    "mixed": ("qwen3", {"to": "alibi", "layers": [1, 2]}),
    "window": ("gemma3_text", {"to": "alibi", "layers": "full_attention"}),
    "still": ("mistral", {"to": "nope", "layers": [0]}),
    "composite": ("gemma3", {"to": "alibi"}),
    **{kind: (kind, {"to": "alibi", "factor": 2.0}) for kind in NATIVE},
}
CHANGED = {"alibi": 4, "longer": 4, "mixed": 2, "window": 1, "still": 1, "composite": 2}
CHANGED |= dict.fromkeys(NATIVE, 2)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["live", "folder"])
def test_it_passes(way: str, name: str, tmp_path: Path) -> None:
    kind, words = CASES[name]
    if way == "live":
        folder, _ = saved(tmp_path / "out", kind, **words)
    else:
        model_of(kind).save_pretrained(tmp_path / "plain")
        folder = converted(tmp_path / "plain", **words)
    before = tree(folder)
    found = ropepatch.verify(folder)
    assert tree(folder) == before
    assert isinstance(found.proof, ConversionProof)
    assert (found.logits, found.live) == (None, False)
    assert found.proof.attentions == found.proof.layers_changed == CHANGED[name]


@pytest.mark.parametrize("name", ["alibi", "mixed", "still"])
def test_it_finds_what_the_live_model_says(name: str, tmp_path: Path) -> None:
    kind, words = CASES[name]
    model = model_of(kind)
    handle = ropepatch.convert(model, **words)
    model.save_pretrained(tmp_path)
    assert ropepatch.verify(tmp_path).proof == handle.describe()
    assert ropepatch.verify(model).proof == handle.describe()
    assert ropepatch.verify(model).live


def test_it_compares_logits(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path, to="alibi")
    found = ropepatch.verify(folder, logits=True).logits
    assert found is not None
    assert found.short > 0.1
    assert found.long > 0.1


def test_whole_nope_is_verified_as_frequencies(tmp_path: Path) -> None:
    model_of("llama").save_pretrained(tmp_path / "plain")
    found = ropepatch.verify(converted(tmp_path / "plain", to="nope")).proof
    assert not isinstance(found, ConversionProof)
    assert found.layers_changed == found.layer_count == 4
    assert dataclasses.asdict(found)["schedules"]


# --- tampered with ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "out", to="alibi", layers=[0, 2])[0]


def refusal(folder: Path) -> str:
    with pytest.raises(VerificationError) as caught:
        ropepatch.verify(folder)
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    return said


def test_the_file_is_gone(folder: Path) -> None:
    (folder / MODULE).unlink()
    assert "modeling_ropepatch.py is missing" in refusal(folder)


STAMP = "ropepatch"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("model_type",), "llama", "model_type is 'llama'"),
        (("architectures",), ["LlamaForCausalLM"], "architectures is ['LlamaForCausalLM']"),
        (("architectures",), None, "architectures is None"),
        (("auto_map",), None, "auto_map is None"),
        (("auto_map", "AutoModelForCausalLM"), "evil.Evil", "auto_map is"),
        ((STAMP, "layers", "alibi"), [0], "layers"),
        ((STAMP, "layers", "alibi"), "all", "layers"),
        ((STAMP, "layers", "nope"), [1], "layers"),
        ((STAMP, "slopes", "scale"), 0.5, "slopes"),
        ((STAMP, "slopes", "bias_max"), 4.0, "slopes"),
        ((STAMP, "slopes", "heads"), [8], "slopes"),
        ((STAMP, "factor"), 1.5, "factor"),
        ((STAMP, "native"), {"classes": [], "arguments": [], "heads": []}, "native"),
        ((STAMP, "conversion", "layers"), [0, 1], "layers"),
        ((STAMP, "conversion", "slope_scale"), 2.0, "slopes"),
    ],
    ids=str,
)
def test_one_value_was_changed(path: tuple[str, ...], value: Any, said: str, folder: Path) -> None:
    ropepatch.verify(folder)
    assert said in refusal(tamper(folder, *path, value=value))


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize(
    "value", [{"rope_type": "default", "rope_theta": 10000.0}, None], ids=["plain", "gone"]
)
def test_the_rotary_type_that_stops_everybody_is_gone(key: str, value: Any, folder: Path) -> None:
    """Then the stock class would load it, and turn."""
    assert key in refusal(tamper(folder, key, value=value))


def test_a_length_that_somebody_changed(tmp_path: Path) -> None:
    """As for an extended folder."""
    folder, _ = saved(tmp_path, to="alibi", factor=4)
    assert "max_position_embeddings" in refusal(
        tamper(folder, "max_position_embeddings", value=100)
    )


def test_the_original_class_by_hand(folder: Path) -> None:
    """All that somebody may undo to make an engine take it, at once."""
    config = read_json(folder / "config.json")
    tamper(folder, "model_type", value="llama")
    tamper(folder, "architectures", value=["LlamaForCausalLM"])
    tamper(folder, "rope_parameters", value=config["ropepatch"]["blocks"]["rope_parameters"])
    tamper(folder, "rope_scaling")
    assert "nothing takes it for the original" in refusal(folder)


def test_whole_nope_whose_class_was_called_by_its_name_again(tmp_path: Path) -> None:
    """Engines that go by the class would run on with rotation."""
    model_of("llama").save_pretrained(tmp_path / "plain")
    folder = converted(tmp_path / "plain", to="nope")
    tamper(folder, "architectures", value=["LlamaForCausalLM"])
    assert "architectures" in refusal(folder)
