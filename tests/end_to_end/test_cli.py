"""The program as a person meets it: what it prints, how it ends, and what it leaves behind."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ropepatch.methods.table import METHODS
from ropepatch_cli.app import main
from tests import tiny
from tests.end_to_end.program import EXTEND, ROOT, Run, line_of, process
from tests.tiny import TRAINED, read_json, tree, write_json

# --- the main job, for real -------------------------------------------------------------------


def test_extend_inspect_verify_restore(llama_folder: Path, tmp_path: Path, run: Run) -> None:
    """One checkpoint through every command."""
    out = tmp_path / "out"
    done = process(
        *("extend", "-m", llama_folder, "--method", "yarn", "--factor", "8", "-o", out),
        cwd=tmp_path,
    )
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    assert "yarn: 256 → 2,048 tokens (v5 config)" in done.out
    assert "verified in LlamaForCausalLM at 2,048 tokens" in done.out
    assert "applied to 2 of 2 layers" in done.out
    assert "weights: 1 by hard link" in done.out
    assert done.out.rstrip().endswith(f"written: {out}")
    proof = read_json(out / "ropepatch.json")["proof"]
    assert proof["layers_changed"] == proof["layer_count"] == 2

    found = run("inspect", out, "--json", "--method", "pi", "--factor", "2")
    assert (found.code, found.err) == (0, "")
    assert found.json["schedules"]["*"]["method"] == "yarn"
    assert found.json["trained_length"] == TRAINED
    assert found.json["configured_length"] == 8 * TRAINED
    assert found.json["ropepatch"]["recipe"] == {"method": "yarn", "factor": 8.0}
    assert found.json["extend"]["pi"]["target_length"] == 2 * TRAINED

    shown = run("inspect", out)
    assert (shown.code, shown.err) == (0, "")
    assert "extended by ropepatch: yarn, 256 → 2,048 tokens" in shown.out
    assert "yarn ×8" in shown.out

    checked = run("verify", out, "--logits", "--json")
    assert checked.code == 0, checked.err
    assert checked.json["proof"]["length"] == 8 * TRAINED
    assert checked.json["logits"]["max_change_long"] > 0.1
    assert "logits with against without" in run("verify", out, "--logits").out

    restored = run("restore", out)
    assert (restored.code, restored.err) == (0, "")
    assert restored.out == (
        f"{out}: yarn taken out again, original values back in tokenizer_config.json, "
        "generation_config.json, README.md, config.json.\n"
    )
    assert read_json(out / "config.json") == read_json(llama_folder / "config.json")
    assert "nothing to restore" in line_of(run("restore", out))
    assert "there is nothing to verify" in line_of(run("verify", out))


def test_json_of_extend(llama_folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    words = ("extend", "-m", llama_folder, "--method", "p-rope", "--keep", "0.5", "--to", "1k")
    done = run(*words, "--copy", "-o", out, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["target"] == str(out)
    assert done.json["recipe"] == {"method": "p-rope", "to": 1024, "keep": 0.5}
    assert done.json["target_length"] == 1024
    assert done.json["weights"] == {"model.safetensors": "copy"}
    assert done.json["proof"]["schedules"][0]["changed_pairs"] == 8
    assert any("stops 8 of 16 pairs" in note for note in done.json["notes"])


def test_a_checkpoint_scaled_by_others_is_verified(tmp_path: Path, run: Run) -> None:
    block = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    folder = tiny.make_llama(
        tmp_path / "model",
        max_position_embeddings=8 * TRAINED,
        rope_parameters={
            **block,
            "rope_theta": 10000.0,
            "original_max_position_embeddings": TRAINED,
        },
    )
    done = run("verify", folder)
    assert done.code == 0, done.err
    assert "verified in LlamaForCausalLM at 2,048 tokens" in done.out


def test_what_transformers_refuses_leaves_nothing(bare: Path, run: Run) -> None:
    write_json(bare / "config.json", tiny.V5 | {"hidden_act": "no-such-activation"})
    done = run("extend", "-m", bare, "--method", "yarn", "-f", "4", "-o", bare.parent / "out")
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("ropepatch: transformers cannot build a model")
    assert "Traceback" not in done.err
    assert sorted(p.name for p in bare.parent.iterdir()) == ["model"]


def test_weights_that_do_not_run_are_one_line(
    pickled_folder: Path, tmp_path: Path, run: Run
) -> None:
    """Pickled weights are never loaded, not even when asked for logits."""
    out = tmp_path / "out"
    words = ("extend", "-m", pickled_folder, "--method", "yarn", "-f", "4", "-o", out)
    assert run(*words, "--no-verify").code == 0
    assert "the model cannot be run" in line_of(run("verify", out, "--logits"))


# --- what is written where --------------------------------------------------------------------


def test_default_output(bare: Path, run: Run) -> None:
    done = run("extend", "-m", bare, *EXTEND)
    assert (done.code, done.err) == (0, "")
    assert "not verified (--no-verify)" in done.out
    assert (bare.parent / "model-yarn-1k" / "config.json").is_file()


def test_dry_run(bare: Path, run: Run) -> None:
    before = tree(bare.parent)
    done = run("extend", "-m", bare, *EXTEND, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert f"dry run; would write {bare.parent / 'model-yarn-1k'}" in done.out
    assert '\n-  "max_position_embeddings": 256,' in done.out
    assert '\n+  "max_position_embeddings": 1024,' in done.out
    assert '\n+    "rope_type": "yarn"' in done.out
    as_json = run("extend", "-m", bare, *EXTEND, "--dry-run", "--json").json
    assert as_json["dry_run"] is True
    assert as_json["config"]["max_position_embeddings"] == 1024
    assert tree(bare.parent) == before


def test_recipe_file_and_options_that_win(bare: Path, run: Run) -> None:
    recipe = bare.parent / "recipe.yaml"
    words = {"model": str(bare), "method": "yarn", "factor": 2, "beta_fast": 16, "note": "mine"}
    recipe.write_text(yaml.safe_dump(words), encoding="utf-8")

    def of(*more: str) -> dict[str, Any]:
        found: dict[str, Any] = run(
            "extend", "--recipe", recipe, "--dry-run", "--json", *more
        ).json["recipe"]
        return found

    assert of() == {"method": "yarn", "factor": 2.0, "beta_fast": 16.0}
    assert of("--factor", "4") == {"method": "yarn", "factor": 4.0, "beta_fast": 16.0}
    assert of("--to", "1k") == {"method": "yarn", "to": 1024, "beta_fast": 16.0}
    assert of("--set", "beta_fast=64", "--set", "beta-slow=2", "--layers", "all") == {
        "method": "yarn",
        "factor": 2.0,
        "layers": ["all"],
        "beta_fast": 64.0,
        "beta_slow": 2.0,
    }
    assert of("--trained-length", "128")["trained_length"] == 128


def test_factors_file(bare: Path, run: Run) -> None:
    lists = {"long_factor": [2.0] * 16, "short_factor": [1.0] * 16}
    path = write_json(bare.parent / "lists.json", {"rope_scaling": lists | {"type": "longrope"}})
    words = ("extend", "-m", bare, "--method", "longrope", "-f", "4", "--dry-run", "--json")
    assert run(*words, "--factors", path).json["recipe"] == {
        "method": "longrope",
        "factor": 4.0,
        **lists,
    }


@pytest.mark.parametrize("dialect", ["v4", "v5", "both"])
def test_dialects(dialect: str, bare: Path, run: Run) -> None:
    words = ("extend", "-m", bare, *EXTEND, "--dry-run", "--json", "--dialect", dialect)
    config = run(*words).json["config"]
    assert ("rope_scaling" in config) == (dialect != "v5")
    assert ("rope_parameters" in config) == (dialect != "v4")


def test_replace(bare: Path, run: Run) -> None:
    run("extend", "-m", bare, *EXTEND)
    first = bare.parent / "model-yarn-1k"
    words = ("extend", "-m", first, "--method", "pi", "--factor", "2", "--no-verify")
    assert "already written 'yarn' here; pass --replace" in line_of(run(*words))
    assert run(*words, "--replace", "-o", bare.parent / "second").code == 0
    assert read_json(bare.parent / "second" / "config.json")["max_position_embeddings"] == 512


# --- showing ----------------------------------------------------------------------------------


def test_inspect_draws(bare: Path, run: Run) -> None:
    picture = bare.parent / "waves.png"
    done = run("inspect", bare, "--method", "yarn", "--method", "ntk", "--plot", picture)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f"picture: {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    quiet = run("inspect", bare, "--json", "--plot", bare.parent / "waves.svg")
    assert quiet.json["model"] == str(bare)
    assert quiet.err == f"picture: {bare.parent / 'waves.svg'}\n"


def test_a_picture_is_png_unless_named(bare: Path, run: Run) -> None:
    done = run("inspect", bare, "--plot", bare.parent / "waves")
    assert done.out.endswith(f"picture: {bare.parent / 'waves.png'}\n")
    assert (bare.parent / "waves.png").is_file()


@pytest.mark.parametrize("name", ["nowhere/waves.png", "waves.docx", "folder.png"])
def test_pictures_that_cannot_be_drawn(name: str, bare: Path, run: Run) -> None:
    (bare.parent / "folder.png").mkdir()
    done = run("inspect", bare, "--json", "--plot", bare.parent / name)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("ropepatch: cannot write the picture")


def test_names_are_not_taken_for_markup(tmp_path: Path, run: Run) -> None:
    """What a file or a config says is shown as it stands."""
    config = tiny.V4 | {"model_type": "[/red]:dog:", "layer_types": ["[bold]", "[/]"]}
    folder = tiny.bare_checkpoint(tmp_path / "[blue] $a_b$ :cat:", config)
    shown = run("inspect", folder, "--plot", tmp_path / "waves.png")
    assert (shown.code, shown.err) == (0, "")
    for word in ("[/red]:dog:", "[bold]", "[/]", "[blue] $a_b$ :cat:"):
        assert word in shown.out
    assert run("inspect", folder, "--json").json["model"] == str(folder)
    words = ("extend", "-m", folder, *EXTEND, "--layers", "all", "-o", tmp_path / "[out]")
    assert f"written: {tmp_path / '[out]'}" in run(*words).out
    assert f"{tmp_path / '[out]'}: yarn" in run("restore", tmp_path / "[out]").out


def test_inspect_of_several_schedules(tmp_path: Path, run: Run) -> None:
    found = run("inspect", tiny.bare_checkpoint(tmp_path / "model", tiny.COMPOSITE), "--json").json
    assert list(found["schedules"]) == ["full_attention", "sliding_attention"]
    assert found["extend"]["yarn"]["layer_types"] == ["full_attention"]


def test_inspect_says_why_a_method_is_refused(tmp_path: Path, run: Run) -> None:
    config = tiny.V4 | {"model_type": "mistral", "sliding_window": 128}
    folder = tiny.bare_checkpoint(tmp_path / "model", config)
    assert "no RoPE change lengthens its reach" in run("inspect", folder).out
    assert "refused" in run("inspect", folder, "--json").json["extend"]["yarn"]


def test_methods(run: Run) -> None:
    listed = run("methods")
    assert (listed.code, listed.err) == (0, "")
    assert listed.out.startswith("method ")
    for name in METHODS:
        assert f"\n{name} " in listed.out
    assert list(run("methods", "--json").json) == list(METHODS)
    one = run("methods", "linear")
    assert "pi  Position interpolation" in one.out
    assert "parameters" in one.out
    assert "Did you mean 'yarn'?" in line_of(run("methods", "yran"))


def test_version_and_help(run: Run) -> None:
    assert run("--version").out.startswith("ropepatch 0.")
    for command in ("extend", "inspect", "verify", "restore", "methods"):
        answer = run(command, "--help")
        assert answer.code == 0
        assert "Usage" in answer.out


# --- the edges ---


def test_bugs_keep_their_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ropepatch.extending.inspect", bug)
    monkeypatch.setattr(sys, "argv", ["ropepatch", "inspect", "x"])
    with pytest.raises(ZeroDivisionError):
        main()


def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropepatch.extending.inspect", stop)
    answer = run("inspect", "x")
    assert answer.code == 130
    assert answer.err == "ropepatch: interrupted; nothing half-written is left.\n"


# --- as a process of its own ------------------------------------------------------------------


def test_refusal_of_a_process(tmp_path: Path) -> None:
    line = line_of(process("extend", "-m", "nowhere.gguf", *EXTEND, cwd=tmp_path))
    assert line == "nowhere.gguf does not exist."
    assert list(tmp_path.iterdir()) == []


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    away = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    line = line_of(process("inspect", "someone/some-model", cwd=tmp_path, **away))
    assert line.startswith("someone/some-model is neither a folder here nor a model the hub")


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    with subprocess.Popen(
        [sys.executable, "-m", "ropepatch_cli", "methods", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""
    assert command.returncode == 1


def test_a_terminal_without_unicode(bare: Path) -> None:
    words = ("extend", "-m", bare, *EXTEND, "--dry-run")
    answer = process(*words, cwd=bare.parent, PYTHONIOENCODING="ascii")
    assert answer.code == 0, answer.err
    assert "1,024 tokens" in answer.out
