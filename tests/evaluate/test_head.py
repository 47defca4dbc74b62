"""Losses without the logits of a whole text, against the model's own logits in float64."""

from typing import Any

import numpy as np
import pytest
import torch

from ropepatch.evaluate import head
from ropepatch.evaluate.head import LossReader
from tests.evaluate import parts

IDS = parts.some_ids(90)
KINDS = ["llama", "gemma2", "gemma3", "cohere", "granite", "mistral", "deepseek", "alibi"]
FOLLOWING = ["dynamic", "longrope", "patched-ntk"]


def losses(of: Any, ids: Any, first: int = 1) -> np.ndarray[Any, Any]:
    loss = LossReader(of)
    with torch.inference_mode(), of.at_length(len(ids)):
        found: torch.Tensor = loss.losses(parts.row(ids), first)
    assert found.dtype == torch.float64
    assert found.shape == (1, len(ids) - first)
    return found[0].numpy()


@pytest.mark.parametrize("kind", [*KINDS, *FOLLOWING])
def test_losses_are_those_of_the_models_logits(kind: str) -> None:
    reader = parts.reader(kind)
    with reader.at_length(len(IDS)):
        wanted = parts.whole_losses(reader.model, IDS)
    assert wanted.std() > 0.1
    for chunk in (7, 16, 4096):
        reader = parts.reader(kind, chunk=chunk)
        assert losses(reader, IDS) == pytest.approx(wanted, abs=1e-5)
        assert reader.forwarded == len(IDS) - 1
        assert losses(reader, IDS, 40) == pytest.approx(wanted[39:], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_is_found(kind: str) -> None:
    assert LossReader(parts.reader(kind))._head is not None


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_where_no_head_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a model that adds a bias behind the head."""
    reader = parts.reader(kind, chunk=16)
    bias = torch.linspace(-2, 2, parts.VOCABULARY)

    def after(_: Any, __: Any, output: Any) -> Any:
        output.logits = output.logits + bias
        return output

    reader.model.register_forward_hook(after)
    assert LossReader(reader)._head is None
    wanted = parts.whole_losses(reader.model, IDS)
    assert losses(reader, IDS) == pytest.approx(wanted, abs=1e-5)
    monkeypatch.setattr(head, "_BLOCK_BYTES", 5 * 4 * parts.VOCABULARY)
    assert losses(reader, IDS) == pytest.approx(wanted, abs=1e-5)


def test_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_BLOCK_BYTES", 5 * 4 * parts.VOCABULARY)
    reader = parts.reader("llama")
    assert LossReader(reader)._block == 5
    assert losses(reader, IDS) == pytest.approx(parts.whole_losses(reader.model, IDS), abs=1e-5)


def test_rows() -> None:
    reader = parts.reader("llama", chunk=16)
    rows = [parts.some_ids(30, seed) for seed in range(3)]
    with torch.inference_mode():
        found = LossReader(reader).losses(reader.tensor(rows), 5)
    for own, ids in zip(found, rows, strict=True):
        wanted = parts.whole_losses(reader.model, ids)[4:]
        assert own.numpy() == pytest.approx(wanted, abs=1e-5)
