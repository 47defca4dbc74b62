"""What stands in a folder: trained, converted, live only, GGUF, of any name."""

import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from ropepatch import Recipe, extend
from ropepatch.config_json.plan import STAMP
from ropepatch.errors import NoEffectError, NotExpressibleError
from ropepatch.exporting import export
from ropepatch.gguf_extending import extend_gguf
from ropepatch.serving.table import ENGINES
from tests.serving.folders import (
    TARGET,
    converted,
    extended,
    found,
    recipe,
    refusal,
)
from tests.tiny import TRAINED, V5, read_json, write_json

# --- trained, converted, live -----------------------------------------------------------------


@pytest.mark.parametrize("target", ["vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("earlier", [False, True])
def test_trained_weights_are_not_the_originals(tmp_path: Path, target: str, earlier: bool) -> None:
    folder = extended(tmp_path)
    record = read_json(folder / "ropepatch.json")
    if earlier:
        record["history"] = [{**record, "training": {"steps": 1}}]
    else:
        record["training"] = {"steps": 1}
    write_json(folder / "ropepatch.json", record)
    said = refusal(folder, target, original=True)
    assert "weights were trained since it was extended; leave --original out" in said
    assert str(folder) in export(folder, target).words.shell


def test_without_a_record_the_original_is_not_known(tmp_path: Path) -> None:
    folder = extended(tmp_path)
    (folder / "ropepatch.json").unlink()
    assert "is not known" in refusal(folder, "vllm", original=True)


@pytest.mark.parametrize("target", ENGINES)
def test_what_only_ropepatch_reads(tmp_path: Path, target: str) -> None:
    folder = extended(tmp_path / "live")
    config = read_json(folder / "config.json")
    config[STAMP]["live_only"] = "no rope_type says it"
    write_json(folder / "config.json", config)
    with pytest.raises(NotExpressibleError, match=r"only by ropepatch\.load: no rope_type says it"):
        export(folder, target)
    assert "It runs in ropepatch.load alone. " in refusal(
        converted(tmp_path / "bias", "alibi"), target
    )


# --- GGUF -------------------------------------------------------------------------------------


def small_gguf(path: Path) -> Path:
    """Metadata of a Llama, and one tensor."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(TRAINED)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(32)
    writer.add_tensor("output.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file(tmp_path: Path) -> None:
    source = small_gguf(tmp_path / "Model.gguf")
    with pytest.raises(NoEffectError, match="is not extended"):
        export(source, "llama.cpp")
    target = tmp_path / "Model-1k.gguf"
    extend_gguf(source, Recipe.named("yarn", factor=4), target)
    done = export(target, "gguf")
    assert done.words.commands == (("llama-server", "-m", str(target), "-c", str(TARGET)),)
    assert (done.row, done.trained_length, done.target_length) == ("yarn", TRAINED, TARGET)
    words = export(target, "ollama").words
    assert words.commands[0] == ("ollama", "create", "model-1k", "-f", "Modelfile")
    assert words.config is not None
    assert words.config.splitlines()[1] == f"PARAMETER num_ctx {TARGET}"
    for other in ENGINES.keys() - {"llama.cpp", "ollama"}:
        assert "give the folder of safetensors" in refusal(target, other)
    assert "leave --original out" in refusal(target, "llama.cpp", original=True)


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["it's a model", "-dash; rm *", "ünï\tcode", "...", "$HOME", "A.b_c-1"]
)
def test_names_of_files_and_models_are_safe(tmp_path: Path, name: str) -> None:
    for place, words in (("a", {}), ("b", {"truncate": False})):
        folder = tmp_path / place / name
        extend(found(tmp_path / place, V5), recipe("yarn", **words), folder, verify=False)
        named = []
        for target in ("llama.cpp", "ollama"):
            done = export(folder, target).words
            named += [w for c in done.commands for w in c if w.endswith(".gguf")]
            if target == "ollama":
                named += [command[2] for command in done.commands if command[0] == "ollama"]
                assert done.config is not None
                named += [done.config.split("\n")[0].removeprefix("FROM ./")]
        assert len(named) > 5
        assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", word) for word in named), named


def test_names_of_gguf_files_are_safe(tmp_path: Path) -> None:
    target = tmp_path / "it's (a) Model.gguf"
    extend_gguf(small_gguf(tmp_path / "m.gguf"), Recipe.named("yarn", factor=4), target)
    words = export(target, "ollama").words
    assert [command[2] for command in words.commands] == ["it-s-a-model"] * 2
    assert words.config == f"FROM {target}\nPARAMETER num_ctx {TARGET}\n"
