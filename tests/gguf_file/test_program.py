"""The program with GGUF files: what it prints, how it ends, and what it leaves behind."""

import os
from pathlib import Path

import pytest

from tests import tiny
from tests.end_to_end.program import Run, line_of, process
from tests.gguf_file.made import TRAINED, make_model, read

YARN = ("--method", "yarn", "-f", "4")
PNG = b"\x89PNG"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_model(tmp_path / "x.gguf")


# --- one file through every command -----------------------------------------------------------


def test_extend_inspect_restore(source: Path, tmp_path: Path, run: Run) -> None:
    target = tmp_path / "y.gguf"
    done = process("extend", "-m", source, *YARN, "-o", target, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    lines = done.out.splitlines()
    assert lines[0] == "yarn: 8,192 → 32,768 tokens (GGUF metadata, llama)"
    assert "-llama.context_length = 8192" in lines
    assert "+llama.context_length = 32768" in lines
    assert "+llama.rope.scaling.type = yarn" in lines
    assert "+llama.rope.scaling.factor = 4" in lines
    assert "+llama.rope.scaling.original_context_length = 8192" in lines
    assert "verified by the header read back" in done.out
    assert "attention factor 1.138629" in done.out.replace("\n", " ")
    assert f"written: {target}" in lines
    assert f"run it: llama-server -m {target} -c 32768" in lines

    shown = run("inspect", target)
    assert (shown.code, shown.err) == (0, "")
    assert "extended by ropepatch: yarn, 8,192 → 32,768 tokens" in shown.out
    assert "context length 32,768, original 8,192" in shown.out
    assert "yarn ×4" in shown.out
    assert "extend --method yarn is refused: " in shown.out
    assert "turns by yarn with these parameters already; nothing would change." in shown.out
    shown = run("inspect", target, "--method", "ntk")
    assert "extend --method ntk --replace --output NAME.gguf" in shown.out

    again = run("extend", "-m", target, "--method", "ntk", "-f", "2", "-o", tmp_path / "z.gguf")
    assert "already written 'yarn'" in line_of(again)

    restored = run("restore", target)
    assert (restored.code, restored.err) == (0, "")
    assert (
        restored.out
        == f"{target}: yarn taken out again, its metadata are what they were, to the byte.\n"
    )
    assert target.read_bytes() == source.read_bytes()
    assert "nothing to restore" in line_of(run("restore", target))


def test_a_tensor_is_shown(source: Path, tmp_path: Path, run: Run) -> None:
    words = ("extend", "-m", source, "--method", "llama3", "--to", "32k", "-o")
    done = run(*words, tmp_path / "y.gguf")
    assert done.code == 0
    assert "+rope_freqs.weight: 32 factors, one per pair (added)" in done.out


def test_a_dry_run_writes_nothing(source: Path, tmp_path: Path, run: Run) -> None:
    target = tmp_path / "folder" / "y.gguf"
    done = run("extend", "-m", source, *YARN, "-o", target, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert f"dry run; would write {target}" in done.out.replace("\n", " ")
    assert "+llama.rope.scaling.type = yarn" in done.out
    assert "written" not in done.out.replace("would write", "")
    assert os.listdir(tmp_path) == ["x.gguf"]


def test_json_of_extend(source: Path, tmp_path: Path, run: Run) -> None:
    words = ("extend", "-m", source, *YARN, "-o", tmp_path / "y.gguf", "--json")
    dry = run(*words, "--dry-run")
    done = run(*words)
    for answer in (dry, done):
        assert (answer.code, answer.err) == (0, "")
        assert answer.json["recipe"] == {"method": "yarn", "factor": 4.0}
        assert (answer.json["trained_length"], answer.json["target_length"]) == (8192, 32768)
        assert answer.json["metadata"]["llama.rope.scaling.type"] == {
            "before": None,
            "after": "yarn",
        }
        assert answer.json["target"] == str(tmp_path / "y.gguf")
        assert answer.json["tensors"] == {}
    assert (dry.json["dry_run"], dry.json["proof"]) == (True, None)
    assert "dry_run" not in done.json
    assert done.json["proof"]["attention_factor"] == pytest.approx(1.138629, abs=1e-6)
    assert done.json["proof"]["worst_error"] < 1e-6


def test_json_of_inspect(source: Path, run: Run) -> None:
    found = run(
        "inspect", source, "--json", "--method", "ntk", "--method", "dynamic-ntk", "-f", "2"
    )
    assert (found.code, found.err) == (0, "")
    assert found.json["format"] == "gguf"
    assert (found.json["version"], found.json["files"], found.json["tensors"]) == (3, 1, 4)
    assert found.json["architecture"] == "llama"
    assert found.json["context_length"] == TRAINED
    assert found.json["freq_base"] == 500000.0
    assert (found.json["scaled"], found.json["in_force"]) == (False, "plain")
    assert (found.json["ropepatch"], found.json["refused"]) == (None, None)
    assert found.json["extend"]["ntk"]["target_length"] == 2 * TRAINED
    assert "follows the length" in found.json["extend"]["dynamic-ntk"]["refused"]


def test_inspect(source: Path, run: Run) -> None:
    shown = run("inspect", source, "--method", "yarn", "--method", "longrope")
    if shown.code == 0:
        assert "is refused" in shown.out
    else:
        assert "longrope needs long_factor" in line_of(shown)
    shown = run("inspect", source)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[0] == f"{source}  GGUF, llama"
    assert "called 'a model'" in shown.out
    assert "context length 8,192, original not said" in shown.out
    assert "plain" in shown.out
    assert "extend --method yarn --output NAME.gguf: 8,192 → 32,768 tokens" in shown.out


def test_inspect_what_is_refused(tmp_path: Path, run: Run) -> None:
    shown = run("inspect", make_model(tmp_path / "x.gguf", "deepseek2"))
    assert shown.code == 0
    words = " ".join(shown.out.split())
    assert "extend is refused for its metadata: llama.cpp scales the softmax" in words


def test_a_picture(source: Path, tmp_path: Path, run: Run) -> None:
    extended = run("extend", "-m", source, *YARN, "-o", tmp_path / "$y$.gguf")
    assert extended.code == 0
    for model, name in ((source, "one.png"), (tmp_path / "$y$.gguf", "other.png")):
        drawn = run("inspect", model, "--plot", tmp_path / name)
        assert (drawn.code, drawn.err) == (0, "")
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_a_split_model(tmp_path: Path, run: Run) -> None:
    make_model(tmp_path / "m.gguf", part_size=2)
    first = tmp_path / "m-00001-of-00002.gguf"
    before = first.read_bytes()
    done = run("extend", "-m", first, *YARN)
    assert (done.code, done.err) == (0, "")
    folder = tmp_path / "m-yarn-32k"
    assert f"run it: llama-server -m {folder / first.name} -c 32768" in done.out
    assert "the first file's header" in done.out.replace("\n", " ")
    assert "2 files" in run("inspect", folder / first.name).out
    assert run("restore", folder / first.name).code == 0
    assert (folder / first.name).read_bytes() == before
    assert "give m-00001" in line_of(run("extend", "-m", tmp_path / "m-00002-of-00002.gguf", *YARN))


def test_a_recipe_file(source: Path, tmp_path: Path, run: Run) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("method: yarn\nfactor: 2\nbeta_fast: 16\n", encoding="utf-8")
    words = ("extend", "-m", source, "--recipe", recipe, "-o", tmp_path / "y.gguf")
    assert run(*words, "--set", "attention_factor=1.0").code == 0
    found = read(tmp_path / "y.gguf")
    assert found["llama.context_length"] == 2 * TRAINED
    assert "llama.rope.scaling.attn_factor" not in found


# --- refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dialect", "v4"), "--dialect means nothing for a GGUF file's metadata"),
        (("--no-verify",), "--no-verify means nothing"),
        (("--revision", "main"), "--revision means nothing"),
        (("--trust-remote-code",), "--trust-remote-code means nothing"),
        (("--no-verify", "--dialect", "v5"), "2 faults: .*--dialect means .*--no-verify means"),
        (("--layers", "sliding_attention"), "all of them turn alike; leave --layers out"),
        (("--set", "gamma=3"), "yarn takes no gamma"),
        (("--set", "attention_factor=-1"), "attention_factor must be above 0"),
        (("--to", "64k"), "give factor or to, not both"),
    ],
)
def test_refused_words(
    words: tuple[str, ...], said: str, source: Path, tmp_path: Path, run: Run
) -> None:
    answer = run("extend", "-m", source, *YARN, "-o", tmp_path / "y.gguf", *words)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(line_of(answer))
    assert os.listdir(tmp_path) == ["x.gguf"]


