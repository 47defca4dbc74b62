"""What a folder of results keeps apart, and what it must not lose or take for its own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ropepatch
from ropepatch.comparing import entries_of, lengths_of
from ropepatch.errors import EvaluationError
from ropepatch.evaluate.results import ResultsFolder
from ropepatch.evaluate.tasks.table import TASKS
from ropepatch_cli.evaluating import output_of
from tests.end_to_end.program import Run

FEW = ("--lengths", "128", "--depths", "0,100")


def test_all_tasks_at_once_make_a_report(run: Run, retriever: Path, tmp_path: Path) -> None:
    done = run(
        *("evaluate", "needle", "-m", retriever, "--lengths", "512", "--depths", "0,100"),
        *("--task", ",".join(TASKS), "-o", tmp_path / "out", "--json"),
    )
    assert done.code == 0, done.err
    grids = done.json["subjects"][0]["needle"]["tasks"]
    assert list(grids) == list(TASKS)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for name, task in TASKS.items():
        assert name in page
        rows = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
        own = [record for record in map(json.loads, rows) if record["task"] == name]
        assert len(own) == (2 if task.has_depth else 1)


def test_a_task_about_the_whole_text_alone(run: Run, retriever: Path, tmp_path: Path) -> None:
    words = ("evaluate", "needle", "-m", retriever, "--lengths", "512", "-o", tmp_path / "out")
    done = run(*words, "--task", "common_words")
    assert done.code == 0, done.err
    assert "whole text" in done.out


def test_a_converted_checkpoint_is_measured(run: Run, retriever: Path, tmp_path: Path) -> None:
    for encoding in ("alibi", "nope"):
        ropepatch.convert_checkpoint(retriever, {"to": encoding}, tmp_path / encoding)
        done = run(
            "evaluate", "needle", "-m", tmp_path / encoding, *FEW, "-o", tmp_path / "o" / encoding
        )
        assert done.code == 0, done.err
        assert "0.00" in done.out
        compared = run("compare", "-m", tmp_path / encoding, "-o", tmp_path / "compared")
        assert compared.code == 2, compared
        assert not (tmp_path / "compared").exists()


def test_a_scaled_checkpoint_is_measured_and_not_compared(
    run: Run, retriever: Path, tmp_path: Path
) -> None:
    ropepatch.extend(retriever, {"method": "yarn", "factor": 4}, tmp_path / "yarn")
    words = ("evaluate", "needle", "-m", tmp_path / "yarn", "--lengths", "1k", "--depths", "50")
    done = run(*words, "-o", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    assert done.json["subjects"][0]["trained_length"] == 256
    cells = done.json["subjects"][0]["needle"]["tasks"]["niah_single"]["cells"]
    assert cells[0]["exact"] == 1.0
    compared = run("compare", "-m", tmp_path / "yarn", "-o", tmp_path / "compared")
    assert compared.code == 2
    assert "carries a scaling or a patch already" in compared.err


@pytest.mark.parametrize("changed", ["weights", "tokenizer"])
def test_another_model_under_the_same_name_is_noticed(
    changed: str, run: Run, retriever: Path, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(retriever, tmp_path / "model")
    words = ("evaluate", "needle", "-m", folder, *FEW, "-o", tmp_path / "out")
    assert run(*words).code == 0
    if changed == "weights":
        weights = load_file(folder / "model.safetensors")
        generator = torch.Generator().manual_seed(0)
        noise = {k: 1e-3 * torch.randn(v.shape, generator=generator) for k, v in weights.items()}
        size = (folder / "model.safetensors").stat().st_size
        new = {k: v + noise[k] for k, v in weights.items()}
        save_file(new, folder / "model.safetensors", {"format": "pt"})
        assert (folder / "model.safetensors").stat().st_size == size
    else:
        path = folder / "tokenizer.json"
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:50]
        path.write_text(json.dumps(tokenizer), encoding="utf-8")
    again = run(*words)
    assert again.code == 2
    assert f"holds a run with {'model' if changed == 'weights' else 'tokenizer'} " in again.err


def test_another_models_tokenizer_is_refused(
    run: Run, retriever: Path, llama_folder: Path, tmp_path: Path
) -> None:
    words = ("-m", llama_folder, "--tokenizer", retriever, "-o", tmp_path / "out")
    for command in (
        ("evaluate", "needle", "--lengths", "256", "--depths", "0"),
        ("evaluate", "perplexity", "--lengths", "64"),
    ):
        done = run(*command, *words)
        assert done.code == 2
        assert "another model's tokenizer" in done.err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["天地玄黄宇宙洪荒。日月盈昃辰宿列张。" * 40, "x" * 9000])
def test_needles_find_their_depth_in_texts_without_spaces(
    text: str, run: Run, retriever: Path, tmp_path: Path
) -> None:
    (tmp_path / "hay.txt").write_text(text, encoding="utf-8")
    words = ("evaluate", "needle", "-m", retriever, "--lengths", "1k", "--depths", "0,50,100")
    done = run(*words, "--haystack", tmp_path / "hay.txt", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    rows = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    places = {record["depth"]: record["actual_depth"] for record in map(json.loads, rows)}
    assert places[0.0] == 0
    assert places[50.0] == pytest.approx(50, abs=14)
    assert places[100.0] > 80


def test_compare_refuses_a_short_text_before_it_measures(
    run: Run, retriever: Path, tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("Too short.")
    done = run("compare", "-m", retriever, "--text", tmp_path / "short.txt", "-o", tmp_path / "out")
    assert done.code == 2
    assert "the longest document has" in done.err
    assert not (tmp_path / "out").exists()


def test_folders_with_other_things_are_left_alone(
    run: Run, retriever: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("mine")
    for command in (("evaluate", "needle", *FEW), ("compare", *FEW, "--only", "needle")):
        done = run(*command, "-m", retriever, "-o", out)
        assert done.code == 2
        assert "holds other things" in done.err
        assert (out / "report.html").read_text() == "mine"


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    results = ResultsFolder(tmp_path / "run", {"kind": "needle"}, {}).open()
    results._file.close()
    results._file = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115
    with pytest.raises(EvaluationError, match="No space left on device"), results:
        results.add({"exact": 1})


def test_names_of_folders_keep_what_is_after_a_dot() -> None:
    names: Any = [output_of(None, m, "needle").name for m in ("a/Llama-3.1-8B", "x.gguf", "o/m")]
    assert names == ["Llama-3.1-8B-needle", "x-needle", "m-needle"]


def test_lengths_and_entries_of_a_comparison() -> None:
    assert lengths_of(100, 4) == (50, 100, 200, 400)
    assert lengths_of(100, 2) == (50, 100, 200)
    assert lengths_of(100, 3) == (50, 100, 200, 300)
    assert lengths_of(100, 8) == (50, 100, 200, 400, 800)
    none, yarn, ntk, p_rope = entries_of("none, yarn, ntk:factor=8, p-rope", 4.0)
    assert none.recipe is None
    assert yarn.recipe is not None
    assert yarn.recipe.factor == 4.0
    assert ntk.recipe is not None
    assert ntk.recipe.factor == 8.0
    assert p_rope.recipe is not None
    assert p_rope.recipe.parameters["keep"] == "auto"
