"""Every bad request to `convert` is one line on standard error, exit code 2, nothing written."""

from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.converted.folders import NATIVE, converted
from tests.end_to_end.program import Run, line_of, process
from tests.families.small import small
from tests.tiny import tree, write_json


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "--to is missing: alibi or nope"),
        ("--to rope", "converted to alibi or nope, not to 'rope'"),
        ("--to ALIBI", "alibi or nope"),
        ("--to alibi --layers 99", "layer 99: this 'llama' has layers 0 to 1"),
        ("--to alibi --layers 2", "layers 0 to 1"),
        ("--to alibi --layers foo", "no layers of type 'foo'"),
        ("--to alibi --layers 0,,1", "layers is a list"),
        ("--to alibi --layers=-1", "no layers of type '-1'"),
        ("--to alibi --keep-rope-every 1", "at least 2, not 1"),
        ("--to alibi --keep-rope-every 0", "at least 2, not 0"),
        ("--to alibi --layers 1 --keep-rope-every 2", "no layer of this 'llama' would change"),
        ("--to alibi --alibi-bias-max 0", "alibi_bias_max is a number above 0"),
        ("--to alibi --alibi-bias-max 1e9", "alibi_bias_max is a number above 0 and at most 64"),
        ("--to alibi --alibi-bias-max nan", "alibi_bias_max is a number"),
        ("--to alibi --slope-scale 0", "slope_scale is a number above 0"),
        ("--to alibi --slope-scale -1", "slope_scale is a number above 0"),
        ("--to alibi --factor 0.5", "factor is a number at least 1"),
        ("--to alibi --factor inf", "factor is a number at least 1"),
        ("--to nope --factor 2", "factor is for alibi"),
        ("--to nope --slope-scale 0.5", "slope_scale is for alibi"),
        ("--to nope --alibi-bias-max 4", "alibi_bias_max is for alibi"),
        ("--to alibi --text config.json", "--text is what --measure reads; add --measure"),
        ("--to alibi --measure --text nowhere.txt", "--text nowhere.txt: no such file"),
        ("--to alibi --measure --dry-run", "--measure needs what --dry-run does not write"),
        ("--to alibi --revision main", "--revision is for models of the hub"),
    ],
)
@pytest.mark.parametrize("more", ["", "--dry-run", "--json"])
def test_bad_requests(
    options: str, said: str, more: str, bare: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bare.parent)
    before = tree(bare.parent)
    words = list(dict.fromkeys([*options.split(), *more.split()]))
    assert said in line_of(run("convert", "-m", "model", *words))
    assert tree(bare.parent) == before


def test_several_faults_are_one_line(run: Run) -> None:
    said = line_of(run("convert", "--to", "rope", "--factor", "0.5", "--keep-rope-every", "1"))
    for part in ("--model is missing", "'rope'", "at least 1", "at least 2"):
        assert part in said


ENCODER: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
ROTARY_ENCODER = ENCODER | {
    "model_type": "modernbert",
    "architectures": ["ModernBertForMaskedLM"],
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
MODELS: dict[str, tuple[dict[str, Any], str, str]] = {
    "encoder": (ENCODER, "--to alibi", "bert"),
    "encoder that turns": (ROTARY_ENCODER, "--to alibi", "modernbert"),
    "gpt2": ({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2}, "--to nope", "gpt2"),
    "indexed": (small("deepseek_v32"), "--to alibi", "deepseek_v32"),
    "unknown": (tiny.V5 | {"model_type": "llama_of_somebody"}, "--to alibi", "llama_of_somebody"),
    "bloom": ({"model_type": "bloom", **NATIVE["bloom"]}, "--to alibi", "give --factor"),
    "bloom to nope": ({"model_type": "bloom", **NATIVE["bloom"]}, "--to nope", "no rotation"),
    "layers of bloom": (
        {"model_type": "bloom", **NATIVE["bloom"]},
        "--to alibi --factor 2 --layers 0",
        "no layers with RoPE",
    ),
    "still layers": (
        small("smollm3") | {"no_rope_layers": [1, 1, 1, 0], "num_hidden_layers": 4},
        "--to nope --layers 3",
        "nothing to convert",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_cannot_be_converted(name: str, tmp_path: Path, run: Run) -> None:
    config, options, said = MODELS[name]
    folder = tiny.bare_checkpoint(tmp_path / "model", config)
    before = tree(tmp_path)
    for more in ((), ("--dry-run",)):
        assert said in line_of(run("convert", "-m", folder, *options.split(), *more))
        assert tree(tmp_path) == before


def test_an_encoder_is_refused_for_what_it_is(tmp_path: Path, run: Run) -> None:
    """Not by a proof that happens to fail."""
    folder = tiny.bare_checkpoint(tmp_path / "model", ROTARY_ENCODER)
    said = line_of(run("convert", "-m", folder, "--to", "alibi"))
    assert "decoder" in said


@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_converted_already(to: str, bare: Path, run: Run) -> None:
    folder = converted(bare, to=to, verify=False)
    before = tree(bare.parent)
    said = line_of(run("convert", "-m", folder, "--to", "alibi", "-o", bare.parent / "x"))
    assert "already written" in said
    assert "--replace" in said
    assert tree(bare.parent) == before


def test_extending_what_was_converted(bare: Path, run: Run) -> None:
    folder = converted(bare, to="alibi", verify=False)
    before = tree(bare.parent)
    for more in ((), ("--replace",)):
        said = line_of(run("extend", "-m", folder, "--method", "yarn", "-f", "4", *more))
        assert "converted this model to 'alibi'" in said
    assert tree(bare.parent) == before


def test_a_target_that_exists(bare: Path, run: Run) -> None:
    (bare.parent / "out").mkdir()
    said = line_of(run("convert", "-m", bare, "--to", "alibi", "-o", bare.parent / "out"))
    assert "out" in said
    assert not list((bare.parent / "out").iterdir())


def test_a_damaged_stamp(bare: Path, run: Run) -> None:
    folder = converted(bare, to="alibi", verify=False)
    config = tiny.read_json(folder / "config.json")
    config["ropepatch"]["layers"] = 7
    write_json(folder / "config.json", config)
    for command in ("inspect", "verify", "restore"):
        assert "damaged" in line_of(run(command, folder))


def test_what_transformers_refuses_leaves_nothing(bare: Path, run: Run) -> None:
    write_json(bare / "config.json", tiny.V5 | {"hidden_act": "no-such-activation"})
    done = run("convert", "-m", bare, "--to", "alibi", "-o", bare.parent / "out")
    assert done.code == 2
    assert "cannot be built" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
    assert sorted(p.name for p in bare.parent.iterdir()) == ["model"]


def test_in_a_process_of_its_own(bare: Path) -> None:
    done = process("convert", "-m", bare, "--to", "rope", cwd=bare.parent)
    assert "'rope'" in line_of(done)
    assert sorted(p.name for p in bare.parent.iterdir()) == ["model"]
