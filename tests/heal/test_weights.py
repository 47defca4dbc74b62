from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ropepatch.errors import VerificationError
from ropepatch.healing.weights import put_into, shards_of

HALF = torch.bfloat16


def folder(place: Path, tensors: dict[str, torch.Tensor], **metadata: str) -> Path:
    place.mkdir()
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt", **metadata})
    return place


def tensors_of(place: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in shards_of(place) for k, v in load_file(file).items()}


def test_each_tensor_keeps_its_precision_and_strangers_stay(tmp_path: Path) -> None:
    before = {
        "a": torch.tensor([1.0, 2.0], dtype=HALF),
        "router": torch.tensor([0.1]),
        "mtp": torch.tensor([7.0], dtype=HALF),
        "count": torch.tensor([3]),
    }
    base = folder(tmp_path / "base", before, made="by hand")
    after = {"a": torch.tensor([1 + 2**-10, 2.5]), "router": torch.tensor([0.3])}
    trained = folder(tmp_path / "trained", {**after, "count": torch.tensor([3])})
    put_into(base, trained, tmp_path / "new")
    found = tensors_of(tmp_path / "new")
    assert {k: v.dtype for k, v in found.items()} == {k: v.dtype for k, v in before.items()}
    assert found["a"].tolist() == [1.0, 2.5]
    assert found["router"].item() == pytest.approx(0.3, abs=1e-7)
    assert found["mtp"].item() == 7.0
    with safe_open(tmp_path / "new" / "model.safetensors", "pt") as file:
        assert file.metadata()["made"] == "by hand"


def test_a_copy_of_tied_weights_is_not_written_twice(tmp_path: Path) -> None:
    base = folder(tmp_path / "base", {"embed": torch.zeros(3, 2)})
    new = torch.randn(3, 2)
    trained = folder(tmp_path / "trained", {"embed": new, "head": new.clone()})
    put_into(base, trained, tmp_path / "new")
    assert list(tensors_of(tmp_path / "new")) == ["embed"]
    apart = folder(tmp_path / "apart", {"embed": new, "head": new + 1})
    with pytest.raises(VerificationError, match="'head'"):
        put_into(base, apart, tmp_path / "other")


def test_files_stay_as_they_were_cut(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    save_file({"a": torch.zeros(2)}, base / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(2)}, base / "model-00002-of-00002.safetensors")
    table = '{"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'  # noqa: E501
    (base / "model.safetensors.index.json").write_text(table)
    trained = folder(tmp_path / "trained", {"a": torch.ones(2), "b": torch.ones(2)})
    put_into(base, trained, tmp_path / "new")
    names = sorted(p.name for p in (tmp_path / "new").iterdir())
    assert names == sorted(p.name for p in base.iterdir())
    assert all(bool((v == 1).all()) for v in tensors_of(tmp_path / "new").values())


def test_another_shape_is_refused(tmp_path: Path) -> None:
    base = folder(tmp_path / "base", {"a": torch.zeros(2)})
    trained = folder(tmp_path / "trained", {"a": torch.zeros(3)})
    with pytest.raises(VerificationError, match="shape"):
        put_into(base, trained, tmp_path / "new")


def test_where_all_names_are_others_the_trained_files_are_taken(tmp_path: Path) -> None:
    base = folder(tmp_path / "base", {"old.a": torch.zeros(2)})
    trained = folder(tmp_path / "trained", {"new.a": torch.ones(2)})
    put_into(base, trained, tmp_path / "new")
    found: Any = tensors_of(tmp_path / "new")
    assert list(found) == ["new.a"]
