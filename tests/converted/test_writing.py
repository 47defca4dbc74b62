"""What `convert_checkpoint` writes: the live conversion, beside a source that stays as it was."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ropepatch
from ropepatch import ConversionRecipe, convert_checkpoint, extend
from ropepatch.errors import (
    AlreadyConvertedError,
    AlreadyScaledError,
    CheckpointError,
    VerificationError,
)
from tests import tiny
from tests.converted.folders import (
    IDS,
    MODULE,
    bare_converted,
    converted,
    model_of,
    read,
    refusal,
)
from tests.tiny import TRAINED, read_json, tree, write_json

WORDS: dict[str, dict[str, Any]] = {
    "alibi": {"to": "alibi"},
    "mixed": {"to": "alibi", "keep_rope_every": 4, "alibi_bias_max": 5.0},
    "longer": {"to": "alibi", "factor": 2.0},
    "still": {"to": "nope", "layers": [0, 2]},
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3"])
def test_the_folder_is_the_live_conversion(
    family: str, words: dict[str, Any], tmp_path: Path
) -> None:
    model = model_of(family)
    model.save_pretrained(tmp_path / "plain")
    target = converted(tmp_path / "plain", **words)
    ropepatch.convert(model, **words)
    model.save_pretrained(tmp_path / "live")
    assert torch.equal(read(AutoModelForCausalLM.from_pretrained(target)), read(model))
    assert (target / MODULE).read_bytes() == (tmp_path / "live" / MODULE).read_bytes()
    ours, theirs = (read_json(f / "config.json") for f in (target, tmp_path / "live"))
    for key in ("model_type", "architectures", "auto_map"):
        assert ours[key] == theirs[key]
    for key in ("conversion", "layers", "slopes", "factor", "path", "before", "blocks"):
        assert ours["ropepatch"][key] == theirs["ropepatch"][key]


def test_the_layers_that_were_asked_for(tmp_path: Path) -> None:
    model_of("llama").save_pretrained(tmp_path / "plain")
    target = converted(tmp_path / "plain", to="alibi", keep_rope_every=2)
    assert read_json(target / "config.json")["ropepatch"]["layers"] == {"alibi": [0, 2], "nope": []}
    record = read_json(target / "ropepatch.json")
    assert {g["encoding"]: g["layers"] for g in record["encodings"]} == {
        "ALiBi": [0, 2],
        "RoPE": [1, 3],
    }


@pytest.mark.parametrize("how", ["auto", "link", "copy"])
def test_how_weights_travel(how: Any, bare: Path) -> None:
    target = converted(bare, to="alibi", verify=False, how=how)
    source, carried = bare / "model.safetensors", target / "model.safetensors"
    same = source.stat().st_ino == carried.stat().st_ino
    assert same == (how != "copy")
    assert carried.read_bytes() == source.read_bytes()
    other = (bare / "config.json").stat().st_ino
    assert (target / "config.json").stat().st_ino != other


def test_every_file_of_a_real_checkpoint(llama_folder: Path, tmp_path: Path) -> None:
    before = tree(llama_folder)
    done = convert_checkpoint(llama_folder, {"to": "alibi"}, tmp_path / "out")
    assert tree(llama_folder) == before
    assert tree(done.target).keys() == {*before, MODULE, "README.md", "ropepatch.json"}
    assert (done.target / "tokenizer.json").read_bytes() == (
        llama_folder / "tokenizer.json"
    ).read_bytes()
    text = "the same words"
    first, second = (
        AutoTokenizer.from_pretrained(folder)(text).input_ids
        for folder in (llama_folder, done.target)
    )
    assert first == second
    assert done.written is not None
    assert done.written.carried == {"model.safetensors": "hard link"}


def test_card_and_record(bare: Path) -> None:
    (bare / "README.md").write_text("# A model\n\nIts story.\n", encoding="utf-8")
    target = converted(bare, to="alibi", layers=[1], verify=False)
    card = (target / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# A model\n\nIts story.\n\n<!-- ropepatch: begin -->")
    assert "ALiBi" in card
    assert "trust_remote_code=True" in card
    assert str(bare.parent) not in card
    record = read_json(target / "ropepatch.json")
    assert record["conversion"] == {"to": "alibi", "layers": [1]}
    assert record["lengths"] == {"before": TRAINED, "target": TRAINED}
    assert record["proof"] is None


def test_the_proof_is_in_the_record(llama_folder: Path, tmp_path: Path) -> None:
    done = convert_checkpoint(llama_folder, {"to": "alibi"}, tmp_path / "out")
    proof = read_json(done.target / "ropepatch.json")["proof"]
    assert done.proof is not None
    assert proof == json.loads(json.dumps(done.proof.to_dict()))
    assert proof["attentions"] == proof["layers_changed"] == proof["layer_count"] == 2
    assert (proof["steepest"], proof["flattest"]) == (2.0**-4, 2.0**-8)
    assert proof["worst_error"] < 1e-5


def test_a_source_with_code_of_its_own(bare: Path) -> None:
    """transformers has the model type, so the code stays behind; ours takes its place."""
    own = {"AutoModelForCausalLM": "modeling_x.M"}
    write_json(bare / "config.json", tiny.V5 | {"auto_map": own})
    (bare / "modeling_x.py").write_text("raise SystemExit\n", encoding="utf-8")
    before = tree(bare)
    done = convert_checkpoint(bare, {"to": "alibi"}, bare.parent / "out", verify=False)
    assert tree(bare) == before
    config = read_json(done.target / "config.json")
    assert config["auto_map"]["AutoModelForCausalLM"] == (
        "modeling_ropepatch.ConvertedLlamaForCausalLM"
    )
    assert not (done.target / "modeling_x.py").exists()
    assert done.written is not None
    assert "modeling_x.py" in done.written.left_behind
    assert read_json(done.target / "ropepatch.json")["before"]["config.json"] == {"auto_map": own}


def with_lengths(folder: Path) -> Path:
    write_json(folder / "tokenizer_config.json", {"model_max_length": TRAINED, "x": 1})
    write_json(folder / "generation_config.json", {"max_length": TRAINED, "top_k": 3})
    return folder


@pytest.mark.parametrize("config", [tiny.V4, tiny.V5], ids=["v4", "v5"])
def test_factor_raises_lengths(config: dict[str, Any], tmp_path: Path) -> None:
    bare = with_lengths(tiny.bare_checkpoint(tmp_path / "model", config))
    target = converted(bare, to="alibi", factor=4, verify=False)
    written = read_json(target / "config.json")
    assert written["max_position_embeddings"] == 4 * TRAINED
    assert written["ropepatch"]["slopes"]["scale"] == 0.25
    assert written["ropepatch"]["before"] == {"max_position_embeddings": TRAINED}
    assert read_json(target / "tokenizer_config.json")["model_max_length"] == 4 * TRAINED
    assert read_json(target / "generation_config.json") == {"max_length": 4 * TRAINED, "top_k": 3}


@pytest.mark.parametrize("words", [{"to": "alibi"}, {"to": "nope"}], ids=str)
def test_without_a_factor_lengths_stay(words: dict[str, Any], bare: Path) -> None:
    with_lengths(bare)
    target = converted(bare, **words, verify=False)
    assert read_json(target / "config.json")["max_position_embeddings"] == TRAINED
    for name in ("tokenizer_config.json", "generation_config.json"):
        assert (target / name).read_bytes() == (bare / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"to": "alibi"}, "model-alibi"),
        ({"to": "nope"}, "model-nope"),
        ({"to": "alibi", "factor": 4}, "model-alibi-1k"),
    ],
    ids=str,
)
def test_default_target(words: dict[str, Any], name: str, bare: Path) -> None:
    assert convert_checkpoint(bare, words, verify=False).target == bare.parent / name


def test_a_dry_run_writes_nothing(bare: Path) -> None:
    before = tree(bare.parent)
    done = convert_checkpoint(bare, {"to": "alibi"}, dry_run=True)
    assert tree(bare.parent) == before
    assert (done.written, done.proof) == (None, None)
    assert done.rewrite.after["model_type"] == "ropepatch_converted"
    written = convert_checkpoint(bare, {"to": "alibi"}, verify=False)
    assert read_json(written.target / "config.json") == done.rewrite.after


# --- again, and instead -------------------------------------------------------------------------


@pytest.mark.parametrize("first", [{"to": "alibi", "factor": 4}, {"to": "nope"}], ids=str)
def test_replace_starts_from_the_original(first: dict[str, Any], bare: Path) -> None:
    with_lengths(bare)
    second = {"to": "alibi", "layers": [0], "factor": 2}
    wanted = converted(bare, "wanted", **second, verify=False)
    middle = converted(bare, "middle", **first, verify=False)
    target = converted(middle, "again", **second, replace=True, verify=False)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        assert read_json(target / name) == read_json(wanted / name)
    assert (target / MODULE).read_bytes() == (wanted / MODULE).read_bytes()
    ropepatch.restore(target)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        assert read_json(target / name) == read_json(bare / name)


def test_replace_of_an_extended_folder(bare: Path) -> None:
    with_lengths(bare)
    extend(bare, {"method": "yarn", "factor": 4}, bare.parent / "yarn", verify=False)
    target = converted(bare.parent / "yarn", to="alibi", replace=True, verify=False)
    wanted = converted(bare, "wanted", to="alibi", verify=False)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        assert read_json(target / name) == read_json(wanted / name)
    ropepatch.restore(target)
    assert read_json(target / "config.json") == tiny.V5


def test_converted_already(bare: Path) -> None:
    for first in ("alibi", "nope"):
        folder = converted(bare, first, to=first, verify=False)
        error = refusal(folder, to="alibi", layers=[0], verify=False)
        assert "ropepatch has already written" in str(error)
        assert isinstance(error, AlreadyConvertedError)


def test_what_was_converted_before_is_called_as_it_was_asked_for(bare: Path) -> None:
    for first in ("alibi", "nope"):
        folder = converted(bare, first, to=first, verify=False)
        assert f"'{first}'" in str(refusal(folder, to="alibi", layers=[0], verify=False))
        assert ropepatch.restore(folder).method == first


def test_extended_already(bare: Path) -> None:
    extend(bare, {"method": "yarn", "factor": 4}, bare.parent / "yarn", verify=False)
    assert "already written 'yarn'" in str(refusal(bare.parent / "yarn", to="alibi", verify=False))


def test_no_method_extends_what_does_not_turn(tmp_path: Path) -> None:
    folder = bare_converted(tmp_path)
    before = tree(tmp_path)
    for replace in (False, True):
        with pytest.raises((AlreadyConvertedError, AlreadyScaledError), match="alibi"):
            extend(
                *(folder, {"method": "yarn", "factor": 4}, tmp_path / "x"),
                replace=replace,
                verify=False,
            )
    assert tree(tmp_path) == before


def test_no_patch_on_what_does_not_turn(tmp_path: Path) -> None:
    model_of("llama").save_pretrained(tmp_path / "plain")
    target = converted(tmp_path / "plain", to="alibi")
    model = AutoModelForCausalLM.from_pretrained(target)
    wanted = read(model)
    with pytest.raises(ropepatch.RopepatchError, match="alibi"):
        ropepatch.patch(model, "yarn", factor=4)
    assert torch.equal(read(model), wanted)
    with pytest.raises(AlreadyConvertedError, match="alibi"):
        ropepatch.load(target, {"method": "yarn", "factor": 4})


def test_a_live_model_that_was_loaded_is_converted_anew(tmp_path: Path) -> None:
    model_of("llama").save_pretrained(tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(converted(tmp_path / "plain", to="alibi"))
    with pytest.raises(ropepatch.RopepatchError, match="already written 'alibi'"):
        ropepatch.convert(model, to="nope")
    ropepatch.convert(model, to="nope", replace=True)
    other = model_of("llama")
    ropepatch.convert(other, to="nope")
    assert torch.equal(read(model, IDS), read(other, IDS))


# --- refused, and cut short ---------------------------------------------------------------------


def test_a_target_that_exists(bare: Path) -> None:
    (bare.parent / "refused").mkdir()
    error = refusal(bare, to="alibi", verify=False)
    assert isinstance(error, CheckpointError)
    assert "refused" in str(error)
    assert isinstance(refusal(bare, to="alibi", verify=False, output=bare), CheckpointError)


@pytest.mark.parametrize("error", [VerificationError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("moment", ["converting._prove", "checkpoint.write.carry"])
@pytest.mark.parametrize("to", ["alibi", "nope"])
def test_an_exception_leaves_nothing(
    to: str, moment: str, error: type[BaseException], bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error("enough")

    monkeypatch.setattr(f"ropepatch.{moment}", fail)
    before = tree(bare.parent)
    with pytest.raises(error, match="enough"):
        convert_checkpoint(bare, ConversionRecipe(to=to), bare.parent / "a" / "out")
    assert tree(bare.parent) == before
