"""Checkpoints that only `ropepatch.load` reads, in the hands of everything that reads folders."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import ropepatch
from ropepatch import patch_of
from ropepatch.errors import AlreadyScaledError, CheckpointError, ConfigError, VerificationError
from ropepatch.model.proof import Proof
from ropepatch_cli.app import main
from tests.live.subjects import Case, make, name_of, patched, read, text
from tests.tiny import read_json, write_json

YARN: Case = ("dynamic-yarn", {"factor": 4.0, "growth": 1.5})
EXACT: Case = ("yarn", {"factor": 4.0, "short_exact": True})
BOTH = pytest.mark.parametrize("case", [YARN, EXACT], ids=name_of)
IDS = text(150)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What a patched model saved; the case is the test's, or dynamic-yarn."""
    case = (
        request.node.callspec.params.get("case", YARN)
        if hasattr(request.node, "callspec")
        else YARN
    )
    with patched(make(), case) as handle:
        handle.model.save_pretrained(tmp_path / "live")
    return tmp_path / "live"


def loaded(folder: Path, **words: Any) -> Any:
    return ropepatch.load(folder, dtype=torch.float32, **words).eval()


@BOTH
def test_load_restores_the_patch(case: Case, folder: Path) -> None:
    with patched(make(), case) as handle:
        wanted = read(handle.model, IDS)
    model = loaded(folder)
    found = patch_of(model)
    assert found is not None
    assert found.recipe == handle.recipe
    assert torch.equal(read(model, IDS), wanted)
    assert patched(model, case) is found


@BOTH
def test_plain_transformers_refuses_it_by_name(case: Case, folder: Path) -> None:
    with pytest.raises(KeyError, match=r"ropepatch\.load"):
        AutoModelForCausalLM.from_pretrained(folder)
    block = read_json(folder / "config.json")["rope_parameters"]
    assert block["rope_type"] == "ropepatch.load"
    assert "live_only" in read_json(folder / "config.json")["ropepatch"]


@BOTH
def test_saving_what_was_loaded_writes_the_same_config(
    case: Case, folder: Path, tmp_path: Path
) -> None:
    loaded(folder).save_pretrained(tmp_path / "again")
    first, second = (read_json(f / "config.json") for f in (folder, tmp_path / "again"))
    assert second == first


def test_load_in_half_precision(folder: Path) -> None:
    model = ropepatch.load(folder, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    found = patch_of(model)
    assert found is not None
    found.describe()


def test_load_with_another_recipe(folder: Path) -> None:
    other = {"method": "pi", "factor": 2.0}
    with pytest.raises(AlreadyScaledError, match="replace=True"):
        loaded(folder, recipe=other)
    model = loaded(folder, recipe=other, replace=True)
    with patched(make(), ("pi", {"factor": 2.0})) as handle:
        assert torch.equal(read(model, IDS), read(handle.model, IDS))


def test_load_of_a_plain_folder(tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    plain = loaded(tmp_path)
    assert patch_of(plain) is None
    assert torch.equal(read(plain, IDS), read(model, IDS))
    with patched(model, EXACT):
        recipe = {"method": "yarn", "factor": 4, "short_exact": True}
        assert torch.equal(read(loaded(tmp_path, recipe=recipe), IDS), read(model, IDS))


@pytest.mark.parametrize("word", ["config", "trust_remote_code", "gguf_file"])
def test_load_makes_some_words_itself(word: str, folder: Path) -> None:
    load: Any = ropepatch.load
    with pytest.raises(CheckpointError, match=word):
        load(folder, **{word: None})


# --- verify -------------------------------------------------------------------------------------


@BOTH
def test_verify_proves_it(case: Case, folder: Path) -> None:
    found = ropepatch.verify(folder)
    assert found.logits is None
    assert isinstance(found.proof, Proof)
    assert found.proof.length == 256
    assert found.proof.layers_changed == 2
    assert found.proof.schedules[0].changed_pairs == 31
    with patched(make(), case) as handle:
        assert found.proof == handle.describe().proof


@BOTH
def test_verify_compares_logits(case: Case, folder: Path) -> None:
    found = ropepatch.verify(folder, logits=True).logits
    assert found is not None
    assert found.short == 0
    assert found.long > 0.1
    assert found.long_length == 256


def test_verify_refuses_a_damaged_stamp(folder: Path) -> None:
    config = read_json(folder / "config.json")
    config["ropepatch"]["recipe"] = None
    write_json(folder / "config.json", config)
    with pytest.raises(ConfigError, match="damaged"):
        ropepatch.verify(folder)


def test_verify_refuses_a_length_that_somebody_changed(folder: Path) -> None:
    """As for any other folder that ropepatch has written."""
    config = read_json(folder / "config.json")
    config["max_position_embeddings"] = 100
    write_json(folder / "config.json", config)
    with pytest.raises(VerificationError, match="max_position_embeddings"):
        ropepatch.verify(folder)


# --- restore and extend -------------------------------------------------------------------------


@BOTH
def test_restore_gives_the_plain_checkpoint_back(case: Case, folder: Path) -> None:
    ropepatch.restore(folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert torch.equal(read(plain, IDS), read(make(), IDS))
    assert "ropepatch" not in read_json(folder / "config.json")


def test_extend_refuses_it_unless_it_may_replace(folder: Path, tmp_path: Path) -> None:
    recipe = ropepatch.Recipe.named("yarn", factor=2)
    with pytest.raises(AlreadyScaledError, match="dynamic-yarn"):
        ropepatch.extend(folder, recipe, tmp_path / "out")
    ropepatch.extend(folder, recipe, tmp_path / "out", replace=True)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with patched(make(), ("yarn", {"factor": 2.0})) as handle:
        torch.testing.assert_close(read(plain, IDS), read(handle.model, IDS), rtol=0, atol=3e-4)


@BOTH
def test_extend_cannot_write_what_only_a_live_model_can_do(case: Case, tmp_path: Path) -> None:
    make().save_pretrained(tmp_path / "plain")
    words = {k: v for k, v in case[1].items() if k != "growth"}
    with pytest.raises(ropepatch.RopepatchError, match="cannot be written"):
        ropepatch.extend(
            tmp_path / "plain", ropepatch.Recipe.named(case[0], **words), tmp_path / "out"
        )


# --- the program --------------------------------------------------------------------------------


def program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str | Path
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ropepatch", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


@BOTH
def test_the_program_inspects_verifies_and_restores_it(
    case: Case,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, out, err = program(capsys, monkeypatch, "inspect", folder)
    assert (code, err) == (0, "")
    assert f"extended by ropepatch: {case[0]}, 64 → 256 tokens" in out
    assert "ropepatch.load" in out
    assert "trained length 64" in out

    code, out, err = program(capsys, monkeypatch, "verify", folder)
    assert code == 0, err
    assert "256 tokens" in out
    assert "Traceback" not in err

    code, out, err = program(capsys, monkeypatch, "verify", folder, "--logits", "--json")
    assert code == 0, err

    code, out, err = program(capsys, monkeypatch, "restore", folder)
    assert (code, err) == (0, "")
    assert f"{case[0]} taken out again" in out

    code, out, err = program(capsys, monkeypatch, "verify", folder)
    assert code == 2
    assert "not scaled" in err
