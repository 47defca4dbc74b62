"""Every bad request of `heal` and `merge` is one line, exit code 2, and nothing written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ropepatch
from ropepatch.errors import HealingError
from ropepatch.healing.plan import HealPlan
from ropepatch.recovering.patient import Patient
from ropepatch.recovering.processes import check_processes
from tests.end_to_end.program import line_of
from tests.heal.whole import PLAN, documents, left, options, program, saved
from tests.tiny import make_llama

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each kind, and texts; not to be changed."""
    place = tmp_path_factory.mktemp("models")
    saved(place / "plain")
    ropepatch.extend(place / "plain", {"method": "yarn", "factor": 4}, place / "yarn")
    ropepatch.extend(place / "plain", {"method": "dynamic-ntk", "factor": 4}, place / "dynamic")
    make_llama(place / "letters")
    documents(place / "texts.jsonl")
    documents(place / "few.jsonl", count=1, sentences=3)
    (place / "wrong.yaml").write_text("seq_len: 128\nsteps: 4\nlearnig_rate: 1\n")
    (place / "lora.yaml").write_text("seq_len: 128\nsteps: 4\nlora: 4\n")
    (place / "stages.yaml").write_text("seq_len: 128\nstages:\n- {steps: 4}\n")
    (place / "model.yaml").write_text("model: m\nseq_len: 128\nsteps: 4\n")
    return place


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        ("plain", {}, "plain is not patched (plain RoPE, trained on 64 tokens)"),
        ("yarn", {"seq_len": 512}, "seq_len 512 is over the 256 tokens that"),
        ("yarn", {"seq_len": None}, "seq_len is missing"),
        ("yarn", {"steps": None}, "steps are missing"),
        ("yarn", {"teacher": "{models}/yarn"}, "is the model itself"),
        ("yarn", {"teacher": "{models}/letters"}, "has a vocabulary of 128 tokens,"),
        ("yarn", {"teacher": "{models}/nowhere"}, "nowhere"),
        ("yarn", {"data": "{models}/nowhere.jsonl"}, "nowhere.jsonl"),
        ("yarn", {"data": "{models}/few.jsonl"}, "one sequence needs 129"),
        ("yarn", {"recipe": "{models}/wrong.yaml"}, "'learnig_rate' is unknown; these are known"),
        ("yarn", {"recipe": "{models}/model.yaml"}, "'model' belongs to the command line"),
        ("yarn", {"recipe": "{models}/stages.yaml"}, "leave out --steps"),
        ("yarn", {"recipe": "{models}/nowhere.yaml"}, "nowhere.yaml"),
        ("yarn", {"lora": 4, "full": True}, "leave one of them out"),
        ("yarn", {"adapter": True}, "give lora a rank"),
        ("yarn", {"output": "{models}/plain"}, "exists already"),
        ("yarn", {"output": "{models}/yarn/inside"}, "lies inside the model's own folder"),
        ("yarn", {"batch": 3}, "micro_batch 2 does not divide batch 3"),
        ("yarn", {"until": "needle>=0.9"}, "give check_every"),
        ("yarn", {"until": "loss>=0.9", "check_every": 1}, "of loss, less is better"),
        ("yarn", {"device": "tpu"}, "device 'tpu' is none of"),
        ("yarn", {"short_original": True}, "short_original is about short sequences"),
        (
            "yarn",
            {"short_original": True, "short_share": 0.5},
            "under the frequencies from before the patch, which",
        ),
        ("dynamic", {"fade": 0.5}, "cannot come in little by little; leave out fade"),
        ("yarn", {"short_share": 0.5, "short_len": 48}, "short_len 48 does not divide"),
        ("yarn", {"learning_rate": 1e30, "save_every": 100}, "take a lower --learning-rate"),
        ("yarn", {"check_every": 2, "check_prompts": 0, "best": "needle"}, "cannot be measured"),
        ("nowhere", {}, "nowhere"),
    ],
)
def test_refusals(
    model: str, words: dict[str, Any], said: str, models: Path, tmp_path: Path, capsys: Capture
) -> None:
    filled = {k: v.format(models=models) if isinstance(v, str) else v for k, v in words.items()}
    filled = {"data": str(models / "texts.jsonl"), "output": str(tmp_path / "healed")} | filled
    before = left(models), left(models / "yarn")
    done = program(capsys, "heal", "-m", models / model, "--json", *options(**filled))
    assert said in line_of(done)
    assert left(tmp_path) == []
    assert (left(models), left(models / "yarn")) == before


def test_missing_words(models: Path, tmp_path: Path, capsys: Capture) -> None:
    words = options(output=tmp_path / "healed")
    data = ("--data", models / "texts.jsonl")
    assert "--model is missing" in line_of(program(capsys, "heal", "--json", *data, *words))
    done = program(capsys, "heal", "-m", models / "yarn", "--json", *words)
    assert "data" in line_of(done)
    assert left(tmp_path) == []


