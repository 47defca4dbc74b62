"""A change that comes in little by little: nothing of it at 0, all of it at 1."""

from pathlib import Path
from typing import Any

import pytest
import torch

import ropepatch
from ropepatch.errors import NotExpressibleError
from ropepatch.model.fading import fading
from tests.heal.whole import built, documents, farthest, healed, logits, saved

CHANGES: dict[str, dict[str, Any]] = {
    "yarn": {"factor": 4},
    "pi": {"factor": 4},
    "ntk": {"factor": 4},
    "alibi": {"to": "alibi"},
    "nope": {"to": "nope"},
    "every second": {"to": "nope", "keep_rope_every": 2},
}


def changed(model: Any, kind: str) -> None:
    words = CHANGES[kind]
    if "to" in words:
        ropepatch.convert(model, **words)
    else:
        ropepatch.patch(model, kind, **words)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("kind", CHANGES)
def test_from_the_old_logits_to_the_new(kind: str, family: str) -> None:
    model = built(family)
    old = logits(model)
    changed(model, kind)
    new = logits(model)
    far = float((new - old).abs().max())
    assert far > 5e-4
    fade = fading(model)
    fade(0.0)
    assert torch.allclose(logits(model), old, atol=1e-5)
    found = []
    for share in (0.02, 0.5, 0.98):
        fade(share)
        found.append(logits(model))
    from_old = [float((each - old).abs().max()) for each in found]
    from_new = [float((each - new).abs().max()) for each in found]
    assert 0 < from_old[0] < from_new[0]
    assert 0 < from_new[2] < from_old[2]
    assert min(from_old[1], from_new[1]) > 1e-4
    fade(1.0)
    assert torch.equal(logits(model), new)


def test_gradients_flow_while_it_comes_in() -> None:
    for kind in ("yarn", "alibi", "nope"):
        model = built()
        changed(model, kind)
        fade = fading(model)
        for share in (0.0, 0.4, 1.0):
            fade(share)
            model.zero_grad()
            ids = torch.arange(2, 100)[None]
            model.train()(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            weight = model.model.layers[0].self_attn.q_proj.weight
            assert float(weight.grad.abs().sum()) > 0


def test_what_cannot_come_in_is_refused() -> None:
    model = built()
    with pytest.raises(NotExpressibleError, match="carries no patch and no conversion"):
        fading(model)
    ropepatch.patch(model, "dynamic-ntk", factor=4)
    with pytest.raises(NotExpressibleError, match="a change that follows the length"):
        fading(model)


@pytest.mark.parametrize("kind", ["yarn", "alibi"])
def test_a_training_with_it_ends_as_the_whole_change(kind: str, tmp_path: Path) -> None:
    data = documents(tmp_path / "texts.jsonl")
    saved(tmp_path / "plain")
    if kind == "alibi":
        ropepatch.convert_checkpoint(tmp_path / "plain", {"to": "alibi"}, tmp_path / "patched")
    else:
        ropepatch.extend(tmp_path / "plain", {"method": kind, "factor": 4}, tmp_path / "patched")
    record = healed(tmp_path / "patched", data, tmp_path / "faded", {"fade": 0.5})
    assert record["proof"]["logits_error"] < 1e-5
    ropepatch.verify(tmp_path / "faded")
    healed(tmp_path / "patched", data, tmp_path / "at once")
    assert farthest(tmp_path / "faded", tmp_path / "at once") > 1e-5
