"""A config.json for transformers 4: transformers 5 reads the same from it, and 4 computes the same.

The second needs transformers 4 in a folder of its own:

    pip install --target FOLDER 'transformers<5'
    ROPEPATCH_TRANSFORMERS4=FOLDER pytest -m slow tests/serving/test_transformers4.py
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from ropepatch import extend
from ropepatch.exporting import export
from tests import tiny
from tests.families.shapes import SHAPES
from tests.families.tiny import tiny as small
from tests.serving.folders import TARGET, Config, extended, recipe
from tests.tiny import COMPOSITE, GEMMA3, TRAINED, V5

METHODS = ("yarn", "pi", "ntk", "llama3", "ntk-by-parts", "longrope", "dynamic-ntk")
KEYS = ("rope_parameters", "max_position_embeddings")
CONFIGS: dict[str, Config] = {
    "llama": V5,
    "gemma3": GEMMA3,
    "composite": COMPOSITE,
    "pythia": small(SHAPES["pythia-1.4b-v5"]),
    "deepseek": small(SHAPES["deepseek-v3-v5"]),
}


def positions(folder: Path) -> dict[str, Any]:
    """What transformers 5 makes of a config, as far as positions go."""
    words = AutoConfig.from_pretrained(folder).get_text_config().to_dict()
    return {key: words[key] for key in KEYS}


def exported(folder: Path, place: Path, target: str = "transformers4") -> Path:
    """The folder's config as the engine is told to have it, alone in another folder."""
    content = export(folder, target).words.config
    assert content is not None
    place.mkdir(parents=True)
    (place / "config.json").write_text(content, encoding="utf-8")
    return place


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_transformers_5_reads_the_same(tmp_path: Path, kind: str, method: str) -> None:
    words: dict[str, Any] = {"factor": 80.0} if kind == "deepseek" else {}
    if method == "longrope":
        count = 32 if kind == "deepseek" else 16
        words |= {"short_factor": (1.0,) * count, "long_factor": (2.0,) * count}
    folder = extended(tmp_path, method, CONFIGS[kind], replace=True, **words)
    other = exported(folder, tmp_path / "other")
    assert positions(other) == positions(folder)
    config = tiny.read_json(other / "config.json")
    assert "ropepatch" not in config
    text = config.get("text_config", config)
    assert "rope_parameters" in text
    assert text["rotary_emb_base" if kind == "pythia" else "rope_theta"] > 1


@pytest.mark.parametrize("method", ["yarn", "ntk", "llama3"])
def test_so_it_does_from_tgis(tmp_path: Path, method: str) -> None:
    words: dict[str, Any] = {"attention_factor": 1.25} if method == "yarn" else {}
    folder = extended(tmp_path, method, **words)
    other = positions(exported(folder, tmp_path / "other", "tgi"))
    ours = positions(folder)
    assert other["max_position_embeddings"] == ours["max_position_embeddings"]
    assert ours["rope_parameters"].items() <= other["rope_parameters"].items()
    assert other["rope_parameters"].keys() - ours["rope_parameters"] <= {"mscale", "mscale_all_dim"}


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_recipe_survives(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(METHODS))
    words: dict[str, Any] = {"factor": data.draw(st.floats(1.05, 64))}
    if method == "yarn":
        optional = {
            "attention_factor": st.floats(0.5, 2),
            "beta_fast": st.floats(8, 64),
            "truncate": st.booleans(),
        }
        words |= data.draw(st.fixed_dictionaries({}, optional=optional))
    place = tmp_path_factory.mktemp("any")
    folder = extended(place, method, **words)
    assert positions(exported(folder, place / "other")) == positions(folder)


# --- in transformers 4 itself -----------------------------------------------------------------

_RUN = """
import sys
import numpy, torch, transformers
assert transformers.__version__.startswith("4."), transformers.__version__
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
found = {}
for length in map(int, sys.argv[3:]):
    ids = 3 + torch.arange(length)[None] * 7 % 120
    with torch.no_grad():
        found[str(length)] = model.eval()(input_ids=ids, use_cache=False).logits[0].numpy()
numpy.savez(sys.argv[2], **found)
"""
LENGTHS = (TRAINED // 2, TRAINED, TARGET)
TOLERANCE = 1e-5
"""Logits of the tiny model reach 8; measured 0.0 for every method (4.57.6 beside 5.24.0)."""


@pytest.fixture(scope="module")
def transformers4() -> str:
    place = os.environ.get("ROPEPATCH_TRANSFORMERS4", "")
    if not (Path(place) / "transformers").is_dir() or not place:
        pytest.skip("ROPEPATCH_TRANSFORMERS4 names no folder with transformers 4")
    return str(Path(place).absolute())


def logits4(transformers4: str, folder: Path) -> dict[int, Any]:
    """By length, what transformers 4 makes of a folder."""
    found = folder.parent / "logits.npz"
    done = subprocess.run(
        [sys.executable, "-c", _RUN, folder, found, *map(str, LENGTHS)],
        env={**os.environ, "PYTHONPATH": transformers4},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with np.load(found) as arrays:
        return {length: arrays[str(length)] for length in LENGTHS}


def logits5(folder: Path) -> dict[int, Any]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = {}
    for length in LENGTHS:
        ids = 3 + torch.arange(length)[None] * 7 % 120
        with torch.no_grad():
            found[length] = model(input_ids=ids, use_cache=False).logits[0].numpy()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_transformers_4_computes_the_same(
    tmp_path: Path, llama_folder: Path, transformers4: str, method: str
) -> None:
    folder = tmp_path / "out"
    extend(llama_folder, recipe(method), folder, verify=False)
    ours = logits5(folder)
    content = export(folder, "transformers4").words.config
    assert content is not None
    (folder / "config.json").write_text(content, encoding="utf-8")
    theirs = logits4(transformers4, folder)
    for length in LENGTHS:
        worst = float(np.abs(ours[length] - theirs[length]).max())
        print(f"{method} at {length}: {worst:.1e}")
        assert worst < TOLERANCE


@pytest.mark.slow
def test_the_folder_alone_would_not_do(
    tmp_path: Path, llama_folder: Path, transformers4: str
) -> None:
    folder = tmp_path / "out"
    extend(llama_folder, recipe("yarn"), folder, verify=False)
    ours, theirs = logits5(folder), logits4(transformers4, folder)
    assert float(np.abs(ours[TARGET] - theirs[TARGET]).max()) > 0.1
