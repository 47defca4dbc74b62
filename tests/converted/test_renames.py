"""Weights that transformers renames by the name of a class, in a converted model."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

import ropepatch
from ropepatch.errors import CheckpointError


@pytest.fixture(scope="module")
def neox(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GPTNeoXForCausalLM]:
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = GPTNeoXForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("neox") / "model"
    model.save_pretrained(folder)
    return folder, model


@torch.no_grad()
def read(model: torch.nn.Module) -> torch.Tensor:
    found: torch.Tensor = model(torch.arange(20)[None]).logits
    return found


def test_the_head_of_a_converted_model_is_its_own(
    neox: tuple[Path, GPTNeoXForCausalLM], tmp_path: Path
) -> None:
    folder, model = neox
    target = ropepatch.convert_checkpoint(folder, {"to": "alibi"}, tmp_path / "alibi").target
    loaded = ropepatch.load(target).eval()
    apart = AutoModelForCausalLM.from_pretrained(target, trust_remote_code=True).eval()
    handle = ropepatch.convert(model, "alibi")
    wanted = read(model)
    handle.revert()
    assert torch.equal(read(loaded), wanted)
    assert torch.equal(read(apart), wanted)
    loaded.save_pretrained(tmp_path / "again")
    assert "embed_out.weight" in load_file(tmp_path / "again" / "model.safetensors")


def test_weights_that_are_not_there_are_refused(
    neox: tuple[Path, GPTNeoXForCausalLM], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(neox[0], folder)
    weights = load_file(folder / "model.safetensors")
    del weights["embed_out.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="would be random"):
        ropepatch.load(folder, {"method": "yarn", "factor": 2})
