"""What was done, written down: config.json, ropepatch.json and the model card."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from ropepatch import Recipe
from ropepatch._version import __version__
from ropepatch.checkpoint.folder import read_checkpoint
from tests import tiny
from tests.checkpoint.extending import OWN_CODE, RECORD, extended, refusal
from tests.tiny import TRAINED, read_json, write_json

# --- config.json and the record ---------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [tiny.V4, tiny.V5, tiny.GEMMA3, tiny.COMPOSITE],
    ids=["v4", "v5", "gemma3", "composite"],
)
def test_record(config: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "model", config, shards=2)
    target = extended(folder)
    record = read_json(target / RECORD)
    assert record["format"] == 1
    assert record["ropepatch"] == __version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record["created"])
    assert record["source"] == {
        "model": str(folder),
        "revision": None,
        "fingerprint": read_checkpoint(folder).fingerprint(),
        "weights": dict.fromkeys(read_checkpoint(folder).weights, "hard link"),
    }
    assert record["recipe"] == {"method": "yarn", "factor": 4.0}
    assert record["lengths"] == {
        "trained": TRAINED,
        "configured_before": TRAINED,
        "target": 4 * TRAINED,
    }
    assert record["dialect"] == ("v4" if config is tiny.V4 else "v5")
    label = "full_attention" if "gemma3" in config["model_type"] else "*"
    assert list(record["methods"]) == list(record["schedules"]) == [label]
    assert record["methods"][label]["factor"] == 4
    schedule = record["schedules"][label]
    assert schedule["head_dim"] == schedule["rotary_dim"] == 32
    assert schedule["slowest_wavelength_after"] > schedule["slowest_wavelength_before"]
    assert record["proof"] is None
    assert record["before"] == record["after"] == {}
    assert "history" not in record
    assert read_json(target / "config.json")["ropepatch"]["recipe"] == record["recipe"]


def test_record_of_a_second_extension_remembers_the_first(bare: Path) -> None:
    write_json(bare / "tokenizer_config.json", {"model_max_length": TRAINED})
    write_json(bare / "generation_config.json", {"max_length": TRAINED})
    write_json(bare / "config.json", tiny.V5 | {"auto_map": OWN_CODE["auto_map"]})
    first = extended(bare, "first")
    second = extended(first, "second", Recipe.named("pi", factor=8), replace=True)
    third = extended(second, "third", Recipe.named("ntk", factor=2), replace=True)
    assert [past["recipe"]["method"] for past in read_json(third / RECORD)["history"]] == [
        "yarn",
        "pi",
    ]
    for folder, factor in ((first, 4), (second, 8), (third, 2)):
        length = factor * TRAINED
        assert read_json(folder / "config.json")["max_position_embeddings"] == length
        assert read_json(folder / "tokenizer_config.json")["model_max_length"] == length
        assert read_json(folder / "generation_config.json")["max_length"] == length
        assert read_json(folder / RECORD)["before"] == {
            "config.json": {"auto_map": OWN_CODE["auto_map"]},
            "tokenizer_config.json": {"model_max_length": TRAINED},
            "generation_config.json": {"max_length": TRAINED},
        }


def test_a_damaged_record_is_refused_before_anything_is_written(bare: Path) -> None:
    first = extended(bare, "first")
    (first / RECORD).write_text("{", encoding="utf-8")
    assert "ropepatch.json is damaged; remove it" in refusal(
        first, bare.parent / "second", replace=True
    )


def test_already_extended(bare: Path) -> None:
    said = refusal(extended(bare, "first"), bare.parent / "second")
    assert "already written 'yarn'" in said
    assert "--replace" in said


def test_unknown_keys_and_odd_letters_survive(bare: Path) -> None:
    odd = {"note": "Länge – 長さ", "half": "\ud83d", "nested": {"a": [None, 1e-30, {}]}}
    write_json(bare / "config.json", tiny.V5 | odd)
    config = read_json(extended(bare) / "config.json")
    assert {key: config[key] for key in odd} == odd


def test_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    """A file name need not be UTF-8; the record still is."""
    folder = tiny.bare_checkpoint(tmp_path / os.fsdecode(b"mod\xe8le [bold] `x`"))
    target = extended(folder)
    assert read_json(target / RECORD)["source"]["model"] == str(folder)


# --- the card ---------------------------------------------------------------------------------

CARD = b"""---
license: apache-2.0
tags:
- text
---

# A model

It is tiny.
"""


def test_a_card_is_kept_and_gets_a_section(bare: Path) -> None:
    (bare / "README.md").write_bytes(CARD)
    text = (extended(bare) / "README.md").read_bytes()
    assert text.startswith(CARD)
    section = text.removeprefix(CARD).decode()
    assert section.startswith("\n<!-- ropepatch: begin -->\n## Extended context\n")
    assert section.endswith("<!-- ropepatch: end -->\n")
    assert "YaRN" in section
    assert "config of `model` by" in section
    assert f"trained on {TRAINED} tokens, meant for {4 * TRAINED}" in section
    assert "2 of 2 layers" in section


def test_a_second_section_replaces_the_first(bare: Path) -> None:
    (bare / "README.md").write_bytes(CARD)
    second = extended(extended(bare, "first"), "second", Recipe.named("pi", factor=8), replace=True)
    text = (second / "README.md").read_text(encoding="utf-8")
    assert text.count("ropepatch: begin") == text.count("ropepatch: end") == 1
    assert "`pi`" in text
    assert "`yarn`" not in text
    assert text.startswith(CARD.decode())


def test_a_folder_without_a_card_gets_one(bare: Path) -> None:
    text = (extended(bare) / "README.md").read_text(encoding="utf-8")
    assert text.startswith("<!-- ropepatch: begin -->\n")


def test_a_card_that_is_not_utf8(bare: Path) -> None:
    card = b"# Mod\xe8le\r\n\r\nligne\r\n"
    (bare / "README.md").write_bytes(card)
    assert (extended(bare) / "README.md").read_bytes().startswith(card.rstrip())
