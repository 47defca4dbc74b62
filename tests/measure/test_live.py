"""A model that is already there, as it stands: plain, patched, converted."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ropepatch
from ropepatch.errors import EvaluationError
from ropepatch.evaluate.plan import NeedlePlan, PerplexityPlan
from ropepatch.evaluate.summaries import needle_summary, perplexity_summary
from ropepatch.measuring import Settings, Subject, needle, perplexity
from tests.end_to_end.program import Run

PLAN = NeedlePlan((200, 700), depths=(0.0, 50.0, 100.0))


@pytest.fixture(scope="module")
def parts(retriever: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return (
        AutoModelForCausalLM.from_pretrained(retriever),
        AutoTokenizer.from_pretrained(retriever),
    )


def exact(subject: Subject, folder: Path) -> list[float | None]:
    found = needle_summary(needle(subject, PLAN, folder).records)
    return [found.by_length[length].exact for length in PLAN.lengths]


def test_patched_and_not(parts: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = parts
    assert exact(Subject.of(model, tokenizer), tmp_path / "plain") == [1.0, 0.0]
    with ropepatch.patch(model, "yarn", factor=4):
        subject = Subject.of(model, tokenizer, "patched")
        assert subject.trained_length == 256
        assert exact(subject, tmp_path / "yarn") == [1.0, 1.0]
        about = json.loads((tmp_path / "yarn" / "run.json").read_text())["about"]
        assert about["recipe"] == {"method": "yarn", "factor": 4.0}
        assert about["target_length"] == 1024
        with pytest.raises(EvaluationError, match="holds a run with recipe null"):
            needle(subject, PLAN, tmp_path / "plain")
    with ropepatch.convert(model, to="alibi"):
        assert exact(Subject.of(model, tokenizer), tmp_path / "alibi")[0] == 0.0
        with pytest.raises(EvaluationError, match="holds a run with conversion null"):
            needle(Subject.of(model, tokenizer), PLAN, tmp_path / "plain")


def test_reuse_and_chunks_change_no_answer(parts: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = parts
    for method in ("none", "dynamic-ntk"):
        made = None if method == "none" else ropepatch.patch(model, method, factor=4)
        subject = Subject.of(model, tokenizer)
        runs = [
            needle(subject, PLAN, tmp_path / method / name, settings).records
            for name, settings in {
                "usual": Settings(),
                "alone": Settings(reuse=False),
                "pieces": Settings(chunk=50),
                "shared beginnings": Settings(short=0),
            }.items()
        ]
        if made is not None:
            made.revert()
        by_cell = [{(r["length"], r["depth"]): r for r in records} for records in runs]
        for other in by_cell[1:]:
            assert other.keys() == by_cell[0].keys()
            for key, record in other.items():
                for name in ("exact", "recall", "tokens_right", "said", "needle_token"):
                    assert record[name] == by_cell[0][key][name], (method, key, name)
                assert record["logprob"] == pytest.approx(by_cell[0][key]["logprob"], abs=1e-4)


def test_perplexity_of_a_live_model(parts: tuple[Any, Any], prose: Path, tmp_path: Path) -> None:
    model, tokenizer = parts
    texts = [("prose", prose.read_text(encoding="utf-8"))]
    plan = PerplexityPlan((128, 512), max_windows=2, final_tokens=64)
    found = perplexity_summary(
        perplexity(Subject.of(model, tokenizer), plan, texts, tmp_path / "out").records
    )
    assert found.windows == 2
    near, far = found.by_length
    assert near.final is not None
    assert far.final is not None
    assert far.final.loss is not None
    assert near.final.loss is not None
    assert far.final.loss > near.final.loss + 1  # beyond 256 tokens it breaks


def test_generation_without_an_end_is_refused(run: Run, retriever: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(retriever, tmp_path / "endless")
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        words = json.loads((folder / name).read_text())
        words.pop("eos_token_id", None)
        words.pop("eos_token", None)
        (folder / name).write_text(json.dumps(words))
    words = ("evaluate", "needle", "-m", folder, "--lengths", "128", "-o", tmp_path / "out")
    done = run(*words, "--scoring", "generate")
    assert done.code == 2
    assert "names an end-of-sequence token" in done.err
    assert not (tmp_path / "out").exists()
    assert run(*words).code == 0
    text = tmp_path / "a.txt"
    text.write_text("Some words. " * 400)
    joined = ("evaluate", "perplexity", "-m", folder, "--text", text, "--join")
    refused = run(*joined, "--lengths", "512", "-o", tmp_path / "read")
    assert refused.code == 2
    assert "no end-of-sequence token to join documents" in refused.err
