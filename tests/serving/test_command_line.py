"""`ropepatch export`: what a person, a shell and a program are told."""

import json
import shlex
from pathlib import Path

import pytest

from ropepatch.serving.base import ROWS
from ropepatch.serving.table import ENGINES
from tests.end_to_end.program import Run, line_of, process
from tests.serving.folders import TARGET, extended, found
from tests.tiny import TRAINED, V5


def test_for_a_person(tmp_path: Path, run: Run) -> None:
    folder = extended(tmp_path)
    answer = run("export", folder, "--for", "vllm")
    assert (answer.code, answer.err) == (0, "")
    head, checked, _, command, _, *notes = answer.out.splitlines()
    assert head == f"vLLM: yarn, {TRAINED:,} → {TARGET:,} tokens, native"
    assert checked == f"checked against {ENGINES['vllm'].checked}"
    assert command == f"vllm serve {folder} --max-model-len {TARGET}"
    assert notes
    assert all(note.startswith("note: ") for note in notes)


def test_a_file_is_shown_before_the_command(tmp_path: Path, run: Run) -> None:
    answer = run("export", extended(tmp_path), "--for", "tgi")
    assert answer.code == 0
    before, after = answer.out.split("\ntext-generation-launcher ")
    shown = [text[4:] for text in before.splitlines() if text.startswith("    ")]
    assert json.loads("\n".join(shown))["rope_scaling"]["factor"] == 4.0
    assert "config.json:" in before.splitlines()
    assert f"--max-total-tokens {TARGET}\n" in after


@pytest.mark.parametrize("target", ENGINES)
def test_json_has_all_of_it(tmp_path: Path, run: Run, target: str) -> None:
    folder = extended(tmp_path, attention_factor=1.25)
    answer = run("export", folder, "--for", target, "--json")
    assert (answer.code, answer.err) == (0, "")
    words = answer.json
    assert set(words) == {
        *("target", "model", "method", "trained_length", "target_length", "how", "checked"),
        *("commands", "shell", "overrides", "config", "notes"),
    }
    assert (words["target"], words["model"], words["method"]) == (target, str(folder), "yarn")
    assert (words["trained_length"], words["target_length"]) == (TRAINED, TARGET)
    assert words["shell"] == "\n".join(map(shlex.join, words["commands"]))
    if words["config"] is not None:
        assert set(words["config"]) == {"name", "content"}
    if words["overrides"] is not None:
        assert json.dumps(words["overrides"]) in words["commands"][0]


@pytest.mark.parametrize("target", ["vllm", "sglang", "llama.cpp", "ollama", "tgi", "lmdeploy"])
def test_commands_alone(tmp_path: Path, run: Run, target: str) -> None:
    folder = extended(tmp_path / "a b")
    whole = run("export", folder, "--for", target, "--json").json
    answer = run("export", folder, "--for", target, "--command")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == whole["shell"] + "\n"
    assert [shlex.split(text) for text in answer.out.splitlines()] == whole["commands"]


@pytest.mark.parametrize("target", ["transformers4", "tgi", "ollama"])
def test_the_file_alone(tmp_path: Path, run: Run, target: str) -> None:
    folder = extended(tmp_path)
    whole = run("export", folder, "--for", target, "--json").json
    answer = run("export", folder, "--for", target, "--config")
    assert (answer.code, answer.err, answer.out) == (0, "", whole["config"]["content"])


def test_there_may_be_no_file_and_no_command(tmp_path: Path, run: Run) -> None:
    folder = extended(tmp_path)
    said = line_of(run("export", folder, "--for", "vllm", "--config"))
    assert "vLLM needs no file besides" in said
    said = line_of(run("export", folder, "--for", "transformers4", "--command"))
    assert said == "transformers 4 takes a file, not a command; --config prints it."


def test_the_original(tmp_path: Path, run: Run) -> None:
    answer = run("export", extended(tmp_path), "--for", "sglang", "--original", "--command")
    words = shlex.split(answer.out)
    assert words[3] == str(tmp_path / "model")
    overrides = json.loads(words[-1])
    assert overrides["rope_parameters"]["rope_type"] == "yarn"
    assert overrides["max_position_embeddings"] == TARGET