def test_a_folder_cannot_become_gguf(tmp_path: Path, run: Run) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "model")
    answer = run("extend", "-m", folder, *YARN, "-o", tmp_path / "x.gguf")
    line = line_of(answer)
    assert "is no GGUF file, so --output" in line
    assert "ropepatch export --for llama.cpp" in line
    assert os.listdir(tmp_path) == ["model"]


def test_models_that_are_not_there(tmp_path: Path, run: Run) -> None:
    answer = run("extend", "-m", tmp_path / "none.gguf", *YARN, "-o", tmp_path / "y.gguf")
    assert "none.gguf" in line_of(answer)
    assert os.listdir(tmp_path) == []


def test_damaged_files(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF\3\0\0\0")
    for words in (
        ("inspect", path),
        ("inspect", path, "--json"),
        ("inspect", path, "--plot", tmp_path / "p.png"),
        ("restore", path),
        ("extend", "-m", path, *YARN, "-o", tmp_path / "y.gguf"),
        ("extend", "-m", path, *YARN, "-o", tmp_path / "y.gguf", "--json"),
    ):
        assert f"{path} is damaged or cut short" in line_of(run(*words))
    assert os.listdir(tmp_path) == ["x.gguf"]


def test_targets(source: Path, tmp_path: Path, run: Run) -> None:
    target = tmp_path / "y.gguf"
    target.write_bytes(b"mine")
    for more in ((), ("--dry-run",), ("--replace",)):
        answer = run("extend", "-m", source, *YARN, "-o", target, *more)
        assert "exists already" in line_of(answer)
    assert target.read_bytes() == b"mine"


def test_methods_that_no_file_can_say(source: Path, tmp_path: Path, run: Run) -> None:
    words = ("extend", "-m", source, "-f", "4", "-o", tmp_path / "y.gguf", "--method")
    for method in ("dynamic-ntk", "dynamic-yarn"):
        assert "--method yarn is the nearest" in line_of(run(*words, method))
