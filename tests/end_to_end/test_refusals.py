"""Every bad request is one line on standard error, exit code 2, and nothing written."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.end_to_end.program import EXTEND, Run, line_of
from tests.tiny import tree, write_json

NO_ROPE: dict[str, Any] = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2}
SCALED: dict[str, Any] = tiny.V4 | {"rope_scaling": {"type": "linear", "factor": 2.0}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--method yarn --factor 1", "factor 1 changes nothing"),
        ("--method yarn --factor 0.5", "factor must be at least 1, not 0.5"),
        ("--method yarn --factor 0", "factor must be at least 1, not 0"),
        ("--method yarn --factor -4", "factor must be at least 1, not -4"),
        ("--method yarn --factor nan", "factor must be a number, not nan"),
        ("--method yarn --factor inf", "factor must be at least 1, not inf"),
        ("--method yarn --factor 1e30", "factor 1e+30 is beyond"),
        ("--method yarn --factor 5000", "factor 5000 is beyond"),
        ("--method yarn", "yarn needs factor (times the trained length) or to (tokens)"),
        ("--method yarn --factor 4 --to 2k", "give factor or to, not both"),
        ("--method yarn --to 200", "shorter than the 256 the model was trained on"),
        ("--method yarn --to 256", "changes nothing"),
        ("--method yarn --to 10x", "to: '10x' is not a length"),
        ("--method yarn --to 64m", "beyond"),
        ("--method yarn --to 0", "to: '0' is not a length"),
        ("--factor 4", "--method is missing"),
        ("--method yran --factor 4", "Did you mean 'yarn'?"),
        ("--method alibi --factor 4", "no method is called 'alibi'"),
        ("--method yarn --factor 4 --set beta_fast", "write NAME=VALUE"),
        ("--method yarn --factor 4 --set =3", "write NAME=VALUE"),
        ("--method yarn --factor 4 --set beta_fast=[1", "cannot read the value"),
        ("--method yarn --factor 4 --set beta_fast=fast", "beta_fast must be a number"),
        ("--method yarn --factor 4 --set beta_fsat=3", "yarn takes no beta_fsat"),
        ("--method yarn --factor 4 --keep 0.5", "yarn takes no keep"),
        ("--method p-rope --keep 1.5", "keep"),
        ("--method p-rope --keep some", "keep must be a number or 'auto'"),
        ("--method longrope --factor 4", "longrope needs long_factor"),
        ("--method longrope --factor 4 --factors nowhere.json", "nowhere.json: No such file"),
        ("--method longrope --factor 4 --set long_factor=[1,2]", "16 numbers"),
        ("--method yarn --factor 4 --layers global", "no layers of type 'global'"),
        ("--method yarn --factor 4 --layers sliding_attention", "no layers of type"),
        ("--method yarn --factor 4 --dialect v6", "--dialect is auto, v4, v5 or both, not 'v6'"),
        ("--method p-rope --keep 0.5 --dialect v4", "use --dialect v5"),
        ("--method dynamic-yarn --factor 4", "dynamic-yarn"),
        ("--method yarn --factor 4 --trained-length long", "trained_length: 'long' is not"),
        ("--method yarn --factor 4 --recipe nowhere.yaml", "nowhere.yaml: No such file"),
        ("--method yarn --factor 4 --recipe model", "model: Is a directory"),
        ("--method yarn --factor 4 --revision main", "--revision is for models of the hub"),
    ],
)
def test_bad_requests(
    options: str, said: str, bare: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bare.parent)
    before = tree(bare.parent)
    assert said in line_of(run("extend", "-m", "model", *options.split()))
    assert tree(bare.parent) == before


def test_several_faults_are_one_line(run: Run) -> None:
    said = line_of(
        run(
            *("extend", "--method", "yarn", "--factor", "0.5", "--dialect", "v6"),
            *("--set", "beta_fsat=3", "--set", "beta_slow=x"),
        )
    )
    assert said.startswith("5 faults: (1) --model is missing")
    for part in ("--dialect is auto", "at least 1", "no beta_fsat", "beta_slow must be a number"):
        assert part in said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yarn",
        "- method: yarn",
        "method: [yarn",
        "method: yarn\nfactor: four",
        "method: yarn\nfactor: 4\nbeta_fsat: 3",
        "factor: 4\nmethod: 7",
        "method: yarn\nfactor: 4\nlayers: 7",
        "method: yarn\nfactor: 4\n1: 2",
        "method: yarn\nfactor: 4\nto: 128k",
        "method: !!python/object/apply:os.system ['true']",
        "method: yarn\nfactor: 2020-01-01",
        "\x00",
    ],
)
def test_bad_recipe_files(text: str, bare: Path, run: Run) -> None:
    recipe = bare.parent / "recipe.yaml"
    recipe.write_text(text, encoding="utf-8")
    before = tree(bare.parent)
    line_of(run("extend", "-m", bare, "--recipe", recipe))
    assert tree(bare.parent) == before


def test_a_recipe_file_that_is_no_text(bare: Path, run: Run) -> None:
    recipe = bare.parent / "recipe.yaml"
    recipe.write_bytes(b"method: y\xe4rn")
    assert "not UTF-8 text" in line_of(run("extend", "-m", bare, "--recipe", recipe))


@pytest.mark.parametrize("command", ["extend", "inspect", "verify", "restore"])
@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "has no config.json"),
        ("", "is empty"),
        ('{"model_type": "lla', "is not JSON"),
        ("[1]", "holds no JSON object"),
        ("{}", "names no model_type"),
        (json.dumps(NO_ROPE), "no rotary position embeddings"),
        (json.dumps(tiny.V5 | {"num_hidden_layers": "many"}), "num_hidden_layers"),
        (json.dumps(tiny.V5 | {"rope_parameters": [1]}), "rope_parameters"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_bad_configs(command: str, config: str | None, said: str, bare: Path, run: Run) -> None:
    (bare / "config.json").unlink()
    if config is not None:
        (bare / "config.json").write_text(config, encoding="utf-8")
    before = tree(bare.parent)
    words = ("-m", bare, *EXTEND) if command == "extend" else (bare,)
    line = line_of(run(command, *words))
    assert said in line or (command == "restore" and "carries no stamp" in line)
    assert tree(bare.parent) == before


@pytest.mark.parametrize("command", ["extend", "inspect", "verify", "restore"])
def test_missing_folders(command: str, tmp_path: Path, run: Run) -> None:
    words = (
        ("-m", tmp_path / "nowhere", *EXTEND) if command == "extend" else (tmp_path / "nowhere",)
    )
    assert "nowhere does not exist" in line_of(run(command, *words))
    assert list(tmp_path.iterdir()) == []


def test_bad_outputs(bare: Path, run: Run) -> None:
    (bare.parent / "there").mkdir()
    (bare.parent / "file").write_text("", encoding="utf-8")
    before = tree(bare.parent)
    for output, said in (
        (bare.parent / "there", "exists already; choose another --output"),
        (bare.parent / "file", "exists already"),
        (bare.parent / "file" / "out", "cannot write"),
        (bare, "lies inside the model's own folder"),
        (bare / "out", "lies inside the model's own folder"),
        (bare.parent / ("x" * 300), "File name too long"),
        (Path("/proc/out"), "cannot write /proc/out"),
    ):
        assert said in line_of(run("extend", "-m", bare, *EXTEND, "-o", output))
    assert tree(bare.parent) == before


def test_bad_folders(tmp_path: Path, run: Run) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "model", shards=2)
    index = {"weight_map": {"a": "../../etc/passwd.safetensors"}}
    write_json(folder / "model.safetensors.index.json", index)
    assert "outside the folder" in line_of(run("extend", "-m", folder, *EXTEND))
    index = {"weight_map": {"a": "model-00009-of-00009.safetensors"}}
    write_json(folder / "model.safetensors.index.json", index)
    assert "which the folder lacks" in line_of(run("extend", "-m", folder, *EXTEND))
    (folder / "model.safetensors").write_bytes(b"garbage")
    assert "not a safetensors file" in line_of(run("extend", "-m", folder, *EXTEND))
    scaled = tiny.bare_checkpoint(tmp_path / "scaled", SCALED)
    assert "already scaled: 'linear' ×2" in line_of(run("extend", "-m", scaled, *EXTEND))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "scaled"]


@pytest.mark.usefixtures("powerless")
def test_no_permission(locked: Path, run: Run) -> None:
    for words in (
        ("extend", "-m", locked / "model", *EXTEND),
        ("inspect", locked / "model"),
        ("verify", locked / "model"),
        ("restore", locked / "model"),
    ):
        assert "Permission denied" in line_of(run(*words))


def test_a_name_with_a_line_break_is_still_one_line(tmp_path: Path, run: Run) -> None:
    assert "does not exist" in line_of(run("inspect", tmp_path / "two\nlines"))
