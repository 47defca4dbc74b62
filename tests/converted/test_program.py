"""`ropepatch convert` as a person meets it: what it prints, and what it leaves behind."""

import math
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ropepatch import convert_checkpoint
from ropepatch.damage import MOST_TOKENS, measure_damage
from ropepatch.errors import CheckpointError, PatchConflictError
from tests import tiny
from tests.converted.folders import MODULE, NATIVE, converted, read
from tests.end_to_end.program import Run, line_of, process
from tests.tiny import read_json, tree

TEXT = "The lamp at the end of the wall was lit by hand, and seldom went out. " * 12


def test_convert_inspect_verify_restore(llama_folder: Path, tmp_path: Path, run: Run) -> None:
    """One checkpoint through every command."""
    out = tmp_path / "out"
    done = process("convert", "-m", llama_folder, "--to", "alibi", "-o", out, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    assert "alibi in place of RoPE" in done.out
    assert "ALiBi" in done.out
    assert "verified in ConvertedLlamaForCausalLM: 2 attentions changed, 2 of 2 layers" in done.out
    assert "slopes 0.0625 to 0.00390625" in done.out
    assert "weights: 1 by hard link" in done.out
    assert "recovery training" in done.out
    assert done.out.rstrip().endswith(f"written: {out}")

    shown = run("inspect", out)
    assert (shown.code, shown.err) == (0, "")
    assert "converted by ropepatch: to alibi" in shown.out

    checked = run("verify", out)
    assert checked.code == 0, checked.err
    assert "2 of 2 layers" in checked.out
    words = run("verify", out, "--json", "--logits")
    assert words.code == 0, words.err
    assert words.json["proof"]["attentions"] == 2
    assert words.json["logits"]["max_change_long"] > 0.1

    restored = run("restore", out)
    assert (restored.code, restored.err) == (0, "")
    assert "alibi taken out again" in restored.out
    assert MODULE in restored.out
    assert read_json(out / "config.json") == read_json(llama_folder / "config.json")


def test_nope(llama_folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    done = run("convert", "-m", llama_folder, "--to", "nope", "-o", out)
    assert done.code == 0, done.err
    assert "nope in place of RoPE" in done.out
    assert "stand still in 2 layers" in done.out
    assert "NoPELlamaForCausalLM" in done.out
    checked = run("verify", out)
    assert checked.code == 0, checked.err


def test_dry_run(llama_folder: Path, tmp_path: Path, run: Run) -> None:
    before = tree(tmp_path)
    out = tmp_path / "out"
    words = ("convert", "-m", llama_folder, "--to", "alibi", "-f", "4", "-o", out, "--dry-run")
    done = run(*words)
    assert (done.code, done.err) == (0, "")
    assert f"dry run; would write {out}" in done.out
    assert "256 → 1,024 tokens" in done.out
    for line in ("ropepatch_converted", "max_position_embeddings", "ConvertedLlamaForCausalLM"):
        assert line in done.out
    as_json = run(*words, "--json")
    assert (as_json.code, as_json.err) == (0, "")
    assert as_json.json["dry_run"] is True
    assert as_json.json["config"]["max_position_embeddings"] == 1024
    assert as_json.json["target_length"] == 1024
    assert tree(tmp_path) == before


def test_dry_run_in_words_of_transformers(llama_folder: Path, tmp_path: Path, run: Run) -> None:
    done = run("convert", "-m", llama_folder, "--to", "nope", "-o", tmp_path / "x", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert "proportional" in done.out
    assert not list(tmp_path.iterdir())


def test_json_is_one_document(llama_folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    done = run(
        *("convert", "-m", llama_folder, "--to", "alibi", "--layers", "0", "--copy"),
        *("--alibi-bias-max", "4", "--slope-scale", "0.5", "-o", out, "--json"),
    )
    assert done.code == 0, done.err
    found = done.json
    assert found["target"] == str(out)
    assert found["conversion"] == {
        "to": "alibi",
        "layers": [0],
        "alibi_bias_max": 4.0,
        "slope_scale": 0.5,
    }
    assert [(g["layers"], g["encoding"]) for g in found["encodings"]] == [
        ([0], "ALiBi"),
        ([1], "RoPE"),
    ]
    assert found["own_code"] is True
    assert found["weights"] == {"model.safetensors": "copy"}
    assert found["damage"] is None
    assert (found["proof"]["steepest"], found["proof"]["flattest"]) == (0.125, 2.0**-5)
    assert found["proof"]["layers_changed"] == 1


@pytest.mark.parametrize("kind", NATIVE)
def test_a_family_with_biases_of_its_own(kind: str, tmp_path: Path, run: Run) -> None:
    config = {"model_type": kind, **NATIVE[kind]}
    folder = tiny.bare_checkpoint(tmp_path / "model", config)
    done = run("convert", "-m", folder, "--to", "alibi", "-f", "4", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert "alibi, slopes divided by 4" in done.out
    assert "2 attentions changed, 2 of 2 layers" in done.out


# --- what it costs ------------------------------------------------------------------------------


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> float:
    """By hand: the mean of -log p of each next token."""
    chances = logits[0, :-1].double().log_softmax(-1)
    picked = chances[torch.arange(ids.shape[1] - 1), ids[0, 1:]]
    return float(-picked.mean())


@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_measure(to: str, llama_folder: Path, tmp_path: Path, run: Run) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(TEXT, encoding="utf-8")
    words = ("convert", "-m", llama_folder, "--to", to, "-o", out, "--measure", "--text", text)
    found = run(*words, "--json").json["damage"]
    ids = AutoTokenizer.from_pretrained(llama_folder)(TEXT, return_tensors="pt").input_ids
    ids = ids[:, :MOST_TOKENS]
    assert found["tokens"] == ids.shape[1] == MOST_TOKENS
    wanted = [
        loss_of(read(AutoModelForCausalLM.from_pretrained(folder), ids), ids)
        for folder in (llama_folder, out)
    ]
    assert [found["before"], found["after"]] == pytest.approx(wanted, abs=1e-5)
    assert abs(wanted[0] - wanted[1]) > 1e-2
    perplexities = [found["perplexity_before"], found["perplexity_after"]]
    assert perplexities == pytest.approx([math.exp(loss) for loss in wanted], rel=1e-5)
    assert measure_damage(out, text).to_dict() == found

    again = run(*(out.with_name("again") if word == out else word for word in words))
    assert again.code == 0, again.err
    before, after = perplexities
    assert f"perplexity over {MOST_TOKENS} tokens: {before:,.2f} before, " in again.out
    assert f"{after:,.2f} now, without any training" in again.out


def test_measure_on_the_passage_that_comes_along(
    llama_folder: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    done = run("convert", "-m", llama_folder, "--to", "alibi", "-o", out, "--measure", "--json")
    assert done.code == 0, done.err
    assert done.json["damage"] == measure_damage(out).to_dict()
    assert done.json["damage"]["tokens"] == MOST_TOKENS


def test_measure_of_what_was_extended(llama_folder: Path, tmp_path: Path, run: Run) -> None:
    """As promised: converted or extended."""
    out = tmp_path / "out"
    done = run("extend", "-m", llama_folder, "--method", "pi", "-f", "8", "-o", out)
    assert done.code == 0, done.err
    found = measure_damage(out)
    plain = AutoModelForCausalLM.from_pretrained(llama_folder)
    scaled = AutoModelForCausalLM.from_pretrained(out)
    passage = (resources.files("ropepatch") / "passage.txt").read_text(encoding="utf-8")
    ids = AutoTokenizer.from_pretrained(out)(passage, return_tensors="pt").input_ids
    ids = ids[:, :MOST_TOKENS]
    assert found.before == pytest.approx(loss_of(read(plain, ids), ids), abs=1e-5)
    assert found.after == pytest.approx(loss_of(read(scaled, ids), ids), abs=1e-4)


@pytest.mark.parametrize("text", [b"", b"too short", b"\xff\xfe\x00"])
def test_a_text_that_is_no_text(text: bytes, llama_folder: Path, tmp_path: Path) -> None:
    convert_checkpoint(llama_folder, {"to": "alibi"}, tmp_path / "out", verify=False)
    (tmp_path / "text").write_bytes(text)
    with pytest.raises(CheckpointError) as caught:
        measure_damage(tmp_path / "out", tmp_path / "text")
    assert len(str(caught.value).splitlines()) == 1


def test_nothing_to_measure(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PatchConflictError):
        measure_damage(llama_folder)


def test_measure_without_a_tokenizer(tmp_path: Path, run: Run) -> None:
    """What was written stays, and one line says what could not be measured."""
    model: Any = tiny.build(tiny.llama_config())
    model.save_pretrained(tmp_path / "plain")
    out = tmp_path / "out"
    words = ("convert", "-m", tmp_path / "plain", "--to", "alibi", "-o", out, "--measure")
    done = run(*words)
    assert done.code == 0
    assert "not measured" in done.out
    assert "has no tokenizer" in done.out
    assert "Traceback" not in done.err
    assert read_json(out / "config.json")["model_type"] == "ropepatch_converted"


def test_replace(bare: Path, run: Run) -> None:
    first = converted(bare, to="alibi", factor=4, verify=False)
    target = bare.parent / "again"
    words = ("convert", "-m", first, "--to", "alibi", "--layers", "1", "-o", target, "--no-verify")
    assert "already written 'alibi'" in line_of(run(*words))
    done = run(*words, "--replace")
    assert done.code == 0, done.err
    config = read_json(target / "config.json")
    assert config["max_position_embeddings"] == 4 * tiny.TRAINED, "what is not said stays"
    assert config["ropepatch"]["slopes"]["scale"] == 0.25
    assert config["ropepatch"]["layers"] == {"alibi": [1], "nope": []}
    assert run("restore", target).code == 0
    assert read_json(target / "config.json") == tiny.V5
