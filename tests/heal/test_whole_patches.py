"""Whatever was patched or converted is trained, and loads as it did before."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ropepatch
from tests.heal.whole import (
    RETRIEVER,
    built,
    documents,
    farthest,
    healed,
    left,
    logits,
    saved,
    weights_of,
    with_tokenizer,
)

Patched = Callable[[Path, Path], Path]
RISING = [1.0 + i / 4 for i in range(8)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "plain")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return documents(tmp_path_factory.mktemp("data") / "texts.jsonl")


def extended(**recipe: Any) -> Patched:
    def made(model: Path, folder: Path) -> Path:
        ropepatch.extend(model, recipe, folder)
        return folder

    return made


def converted(**recipe: Any) -> Patched:
    def made(model: Path, folder: Path) -> Path:
        ropepatch.convert_checkpoint(model, recipe, folder)
        return folder

    return made


def live(model: Path, folder: Path) -> Path:
    """What no config says in transformers' own words."""
    found = ropepatch.load(model)
    ropepatch.patch(found, "yarn", factor=4, short_exact=True)
    found.save_pretrained(folder)
    return with_tokenizer(folder)


def by_hand(model: Path, folder: Path) -> Path:
    """A scaling that carries no stamp of ours."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["rope_parameters"] |= {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config["max_position_embeddings"] = 256
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


STOCK: dict[str, Patched] = {
    "yarn": extended(method="yarn", factor=4),
    "pi": extended(method="pi", factor=4),
    "p-rope": extended(method="p-rope", keep=0.75, factor=4),
    "ntk": extended(method="ntk", factor=4),
    "llama3": extended(method="llama3", factor=4),
    "dynamic-ntk": extended(method="dynamic-ntk", factor=4),
    "longrope": extended(method="longrope", factor=4, long_factor=RISING),
    "by hand": by_hand,
}
"""What plain transformers loads."""
OURS: dict[str, Patched] = {
    "live": live,
    "alibi": converted(to="alibi"),
    "nope": converted(to="nope"),
    "every second": converted(to="nope", keep_rope_every=2),
}


def check(before: Path, after: Path, record: dict[str, Any]) -> None:
    """All but the weights is as it was, and the record tells what was done."""
    for name in left(before):
        if not name.endswith((".safetensors", ".index.json")) and name not in (
            "ropepatch.json",
            "README.md",
        ):
            assert (after / name).read_bytes() == (before / name).read_bytes(), name
    ours, theirs = weights_of(before), weights_of(after)
    assert ours.keys() == theirs.keys()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}
    assert {v.dtype for v in theirs.values()} == {v.dtype for v in ours.values()}
    assert farthest(before, after) > 1e-3
    written = json.loads((after / "ropepatch.json").read_text(encoding="utf-8"))
    assert written["training"] == json.loads(json.dumps(record))
    assert len(written["source"]["fingerprint"]) >= 16
    patched = (before / "ropepatch.json").is_file()
    assert len(written["history"]) == (1 if patched else 0)
    training = written["training"]
    assert training["steps"] == 4
    assert training["tokens"] == 4 * 4 * 128
    assert len(training["data"]["fingerprint"]) == 16
    assert set(training["measured"]["before"]) == {"loss", "loss_short"}
    assert set(training["measured"]["after"]) == {"loss", "loss_short"}
    assert training["measured"]["after"]["loss"] < training["measured"]["before"]["loss"]
    losses = [row["loss"] for row in training["losses"]]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.05
    assert training["proof"]["logits_error"] <= 1e-4
    card = (after / "README.md").read_text(encoding="utf-8")
    assert card.count("## Recovery training") == 1
    assert "- loss: " in card


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=[pytest.mark.slow] if k in ("pi", "ntk", "llama3") else [])
        for k in STOCK
    ],
)
def test_what_transformers_loads_it_still_loads(
    kind: str, plain: Path, data: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    before = STOCK[kind](plain, tmp_path / "patched")
    record = healed(before, data, tmp_path / "healed")
    check(before, tmp_path / "healed", record)
    ropepatch.verify(tmp_path / "healed")
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "healed")
    ours = ropepatch.load(tmp_path / "healed")
    # where frequencies follow the length, ours keep early tokens as they were in short texts
    one, other = (logits(model)[:, -16:] for model in (stock, ours))
    assert torch.allclose(one, other, atol=1e-3 if kind in ("dynamic-ntk", "longrope") else 1e-5)
    assert left(tmp_path) == ["healed", "patched"]


@pytest.mark.parametrize("kind", OURS)
def test_what_ropepatch_loads_it_still_loads(
    kind: str, plain: Path, data: Path, tmp_path: Path
) -> None:
    before = OURS[kind](plain, tmp_path / "patched")
    # layers that still turn end at the window they were trained for
    words = {"seq_len": 64, "batch": 8} if kind == "every second" else {}
    record = healed(before, data, tmp_path / "healed", words)
    check(before, tmp_path / "healed", record)
    ropepatch.verify(tmp_path / "healed")
    model = ropepatch.load(tmp_path / "healed")
    assert type(model) is type(ropepatch.load(before))
    assert (ropepatch.patch_of(model) is None) == (
        ropepatch.patch_of(ropepatch.load(before)) is None
    )
    assert left(tmp_path) == ["healed", "patched"]


def test_the_result_gives_the_logits_of_the_trained_model(
    plain: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropepatch.healing.trainer import HealTrainer

    trained: list[torch.Tensor] = []
    save = HealTrainer.save_model

    def remembered(self: Any, *args: Any, **words: Any) -> None:
        trained.append(logits(self.model))
        save(self, *args, **words)

    monkeypatch.setattr(HealTrainer, "save_model", remembered)
    ropepatch.extend(plain, {"method": "yarn", "factor": 4}, tmp_path / "patched")
    healed(tmp_path / "patched", data, tmp_path / "healed")
    assert torch.equal(trained[-1], logits(ropepatch.load(tmp_path / "healed")))


def test_a_gemma_with_a_schedule_per_layer_type(data: Path, tmp_path: Path) -> None:
    saved(tmp_path / "plain", "gemma3")
    ropepatch.extend(tmp_path / "plain", {"method": "yarn", "factor": 4}, tmp_path / "patched")
    record = healed(tmp_path / "patched", data, tmp_path / "healed")
    check(tmp_path / "patched", tmp_path / "healed", record)
    ropepatch.verify(tmp_path / "healed")


def test_weights_in_bfloat16_stay_so(data: Path, tmp_path: Path) -> None:
    saved(tmp_path / "plain", dtype=torch.bfloat16)
    ropepatch.extend(tmp_path / "plain", {"method": "yarn", "factor": 4}, tmp_path / "patched")
    record = healed(tmp_path / "patched", data, tmp_path / "healed")
    assert {v.dtype for v in weights_of(tmp_path / "healed").values()} == {torch.bfloat16}
    assert record["proof"]["dtype"] == "bfloat16"
    losses = [row["loss"] for row in record["losses"]]
    assert losses[-1] < losses[0] - 0.05
    assert farthest(tmp_path / "patched", tmp_path / "healed") > 1e-3


@pytest.mark.slow
def test_training_in_bfloat16_keeps_float32_weights(
    plain: Path, data: Path, tmp_path: Path
) -> None:
    ropepatch.extend(plain, {"method": "yarn", "factor": 4}, tmp_path / "patched")
    record = healed(tmp_path / "patched", data, tmp_path / "healed", {"precision": "bfloat16"})
    exact = healed(tmp_path / "patched", data, tmp_path / "exact")
    check(tmp_path / "patched", tmp_path / "exact", exact)
    for one, other in zip(record["losses"], exact["losses"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=0.03)
    rounded = {k: v.bfloat16().float() for k, v in weights_of(tmp_path / "healed").items()}
    assert any(not torch.equal(v, rounded[k]) for k, v in weights_of(tmp_path / "healed").items())


@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.slow), True])
def test_weights_in_several_files(tied: bool, data: Path, tmp_path: Path) -> None:
    saved(tmp_path / "plain", shard="60KB", tie_word_embeddings=tied)
    assert (tmp_path / "plain" / "model.safetensors.index.json").is_file()
    ropepatch.extend(tmp_path / "plain", {"method": "yarn", "factor": 4}, tmp_path / "patched")
    record = healed(tmp_path / "patched", data, tmp_path / "healed")
    check(tmp_path / "patched", tmp_path / "healed", record)
    ropepatch.verify(tmp_path / "healed")
    index = tmp_path / "healed" / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        assert names == {p.name for p in (tmp_path / "healed").glob("*.safetensors")}


@pytest.mark.slow
def test_what_was_healed_is_healed_again(plain: Path, data: Path, tmp_path: Path) -> None:
    ropepatch.extend(plain, {"method": "yarn", "factor": 4}, tmp_path / "patched")
    healed(tmp_path / "patched", data, tmp_path / "once")
    healed(tmp_path / "once", data, tmp_path / "twice")
    written = json.loads((tmp_path / "twice" / "ropepatch.json").read_text(encoding="utf-8"))
    assert ["training" in one for one in written["history"]] == [False, True]
    card = (tmp_path / "twice" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlicense: mit")


def test_training_goes_on_after_tables_were_made_without_gradients(
    plain: Path, data: Path, tmp_path: Path
) -> None:
    for method in ("dynamic-ntk", "yarn"):
        model = built()
        ropepatch.patch(model, method, factor=4)
        with torch.inference_mode():
            model(input_ids=torch.arange(2, 200)[None])
        loss = model(input_ids=torch.arange(2, 200)[None], labels=torch.arange(2, 200)[None]).loss
        loss.backward()
        assert all(
            not tensor.is_inference()
            for module in model.modules()
            for tensor in module.__dict__.get("_buffers", {}).values()
            if tensor is not None
        )
    ropepatch.extend(plain, {"method": "dynamic-ntk", "factor": 4}, tmp_path / "patched")
    words = {"check_every": 1, "check_prompts": 2, "seq_len": 256, "batch": 2}
    record = healed(tmp_path / "patched", data, tmp_path / "healed", words)
    assert len(record["losses"]) == 4
    assert "needle" in record["measured"]["after"] or record["notes"]


@pytest.mark.slow
def test_the_tiny_retriever_learns_on(tmp_path: Path) -> None:
    ropepatch.extend(RETRIEVER, {"method": "pi", "factor": 4}, tmp_path / "pi")
    data = documents(tmp_path / "texts.jsonl", count=200, sentences=130)
    words = {
        "seq_len": 1024,
        "steps": 12,
        "batch": 4,
        "micro_batch": 1,
        "learning_rate": 5e-4,
        "check_prompts": 4,
    }
    record = healed(tmp_path / "pi", data, tmp_path / "healed", words)
    measured = record["measured"]
    assert measured["after"]["loss"] < measured["before"]["loss"] - 0.2
    assert {"needle", "needle_short"} <= set(measured["after"])
