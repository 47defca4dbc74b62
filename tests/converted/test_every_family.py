"""Every family on disk: converted and proven through its own class, or refused by name."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto import modeling_auto as auto

from ropepatch import convert_checkpoint
from ropepatch.errors import NotExpressibleError
from tests import tiny
from tests.convert.test_families import refusal
from tests.families.small import small
from tests.families.test_live import READABLE

QUICK = ("llama", "gemma3_text", "glm", "phi3", "gemma4_text", "deepseek_v3", "gpt_neox")
counts: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def say_the_counts() -> Iterator[None]:
    yield
    print()
    for word, number in sorted(counts.items()):
        print(f"{number:>5} {word}")


def config_of(family: str) -> dict[str, Any]:
    config = small(family)
    if family == "emu3_text_model":  # its whole model wants to know what an image is called
        config["vocabulary_map"] = {"<image>": 3}
    kind = config["model_type"]
    tables = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_MAPPING_NAMES,
    )
    name = str(next(table[kind] for table in tables if kind in table))
    assert hasattr(transformers, name)
    return config | {"architectures": [name]}


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in READABLE]
)
@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_a_folder_of_every_family(family: str, to: str, tmp_path: Path) -> None:
    source = tiny.bare_checkpoint(tmp_path / "model", config_of(family))
    reason = refusal(family, to)
    if reason is not None:
        counts[f"{to}: refused"] += 1
        with pytest.raises(NotExpressibleError, match=reason):
            convert_checkpoint(source, {"to": to}, tmp_path / "out")
        return
    done = convert_checkpoint(source, {"to": to}, tmp_path / "out")
    assert done.proof is not None
    stock = not done.rewrite.files
    counts[f"{to}: {'in the words of transformers' if stock else 'converted class'}"] += 1
    config = json.loads((done.target / "config.json").read_text(encoding="utf-8"))
    known = set(config_of(family)["architectures"])
    assert not known & set(config["architectures"])
    text = config.get("text_config", config)
    assert text["rope_scaling"]["rope_type"] in ("proportional", "ropepatch.converted")
    if not stock:
        assert config["model_type"] == "ropepatch_converted"
