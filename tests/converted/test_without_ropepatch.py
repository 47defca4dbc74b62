"""Where ropepatch is not installed, the file beside the weights does the same."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ropepatch
from tests.converted.apart import apart
from tests.converted.folders import IDS, MODULE, converted, model_of, read, saved
from tests.tiny import read_json

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "alibi": ("llama", {"to": "alibi"}),
    "mixed": ("qwen3", {"to": "alibi", "keep_rope_every": 2, "slope_scale": 0.5}),
    "still": ("mistral", {"to": "nope", "layers": [0, 3]}),
    "window": ("gemma3_text", {"to": "alibi", "layers": "sliding_attention"}),
    "composite": ("gemma3", {"to": "alibi"}),
    "native": ("bloom", {"to": "alibi", "factor": 4.0}),
    "mpt": ("mpt", {"to": "alibi", "factor": 4.0}),
    "falcon": ("falcon", {"to": "alibi", "factor": 4.0}),
}

SCRIPT = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

ids = torch.load("ids.pt")

def read(folder, name):
    template = AutoModelForImageTextToText if name == "composite" else AutoModelForCausalLM
    model = template.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        return model, model(input_ids=ids, use_cache=False).logits

for name in {names!r}:
    model, first = read(name, name)
    model.save_pretrained("again/" + name)
    again, second = read("again/" + name, name)
    torch.save([first, second], name + ".pt")
    answer[name] = [
        type(model).__name__,
        type(model.config).__name__,
        AutoConfig.from_pretrained(name, trust_remote_code=True).model_type,
    ]
answer["ours"] = sorted(m for m in sys.modules if m.split(".")[0] == "ropepatch")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alone")


@pytest.fixture(scope="module")
def wanted(place: Path) -> dict[str, torch.Tensor]:
    """Logits of the live conversions, all saved in one place."""
    found = {name: saved(place / name, kind, **words) for name, (kind, words) in CASES.items()}
    return {name: logits for name, (_, logits) in found.items()}


@pytest.fixture(scope="module")
def alone(place: Path, wanted: dict[str, torch.Tensor]) -> Any:
    torch.save(IDS, place / "ids.pt")
    return apart(SCRIPT.format(names=list(wanted)), place)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_live_model(
    name: str, place: Path, wanted: dict[str, torch.Tensor], alone: Any
) -> None:
    first, second = torch.load(place / f"{name}.pt")
    assert torch.equal(first, wanted[name])
    assert torch.equal(second, wanted[name])
    assert (wanted[name] - read(model_of(CASES[name][0]))).abs().max() > 1e-3


def test_the_classes_are_those_of_the_file(place: Path, alone: Any) -> None:
    assert alone["ours"] == []
    assert alone["alibi"] == ["ConvertedLlamaForCausalLM", "ConvertedLlamaConfig", "llama"]
    assert alone["native"] == ["ConvertedBloomForCausalLM", "ConvertedBloomConfig", "bloom"]


@pytest.mark.parametrize("name", CASES)
def test_saving_there_writes_the_same_files(name: str, place: Path, alone: Any) -> None:
    again = place / "again" / name
    assert (again / MODULE).read_bytes() == (place / name / MODULE).read_bytes()
    first, second = (read_json(f / "config.json") for f in (place / name, again))
    for key in ("model_type", "architectures", "auto_map"):
        assert second[key] == first[key]
    assert second["ropepatch"] == first["ropepatch"]


@pytest.mark.parametrize("name", CASES)
def test_what_was_saved_there_loads_here(
    name: str, place: Path, wanted: dict[str, torch.Tensor], alone: Any
) -> None:
    model = ropepatch.load(place / "again" / name, dtype=torch.float32)
    assert torch.equal(read(model), wanted[name])
    ropepatch.verify(place / "again" / name)


# --- the file -----------------------------------------------------------------------------------


def imports_of(text: str) -> set[str]:
    """The first names of all modules that a file imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(str(node.module).split(".")[0])
    return found


@pytest.mark.usefixtures("wanted")
@pytest.mark.parametrize("name", CASES)
def test_the_file_imports_torch_transformers_and_python(name: str, place: Path) -> None:
    text = (place / name / MODULE).read_text(encoding="utf-8")
    compile(text, MODULE, "exec")
    named = imports_of(text)
    assert {"torch", "transformers"} <= named
    assert named - {"torch", "transformers"} <= sys.stdlib_module_names


@pytest.mark.usefixtures("wanted")
@pytest.mark.parametrize("name", CASES)
def test_auto_map_names_classes_of_the_file(name: str, place: Path) -> None:
    config = read_json(place / name / "config.json")
    tree = ast.parse((place / name / MODULE).read_text(encoding="utf-8"))
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for where in config["auto_map"].values():
        module, _, cls = where.partition(".")
        assert (module, cls in classes) == ("modeling_ropepatch", True)
    assert set(config["architectures"]) <= classes


def test_the_file_is_the_same_every_time(tmp_path: Path) -> None:
    """Whether a live model saves it or a folder is converted, here or in another process."""
    folder, _ = saved(tmp_path / "live", to="alibi")
    model_of("llama").save_pretrained(tmp_path / "plain")
    other = converted(tmp_path / "plain", to="alibi", layers=[0], verify=False)
    script = """
from ropepatch import convert_checkpoint
convert_checkpoint("plain", {"to": "alibi", "layers": [2]}, "third", verify=False)
"""
    apart(script, tmp_path, installed=True)
    texts = {(path / MODULE).read_bytes() for path in (folder, other, tmp_path / "third")}
    assert len(texts) == 1


def test_an_older_transformers_is_told_so(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "out", to="alibi")
    script = """
import transformers
transformers.__version__ = "4.57.6"
attempt("read", lambda: __import__("modeling_ropepatch"))
"""
    (tmp_path / MODULE).write_bytes((folder / MODULE).read_bytes())
    answer = apart(script, tmp_path)
    assert "needs transformers 5, not 4.57.6" in answer["read"]