def test_a_recipe_with_adapters_is_trained_whole_where_that_is_asked(
    models: Path, tmp_path: Path, capsys: Capture
) -> None:
    data, recipe = models / "texts.jsonl", models / "lora.yaml"
    words = options(data=data, recipe=recipe, full=True, output=tmp_path / "healed")
    done = program(capsys, "heal", "-m", models / "yarn", "--json", "--dry-run", *words)
    assert done.code == 0, done.err
    assert done.json["plan"]["lora"] is None


@pytest.mark.parametrize("broken", ["default", "another length"])
def test_a_patch_that_is_not_in_effect(
    broken: str, models: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = shutil.copytree(models / "yarn", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if broken == "default":
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    else:
        config["max_position_embeddings"] = 64
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = options(data=models / "texts.jsonl", output=tmp_path / "healed")
    done = program(capsys, "heal", "-m", folder, "--json", *words)
    assert "is not in effect" in line_of(done)
    assert left(tmp_path) == ["model"]


def test_processes_that_cannot_share_a_training(
    models: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(model: str = "yarn", **words: Any) -> str:
        filled = {"data": models / "texts.jsonl", "output": tmp_path / "healed"} | words
        done = program(capsys, "heal", "-m", models / model, "--json", *options(**filled))
        assert left(tmp_path) == []
        return line_of(done)

    with monkeypatch.context() as patch:
        patch.setenv("ACCELERATE_USE_FSDP", "true")
        assert "check_every measures a model whose weights are whole" in said(check_every=2)
        patch.setenv("FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT")
        assert "fsdp_state_dict_type: FULL_STATE_DICT" in said()
        patch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
        assert "fsdp_cpu_ram_efficient_loading" in said()
        patch.setenv("FSDP_VERSION", "1")
        assert "fsdp_version: 2" in said()
    with monkeypatch.context() as patch:
        patch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
        patch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
        assert "which ZeRO-3 takes apart" in said(check_every=2)
    with monkeypatch.context() as patch:
        patch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
        patch.setenv("PARALLELISM_CONFIG_CP_SIZE", "4")
        assert "context parallelism does not go with packing restart" in said()
        line = said(packing="single", teacher=models / "plain")
        assert line == "context parallelism does not go with a teacher."
        line = said(packing="continue", seq_len=132)
        assert line == "context parallelism does not go with sequences that 8 does not divide."


def test_a_step_is_shared_evenly(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = Patient.find(str(models / "yarn"), None, lambda text: None)
    plan = HealPlan.from_words({**PLAN, "packing": "continue"})
    check_processes(plan, patient, 2, taught=False)
    with pytest.raises(
        HealingError, match="batch 4 cannot be shared by 3 processes of micro_batch"
    ):
        check_processes(plan, patient, 3, taught=False)
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "4")
    check_processes(plan, patient, 8, taught=False)  # two groups of four
    with pytest.raises(HealingError, match="batch 4 cannot be shared by 4 processes"):
        check_processes(plan, patient, 16, taught=False)


def test_a_dry_run_reads_no_weights_and_writes_nothing(
    models: Path, tmp_path: Path, capsys: Capture
) -> None:
    from safetensors import safe_open

    folder = shutil.copytree(models / "yarn", tmp_path / "model")
    file = folder / "model.safetensors"
    with safe_open(file, "pt") as opened:
        names = len(list(opened.keys()))
    size = file.stat().st_size
    header = int.from_bytes(file.read_bytes()[:8], "little") + 8
    file.write_bytes(file.read_bytes()[:header] + b"\xff" * (size - header))  # all weights are NaN
    assert names > 0
    words = options(data=models / "texts.jsonl", output=tmp_path / "healed", steps=10)
    done = program(capsys, "heal", "-m", folder, "--dry-run", "--json", *words)
    assert done.code == 0, done.err
    found = done.json
    assert found["dry_run"] is True
    assert found["target"] == str(tmp_path / "healed")
    assert found["plan"]["seq_len"] == 128
    assert found["estimate"]["tokens"] == 10 * 4 * 128
    assert found["estimate"]["parameters"] > 100_000
    told = program(capsys, "heal", "-m", folder, "--dry-run", *words)
    assert told.code == 0
    assert "would write" in told.out
    assert "memory at the peak" in told.out
    assert left(tmp_path) == ["model"]


def test_what_json_says_is_in_the_record(models: Path, tmp_path: Path, capsys: Capture) -> None:
    words = options(data=models / "texts.jsonl", output=tmp_path / "healed")
    done = program(capsys, "heal", "-m", models / "yarn", "--json", *words)
    assert done.code == 0, done.err
    found = done.json
    assert found.pop("target") == str(tmp_path / "healed")
    record = json.loads((tmp_path / "healed" / "ropepatch.json").read_text(encoding="utf-8"))
    assert record["training"] == found
    assert found["command"].startswith("ropepatch heal -m ")
    told = program(capsys, "heal", "-m", models / "yarn", *options(
        data=models / "texts.jsonl", output=tmp_path / "again", teacher=models / "plain"
    ))  # fmt: skip
    assert told.code == 0, told.err
    assert "held-out loss" in told.out
    assert "read back: logits within" in told.out
    assert "original" in told.out
