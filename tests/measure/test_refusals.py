"""Every bad request of the evaluating commands is one line, exit code 2, and nothing written."""

from pathlib import Path

import pytest

from tests.end_to_end.program import Run, line_of

NEEDLE = ("evaluate", "needle", "--lengths", "128", "--depths", "0")
READ = ("evaluate", "perplexity", "--lengths", "64,128", "--final-tokens", "16")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--depths 150", "depth 150 is not between 0 and 100"),
        ("--depths 0:100:0", "the step must be above 0"),
        ("--depths 100:0:10", "the end not before the start"),
        ("--depths 0:inf:10", "write numbers from 0 to 100"),
        ("--answer-tokens 2", "take up to 5 tokens; 2 (--answer-tokens) are too few"),
        ("--device cuda:99", "there is no device 'cuda:99' here"),
        ("--tokenizer /nope", "the tokenizer /nope does not exist"),
        ("--depths five", "write START:STOP:STEP"),
        ("--depths nan", "is not between 0 and 100"),
        ("--lengths 0", "is not a length"),
        ("--lengths 8x", "is not a length"),
        ("--lengths 128,128", "name each length once"),
        ("--lengths 20", "the shortest length for it is"),
        ("--task nias_single", "Did you mean 'niah_single'?"),
        ("--trials 0", "trials must be a whole number from 1"),
        ("--protocol both", "protocol 'both' is none of"),
        ("--protocol shared --task passkey", "no key to ask by"),
        ("--scoring guess", "scoring 'guess' is none of"),
        ("--chat", "the tokenizer has no chat template"),
        ("--dtype float8", "dtype 'float8' is none of"),
        ("--device tpu", "device 'tpu' cannot be used"),
        ("--attn-implementation magic", "cannot be loaded"),
        ("--prefill-chunk 3", "at least 16 tokens"),
        ("--haystack nowhere.txt", "the haystack nowhere.txt does not exist"),
        ("--served-model x", "--served-model belongs to --endpoint"),
        ("--endpoint ftp://x", "http"),
        ("--endpoint http://127.0.0.1:9 --timeout 1", "127.0.0.1:9"),
        ("--lengths 100m", "GiB are free"),
    ],
)
def test_needle(
    options: str,
    said: str,
    run: Run,
    retriever: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*NEEDLE, "-m", retriever, "-o", "out", *options.split())
    assert said in line_of_last(done)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--text nowhere.txt", "the text nowhere.txt does not exist"),
        ("--text empty.txt", "is empty"),
        ("--text short.txt", "the longest document has"),
        ("--text binary.txt", "is not UTF-8"),
        ("--final-tokens 64", "leave nothing to read before them"),
        ("--stride 100", "skips tokens of the shortest length"),
        ("--judge x", "add --longppl"),
        ("--longppl --short-context 4k", "must be shorter than the longest length"),
        ("--longppl --short-context 4x", "--short-context: '4x' is not a length"),
        ("--lengths 1 --final-tokens 0", "scores nothing"),
        ("--text=", "--text is empty"),
        ("--max-windows 0", "max_windows must be a whole number from 1"),
        ("--buckets 0", "buckets must be a whole number from 1"),
    ],
)
def test_perplexity(
    options: str,
    said: str,
    run: Run,
    retriever: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("Too short a text.")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x81")
    done = run(*READ, "-m", retriever, "-o", "out", *options.split())
    assert said in line_of_last(done)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--methods yran", "Did you mean 'yarn'?"),
        ("--methods yarn,yarn", "some are the same"),
        ("--methods yarn:factor=4,yarn", "some are the same"),
        ("--text x --only needle", "leave out --only needle"),
        ("--methods longrope", "lists that belong to one model"),
        ("--methods yarn:beta_fast", "write NAME=VALUE after the colon"),
        ("--only both", "write needle or perplexity"),
        ("--factor 1 --methods yarn", "factor 1 changes nothing"),
        ("--methods ,", "name methods to compare"),
    ],
)
def test_compare(options: str, said: str, run: Run, retriever: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("compare", "-m", retriever, "-o", out, *options.split())
    assert said in line_of_last(done)
    assert not out.exists()


def test_an_empty_haystack(run: Run, retriever: Path, tmp_path: Path) -> None:
    (tmp_path / "hay.txt").write_text("\n \n")
    done = run(*NEEDLE, "-m", retriever, "-o", tmp_path / "out", "--haystack", tmp_path / "hay.txt")
    assert "is empty" in line_of_last(done)
    assert not (tmp_path / "out").exists()


def test_no_model_and_no_such_model(run: Run, tmp_path: Path) -> None:
    assert "--model is missing" in line_of(run(*NEEDLE))
    assert "does not exist" in line_of(run(*NEEDLE, "-m", tmp_path / "nothing.gguf"))


def test_a_report_of_nothing(run: Run, tmp_path: Path) -> None:
    assert "holds no run" in line_of(run("report", tmp_path))


def test_results_that_cannot_be_read(run: Run, retriever: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = (*NEEDLE, "-m", retriever, "-o", out)
    assert run(*words).code == 0
    (out / "results.jsonl").write_text("{broken\n" + (out / "results.jsonl").read_text())
    assert "results.jsonl, line 1, cannot be read" in line_of_last(run(*words))
    (out / "run.json").write_text("[]")
    assert "run.json is damaged" in line_of_last(run(*words))


def line_of_last(answer: object) -> str:
    """The refusal, after what was said on the way to it."""
    from tests.end_to_end.program import Answer

    assert isinstance(answer, Answer)
    assert answer.code == 2, answer
    assert answer.out == ""
    assert "Traceback" not in answer.err
    *_, line = answer.err.splitlines()
    assert line.startswith("ropepatch: "), answer.err
    return line.removeprefix("ropepatch: ")