def test_the_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    answer = run("export", "--table")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].split() == ["method", *ENGINES]
    for row, text in zip(ROWS, lines[1:], strict=False):
        assert text.split() == [row, *(engine.methods[row].how for engine in ENGINES.values())]
    words = run("export", "--table", "--json").json
    assert list(words) == list(ENGINES)
    for name, engine in words.items():
        assert engine["checked"] == ENGINES[name].checked
        assert list(engine["methods"]) == list(ROWS)
        for row, cell in engine["methods"].items():
            support = ENGINES[name].methods[row]
            assert cell == {
                "how": support.how,
                "why": support.why,
                "instead": list(support.instead),
            }


def test_a_refusal_is_one_line(tmp_path: Path, run: Run) -> None:
    folder = extended(tmp_path, "dynamic-ntk")
    for more in ((), ("--json",), ("--command",), ("--config",)):
        said = line_of(run("export", folder, "--for", "vllm", *more))
        assert said.startswith("vLLM cannot serve 'dynamic-ntk' as it is meant: ")
        assert "its price at short length: small" in said
    said = line_of(run("export", folder, "--for", "vllm", "--original"))
    assert said.startswith("no flags of vLLM say 'dynamic-ntk': its 'dynamic' is one fixed table, ")
    assert said.endswith("; leave --original out.")
    assert "Nearest" not in said
    assert "is not extended" in line_of(run("export", found(tmp_path / "x", V5), "--for", "vllm"))


@pytest.mark.parametrize(
    "flags", [("--json", "--command"), ("--json", "--config"), ("--command", "--config")]
)
def test_one_form_at_a_time(tmp_path: Path, run: Run, flags: tuple[str, str]) -> None:
    said = line_of(run("export", extended(tmp_path), "--for", "vllm", *flags))
    assert said == "--command, --config and --json exclude one another."


def test_what_is_missing(tmp_path: Path, run: Run) -> None:
    assert line_of(run("export", extended(tmp_path))).startswith("--for is missing; `ropepatch")
    assert line_of(run("export", "--for", "vllm")).startswith("DIR is missing: ")
    said = line_of(run("export"))
    assert "DIR is missing" in said
    assert "--for is missing" in said


@pytest.mark.parametrize(
    ("word", "near"), [("vlm", "vllm"), ("sg-lang", "sglang"), ("lama.cpp", "llama.cpp")]
)
def test_an_unknown_target(tmp_path: Path, run: Run, word: str, near: str) -> None:
    said = line_of(run("export", extended(tmp_path), "--for", word))
    assert said.startswith(f"no target is called '{word}'. Did you mean '{near}'? Known: vllm, ")


def test_it_needs_no_torch(tmp_path: Path) -> None:
    folder = extended(tmp_path)
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    (tmp_path / "transformers.py").write_text("raise RuntimeError('transformers was imported')")
    answer = process("export", folder, "--for", "vllm", "--command", cwd=tmp_path)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"vllm serve {folder} --max-model-len {TARGET}\n"


@pytest.mark.parametrize("columns", [20, 80, 90, 200])
def test_the_table_is_never_cut(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    answer = run("export", "--table")
    assert answer.code == 0
    assert "…" not in answer.out
    lines = answer.out.splitlines()
    assert lines[0].split() == ["method", *ENGINES]
    assert [text.split()[0] for text in lines[1 : 1 + len(ROWS)]] == list(ROWS)
    assert max(len(text) for text in lines[: 1 + len(ROWS)]) <= max(columns, 90)


@pytest.mark.parametrize(
    "more", [("DIR",), ("--for", "vllm"), ("--original",), ("--command",), ("--config",)]
)
def test_a_table_takes_nothing_else(run: Run, more: tuple[str, ...]) -> None:
    said = line_of(run("export", *more, "--table"))
    assert said == "--table is for all engines and methods: it goes with --json alone."
