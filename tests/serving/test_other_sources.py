"""What TGI's and LMDeploy's own code makes of what it is told, against formulas in float64."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ropepatch.exporting import export
from tests.serving.engines.others import TGI, LMDeploy
from tests.serving.engines.source import source_of
from tests.serving.folders import (
    FOREIGN_YARN,
    TARGET,
    distance,
    expected,
    extended,
    found,
    unscaled,
)
from tests.tiny import TRAINED, V4, V5

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
WRONG = 0.04
ROWS = torch.arange(TARGET)
MSCALE = {"mscale": 0.707, "mscale_all_dim": 1.0}
YARN: dict[str, tuple[str, dict[str, Any]]] = {
    "yarn": ("yarn", {}),
    "yarn, attention 1.3": ("yarn", {"attention_factor": 1.3}),
    "yarn, attention 1": ("yarn", {"attention_factor": 1.0}),
    "yarn, mscale": ("yarn", MSCALE),
}
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "ntk": ("ntk", {}),
    "ntk-by-parts": ("ntk-by-parts", {}),
    "llama3": ("llama3", {}),
}
LMDEPLOY = YARN | PLAIN
LMDEPLOY |= {
    "yarn, no rounding": ("yarn", {"truncate": False}),
    "pi": ("pi", {}),
    "longrope": ("longrope", {}),
}


@pytest.fixture(scope="module")
def tgi() -> TGI:
    place = Path(os.environ.get("ROPEPATCH_ENGINES", ""), "tgi", "server")
    file = place / "text_generation_server" / "layers" / "rotary.py"
    if not file.is_file():
        pytest.skip("ROPEPATCH_ENGINES holds no checkout of TGI")
    return TGI(file)


@pytest.fixture(scope="module")
def lmdeploy() -> Iterator[LMDeploy]:
    engine = LMDeploy(source_of("lmdeploy"))
    yield engine
    engine.close()


def tgis(folder: Path) -> Path:
    """The config that TGI gets: what is exported, or what stands there."""
    content = export(folder, "tgi").words.config
    if content is not None:
        (folder / "config.json").write_text(content, encoding="utf-8")
    return folder / "config.json"


@pytest.mark.parametrize("dialect", ["v4", "v5", "both"])
@pytest.mark.parametrize("name", YARN | PLAIN)
def test_tgi(tmp_path: Path, tgi: TGI, name: str, dialect: str) -> None:
    method, words = (YARN | PLAIN)[name]
    folder = extended(tmp_path, method, dialect=dialect, **words)
    worst = distance(tgi.table(tgis(folder), ROWS), expected(method, ROWS, **words))
    print(f"tgi {name} ({dialect}): {worst:.1e}")
    assert worst < TOLERANCE


def test_tgi_alone_would_serve_the_model_unscaled(tmp_path: Path, tgi: TGI) -> None:
    folder = extended(tmp_path, "yarn")
    assert distance(tgi.table(folder / "config.json", ROWS), unscaled(ROWS)) < TOLERANCE


def test_tgis_linear_would_do_nothing(tmp_path: Path, tgi: TGI) -> None:
    folder = extended(tmp_path, "pi", dialect="v4")
    assert distance(tgi.table(folder / "config.json", ROWS), unscaled(ROWS)) < TOLERANCE


@pytest.mark.parametrize("ramp", [{"beta_fast": 16.0}, {"truncate": False}])
def test_tgis_ramp_would_be_the_usual_one(tmp_path: Path, tgi: TGI, ramp: dict[str, Any]) -> None:
    folder = extended(tmp_path, "yarn", dialect="v4", **ramp)
    table = tgi.table(folder / "config.json", ROWS)
    assert distance(table, expected("yarn", ROWS, **ramp)) > WRONG
    assert distance(table, expected("yarn", ROWS)) < TOLERANCE


@pytest.mark.parametrize("name", LMDEPLOY)
def test_lmdeploys_pytorch_backend(tmp_path: Path, lmdeploy: LMDeploy, name: str) -> None:
    method, words = LMDEPLOY[name]
    folder = extended(tmp_path, method, **words)
    export(folder, "lmdeploy")
    worst = distance(lmdeploy.table(folder, ROWS), expected(method, ROWS, **words))
    print(f"lmdeploy {name}: {worst:.1e}")
    assert worst < TOLERANCE


def test_lmdeploys_longrope_would_lose_the_factor(tmp_path: Path, lmdeploy: LMDeploy) -> None:
    words: dict[str, Any] = {"attention_factor": 1.0}
    folder = extended(tmp_path, "longrope", **words)
    assert distance(lmdeploy.table(folder, ROWS), expected("longrope", ROWS, **words)) > WRONG


def test_lmdeploy_has_no_stopped_pairs(tmp_path: Path, lmdeploy: LMDeploy) -> None:
    with pytest.raises(KeyError, match="proportional"):
        lmdeploy.table(extended(tmp_path, "p-rope"), ROWS)


# --- scaled by others -------------------------------------------------------------------------


@pytest.mark.parametrize("name", FOREIGN_YARN)
def test_tgi_and_others_words(tmp_path: Path, tgi: TGI, name: str) -> None:
    words, wanted = FOREIGN_YARN[name]
    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
    config = {**V4, "max_position_embeddings": TARGET, "rope_scaling": {**block, **words}}
    table = tgi.table(tgis(found(tmp_path, config)), ROWS)
    assert distance(table, expected("yarn", ROWS, **wanted)) < TOLERANCE


@pytest.mark.parametrize("name", FOREIGN_YARN)
def test_lmdeploy_and_others_words(tmp_path: Path, lmdeploy: LMDeploy, name: str) -> None:
    """It turns as transformers does, with what is laid over by its own flag."""
    words, wanted = FOREIGN_YARN[name]
    block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, **words}
    block["original_max_position_embeddings"] = TRAINED
    config: dict[str, Any] = {**V5, "max_position_embeddings": TARGET, "rope_parameters": block}
    folder = found(tmp_path, config)
    laid = export(folder, "lmdeploy").words.overrides or {}
    config["rope_parameters"] |= laid.get("rope_parameters", {})  # as it merges
    folder = found(tmp_path / "laid", config)
    assert distance(lmdeploy.table(folder, ROWS), expected("yarn", ROWS, **wanted)) < TOLERANCE


def test_tgi_and_yarn_without_an_original_length(tmp_path: Path, tgi: TGI) -> None:
    folder = found(tmp_path, {**V4, "rope_scaling": {"type": "yarn", "factor": 4.0}})
    table = tgi.table(tgis(folder), ROWS)
    assert distance(table, expected("yarn", ROWS)) < TOLERANCE
