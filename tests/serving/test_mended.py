"""Faults that readers of `export` found, each with the right answer."""

import re
import shlex
from pathlib import Path

import pytest

from ropepatch import extend
from ropepatch.exporting import export
from tests.end_to_end.program import Run
from tests.serving.folders import (
    LONG,
    SHORT,
    TARGET,
    extended,
    found,
    nearest,
    recipe,
    refusal,
    scaled,
)
from tests.tiny import TRAINED, V5, read_json, write_json

YARN = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0},
    "original_max_position_embeddings": TRAINED,
}


def follow(folder: Path, target: str, run: Run, out: Path) -> None:
    """Do what a refusal says, as it says it: what comes out reaches as far, and is exported."""
    said = refusal(folder, target)
    command = re.search(r"Nearest: ropepatch (extend .*?)(?: \(or .*?\))?; its price", said)
    assert command is not None
    answer = run(*shlex.split(command[1]), "--no-verify", "--output", out)
    assert (answer.code, answer.err) == (0, "")
    done = export(out, target)
    assert (done.trained_length, done.target_length) == (TRAINED, TARGET)


def test_a_named_command_does_it(tmp_path: Path, run: Run) -> None:
    follow(extended(tmp_path, "dynamic-ntk"), "vllm", run, tmp_path / "new")


def test_a_named_command_keeps_the_trained_length(tmp_path: Path, run: Run) -> None:
    config = {**V5, "max_position_embeddings": TARGET}
    folder = extended(tmp_path, "dynamic-ntk", config, trained_length=TRAINED)
    follow(folder, "vllm", run, tmp_path / "new")


def test_a_named_command_replaces_a_scaling(tmp_path: Path, run: Run) -> None:
    folder = extended(tmp_path, "dynamic-ntk", scaled(YARN, 2 * TRAINED), replace=True)
    follow(folder, "vllm", run, tmp_path / "new")


def test_a_named_command_replaces_one_of_ours(tmp_path: Path, run: Run) -> None:
    first = extended(tmp_path, "yarn", factor=2.0)
    extend(first, recipe("dynamic-ntk"), tmp_path / "twice", verify=False, replace=True)
    follow(tmp_path / "twice", "vllm", run, tmp_path / "new")


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_an_original_of_ours_is_scaled_too(tmp_path: Path, target: str) -> None:
    first = extended(tmp_path, "yarn", factor=2.0, beta_fast=8.0, attention_factor=1.5)
    extend(first, recipe("yarn"), tmp_path / "twice", verify=False, replace=True)
    assert "a scaling of its own" in refusal(tmp_path / "twice", target, original=True)


def test_a_foreign_linear_has_neighbours(tmp_path: Path) -> None:
    folder = found(tmp_path, scaled({"rope_type": "linear", "factor": 4.0}))
    assert nearest(refusal(folder, "tgi", trained_length=TRAINED)) == ("yarn", "ntk", "llama3")


def test_a_foreign_dynamic_reaches_as_far_as_ours(tmp_path: Path) -> None:
    block = {"rope_type": "dynamic", "factor": 4.0}
    folder = found(tmp_path, scaled(block, TRAINED))
    assert export(folder, "transformers4").target_length == TARGET
    assert nearest(refusal(folder, "vllm"))[0] == "yarn"


def test_llama_cpp_and_a_factor_that_is_not_the_ratio(tmp_path: Path) -> None:
    lists = {"short_factor": list(SHORT), "long_factor": list(LONG)}
    block = {**YARN, "rope_type": "longrope", **lists}
    words = export(found(tmp_path, scaled(block)), "llama.cpp").words
    assert "attention_factor=1.06066" in words.shell


def test_a_key_that_llama_cpps_converter_reads(tmp_path: Path) -> None:
    block = {**YARN, "factor": 4.0, "extrapolation_factor": 0.5}
    words = export(found(tmp_path, scaled(block)), "llama.cpp").words
    assert words.how == "override"


def test_a_stamp_that_was_edited(tmp_path: Path) -> None:
    folder = extended(tmp_path)
    config = read_json(folder / "config.json")
    config["ropepatch"]["target_length"] = 9999
    write_json(folder / "config.json", config)
    assert "the stamp of ropepatch" in refusal(folder, "vllm")
