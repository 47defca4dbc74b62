"""A config.json that was changed since ropepatch wrote it is refused, whatever was changed."""

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from ropepatch.errors import ConfigError
from ropepatch.exporting import export
from ropepatch.serving.table import ENGINES
from tests.serving.folders import TARGET, extended
from tests.tiny import COMPOSITE, GEMMA3, TRAINED, V5, read_json, write_json

CHANGED = "config.json was changed since ropepatch wrote it: {}. Extend the original again, or "


def refused(folder: Path, target: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(CHANGED.format(says)) + r"restore it\.$") as it:
        export(folder, target)
    assert str(it.value).startswith(f"{folder}'s config.json ")
    assert len(str(it.value).splitlines()) == 1


def edited(folder: Path, key: str, value: Any, *under: str) -> Path:
    """The folder, with a key changed, or taken away, in a part of its config."""
    config = read_json(folder / "config.json")
    part = config
    for name in under:
        part = part[name]
    part[key] = value
    if value is None:
        del part[key]
    write_json(folder / "config.json", config)
    return folder


@pytest.mark.parametrize(
    ("key", "value", "was"),
    [
        ("factor", 8.0, "4.0"),
        ("factor", 8, "4.0"),
        ("rope_theta", 5e5, "10000.0"),
        ("rope_type", "default", "'yarn'"),
        ("original_max_position_embeddings", 128, "256.0"),
        ("attention_factor", 1.0, "None"),
        ("beta_fast", 8.0, "None"),
        ("truncate", False, "None"),
        ("mscale", 0.5, "None"),
    ],
)
@pytest.mark.parametrize("target", ["vllm", "sglang", "llama.cpp", "tgi"])
def test_a_block(tmp_path: Path, target: str, key: str, value: Any, was: str) -> None:
    folder = edited(extended(tmp_path), key, value, "rope_parameters")
    number = type(value) is int
    refused(folder, target, f"{key} is {float(value) if number else value!r}, and was {was}")


@pytest.mark.parametrize("target", ["vllm", "llama.cpp"])
def test_a_type_that_was_taken_away(tmp_path: Path, target: str) -> None:
    with pytest.raises(ConfigError, match="rope_type"):
        export(edited(extended(tmp_path), "rope_type", None, "rope_parameters"), target)


@pytest.mark.parametrize("target", ["vllm", "sglang"])
@pytest.mark.parametrize("label", ["full_attention", "sliding_attention"])
def test_a_block_of_one_layer_type(tmp_path: Path, target: str, label: str) -> None:
    folder = extended(tmp_path, "yarn", COMPOSITE)
    edited(folder, "rope_theta", 5e5, "text_config", "rope_parameters", label)
    was = "1000000.0" if label == "full_attention" else "10000.0"
    refused(folder, target, f"rope_theta is 500000.0, and was {was}")


@pytest.mark.parametrize("dialect", ["v4", "both"])
def test_the_words_of_transformers_4(tmp_path: Path, dialect: str) -> None:
    folder = edited(extended(tmp_path, dialect=dialect), "factor", 8.0, "rope_scaling")
    refused(folder, "tgi", "factor is 8.0, and was 4.0")
    folder = edited(extended(tmp_path / "theta", dialect=dialect), "rope_theta", 5e5)
    refused(folder, "tgi", "rope_theta is 500000.0, and was 10000.0")


@pytest.mark.parametrize("length", [TRAINED, 2 * TARGET])
@pytest.mark.parametrize("target", ENGINES)
def test_a_length(tmp_path: Path, target: str, length: int) -> None:
    folder = edited(extended(tmp_path), "max_position_embeddings", length)
    refused(folder, target, f"max_position_embeddings is {length}, and was {TARGET}")


@pytest.mark.parametrize("target", ["transformers4", "vllm"])
def test_a_length_that_dynamic_ntk_counts_from(tmp_path: Path, target: str) -> None:
    folder = edited(extended(tmp_path, "dynamic-ntk"), "max_position_embeddings", TARGET)
    refused(folder, target, f"max_position_embeddings is {TARGET}, and was {TRAINED}")


@pytest.mark.parametrize("method", ["yarn", "pi", "ntk", "llama3", "longrope", "p-rope"])
@pytest.mark.parametrize("config", [V5, GEMMA3, COMPOSITE], ids=["llama", "gemma3", "composite"])
def test_what_is_only_written_anew_is_not_changed(
    tmp_path: Path, method: str, config: dict[str, Any]
) -> None:
    """Keys in another order, numbers without a point, words that are not about positions."""
    folder = extended(tmp_path, method, config)
    before = export(folder, "vllm").words.commands
    words = read_json(folder / "config.json")
    write_json(folder / "config.json", {**dict(sorted(words.items())), "use_cache": False})
    assert export(folder, "vllm").words.commands == before


def test_transformers_may_save_it_again(tmp_path: Path) -> None:
    folder = extended(tmp_path)
    before = export(folder, "vllm").words.commands
    AutoConfig.from_pretrained(folder).save_pretrained(folder)
    assert export(folder, "vllm").words.commands == before
