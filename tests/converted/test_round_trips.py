"""Converted live, saved, loaded, saved again, and back: the same numbers to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

import ropepatch
from ropepatch.errors import PatchConflictError
from tests.converted.apart import apart
from tests.converted.folders import IDS, MODULE, model_of, read
from tests.tiny import read_json

CAUSAL = ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3", "olmo2"]
TO: dict[str, dict[str, Any]] = {
    "alibi": {"to": "alibi"},
    "nope": {"to": "nope"},
    "mixed": {"to": "alibi", "layers": [1], "alibi_bias_max": 6.0, "slope_scale": 0.5},
}
EVERY = pytest.mark.parametrize("words", TO.values(), ids=TO)


def template_of(family: str) -> Any:
    return AutoModelForImageTextToText if family == "gemma3" else AutoModelForCausalLM


@EVERY
@pytest.mark.parametrize("family", [*CAUSAL, "gemma3"])
def test_round_trip(family: str, words: dict[str, Any], tmp_path: Path) -> None:
    model = model_of(family)
    plain, plain_class, plain_config = read(model), type(model), type(model.config)
    plain_words = model.config.to_dict()
    handle = ropepatch.convert(model, **words)
    wanted = read(model)
    assert (wanted - plain).abs().max() > 1e-3
    model.save_pretrained(tmp_path / "first")
    handle.revert()
    assert torch.equal(read(model), plain)

    template = template_of(family)
    first = template.from_pretrained(tmp_path / "first")
    assert torch.equal(read(first), wanted)
    assert isinstance(first, plain_class)
    assert type(first) is not plain_class
    first.save_pretrained(tmp_path / "second")
    assert torch.equal(read(template.from_pretrained(tmp_path / "second")), wanted)
    once, twice = tmp_path / "first", tmp_path / "second"
    assert (twice / MODULE).read_bytes() == (once / MODULE).read_bytes()
    assert comparable(read_json(twice / "config.json")) == comparable(
        read_json(once / "config.json")
    )

    loaded = ropepatch.load(tmp_path / "second", dtype=torch.float32)
    assert torch.equal(read(loaded), wanted)
    ropepatch.revert(loaded)
    assert torch.equal(read(loaded), plain)
    assert (type(loaded), type(loaded.config)) == (plain_class, plain_config)
    assert comparable(loaded.config.to_dict()) == comparable(plain_words)
    with pytest.raises(PatchConflictError, match="no conversion to revert"):
        ropepatch.revert(loaded)


def comparable(words: dict[str, Any]) -> dict[str, Any]:
    """A config without what any saving or loading notes in it or in its parts."""
    noted = ("_name_or_path", "architectures", "dtype", "transformers_version")
    return {
        key: comparable(value) if isinstance(value, dict) else value
        for key, value in words.items()
        if key not in noted
    }


def test_text_model_of_a_composite_without_a_head(tmp_path: Path) -> None:
    model = model_of("qwen2_vl_text")
    plain = read(model)
    ropepatch.convert(model, to="alibi")
    wanted = read(model)
    model.save_pretrained(tmp_path)
    loaded = ropepatch.load(tmp_path, dtype=torch.float32)
    assert torch.equal(read(loaded), wanted)
    ropepatch.revert(loaded)
    assert torch.equal(read(loaded), plain)


SAVED_PLAIN = """
import torch, transformers
ids = torch.load("ids.pt")
for family in {families!r}:
    template = transformers.AutoModelForCausalLM
    if family == "gemma3":
        template = transformers.AutoModelForImageTextToText
    model = template.from_pretrained(family)
    with torch.no_grad():
        torch.save(model(input_ids=ids, use_cache=False).logits, f"{{family}}.pt")
    answer[family] = [type(model).__module__, type(model.config).__module__]
"""


def test_reverted_and_saved_it_is_plain_to_everybody(tmp_path: Path) -> None:
    families = [*CAUSAL, "gemma3"]
    plain = {}
    for family in families:
        model = model_of(family)
        plain[family] = read(model)
        ropepatch.convert(model, to="alibi").model.save_pretrained(tmp_path / "converted" / family)
        loaded = ropepatch.load(tmp_path / "converted" / family, dtype=torch.float32)
        ropepatch.revert(loaded)
        loaded.save_pretrained(tmp_path / family)
        config = read_json(tmp_path / family / "config.json")
        assert "ropepatch" not in (tmp_path / family / "config.json").read_text(encoding="utf-8")
        assert "auto_map" not in config
        assert not (tmp_path / family / MODULE).exists()
    torch.save(IDS, tmp_path / "ids.pt")
    answer = apart(SAVED_PLAIN.format(families=families), tmp_path)
    for family in families:
        assert all(module.startswith("transformers.models.") for module in answer[family])
        assert torch.equal(torch.load(tmp_path / f"{family}.pt"), plain[family])


def test_slopes_survive_the_trip(tmp_path: Path) -> None:
    """Another scale gives other numbers, and its own after loading."""
    found = {}
    for scale in (0.25, 1.0):
        model = model_of("llama")
        ropepatch.convert(model, to="alibi", slope_scale=scale)
        model.save_pretrained(tmp_path / str(scale))
        found[scale] = read(AutoModelForCausalLM.from_pretrained(tmp_path / str(scale)))
        assert torch.equal(found[scale], read(model))
    assert (found[0.25] - found[1.0]).abs().max() > 1e-3


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_factor_is_a_smaller_slope_and_a_longer_length(factor: float, tmp_path: Path) -> None:
    by_factor, by_scale = model_of("llama"), model_of("llama")
    trained = by_factor.config.max_position_embeddings
    ropepatch.convert(by_factor, to="alibi", factor=factor)
    ropepatch.convert(by_scale, to="alibi", slope_scale=1 / factor)
    assert torch.equal(read(by_factor), read(by_scale))
    by_factor.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.max_position_embeddings == round(factor * trained)
    ropepatch.revert(loaded)
    assert loaded.config.max_position_embeddings == trained


def test_generation_after_loading_is_that_of_the_live_model(tmp_path: Path) -> None:
    model: Any = model_of("llama")
    ropepatch.convert(model, to="alibi")
    words: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
    wanted = model.generate(IDS, **words)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(IDS, **words), wanted)
    whole = read(loaded, wanted)[:, -13:-1].argmax(-1)
    ended = (wanted[:, -12:] == 2).cumsum(-1) - (wanted[:, -12:] == 2).long() > 0
    assert torch.equal(whole[~ended], wanted[:, -12:][~ended])
