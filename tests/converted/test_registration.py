"""`import ropepatch` in any order, and what else is done with a converted model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ropepatch
from tests.converted.apart import apart
from tests.converted.folders import IDS, converted, read, saved
from tests.tiny import make_llama

LOAD = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("out")
with torch.no_grad():
    torch.save(model(input_ids=torch.load("ids.pt"), use_cache=False).logits, "found.pt")
answer["class"] = f"{type(model).__module__}.{type(model).__name__}"
answer["waiting"] = [type(f).__name__ for f in sys.meta_path if "ropepatch" in type(f).__module__]
"""
ORDERS = {
    "before": "import sys, ropepatch",
    "after": "import sys, transformers, ropepatch",
    "after the auto classes": "import sys\nfrom transformers import AutoConfig\nimport ropepatch",
}
RARE = {
    "twice": """
import sys, importlib, ropepatch
importlib.reload(ropepatch)
import transformers
importlib.reload(ropepatch)
""",
    "a part alone": "import sys, ropepatch.recipe",
}


@pytest.mark.parametrize(
    "order",
    [
        *(pytest.param(order, id=name) for name, order in ORDERS.items()),
        *(pytest.param(order, id=name, marks=pytest.mark.slow) for name, order in RARE.items()),
    ],
)
def test_the_auto_classes_know_it(order: str, tmp_path: Path) -> None:
    _, wanted = saved(tmp_path / "out", to="alibi", layers=[0, 1])
    torch.save(IDS, tmp_path / "ids.pt")
    answer = apart(order + LOAD, tmp_path, installed=True)
    assert answer["class"] == "ropepatch.runtime.made.ConvertedLlamaForCausalLM"
    assert answer["waiting"] == []
    assert torch.equal(torch.load(tmp_path / "found.pt"), wanted)


def test_our_classes_come_before_the_file(tmp_path: Path) -> None:
    """With ropepatch, also `trust_remote_code=True` reads the same numbers."""
    _, wanted = saved(tmp_path / "out", to="alibi")
    torch.save(IDS, tmp_path / "ids.pt")
    script = "import sys, ropepatch" + LOAD.replace('"out"', '"out", trust_remote_code=True')
    apart(script, tmp_path, installed=True)
    assert torch.equal(torch.load(tmp_path / "found.pt"), wanted)


def test_importing_it_alone_loads_nothing_heavy(tmp_path: Path) -> None:
    script = """
import sys, ropepatch
answer = sorted({"torch", "transformers", "numpy", "safetensors"} & set(sys.modules))
"""
    assert apart(script, tmp_path, installed=True) == []


@pytest.mark.slow
def test_transformers_is_what_it_was(tmp_path: Path) -> None:
    """The step after its import leaves no trace in the module."""
    script = """
import sys, importlib, pickle
{order}
import transformers.models.auto.configuration_auto as auto
spec = auto.__spec__
answer = [
    type(spec.loader).__name__,
    type(auto.__loader__).__name__,
    spec.name,
    "llama" in auto.CONFIG_MAPPING,
    importlib.reload(auto).__name__,
    importlib.util.find_spec(spec.name).name,
]
"""
    plain = apart(script.format(order=""), tmp_path / "plain")
    ours = apart(script.format(order="import ropepatch"), tmp_path / "ours", installed=True)
    assert ours == plain


USES = """
import copy, pickle, sys
import torch
{order}
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, pipeline

ids = torch.load("ids.pt")

def read(model):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits

config = AutoConfig.from_pretrained("out", {trust})
words = config.to_dict()
for name, other in (
    ("copied", copy.copy(config)),
    ("deeply", copy.deepcopy(config)),
    ("pickled", pickle.loads(pickle.dumps(config))),
    ("by class", type(config).from_dict(words)),
):
    answer[name] = [type(other) is type(config), other.to_dict() == words]
pickle.dump(config, open("config.pkl", "wb"))
config.save_pretrained("config")
answer["saved"] = [open("config/config.json").read() == other.to_json_string(use_diff=True)]
model = AutoModelForCausalLM.from_pretrained("out", {trust})
logits = read(model)
answer["deep model"] = [torch.equal(read(copy.deepcopy(model)), logits)]
made = AutoModelForCausalLM.from_config(config, {trust})
made.load_state_dict(model.state_dict())
answer["from config"] = [torch.equal(read(made.eval()), logits)]
torch.save(model, "model.pt")
torch.save(logits, "logits.pt")
tokenizer = AutoTokenizer.from_pretrained("out", {trust})
answer["tokens"] = tokenizer("some words").input_ids
writer = pipeline("text-generation", model="out", {trust})
answer["written"] = writer("some words", max_new_tokens=8, do_sample=False)[0]["generated_text"]
given = tokenizer("some words", return_tensors="pt")
made = model.generate(**given, max_new_tokens=8, do_sample=False)
answer["generated"] = tokenizer.decode(made[0], skip_special_tokens=True)
"""
WAYS = {
    "with ropepatch": ("import ropepatch", "", True),
    "by the file": ("", "trust_remote_code=True", False),
}


@pytest.fixture(scope="module", params=WAYS)
def used(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A converted checkpoint with a tokenizer, and what came of using it."""
    place = tmp_path_factory.mktemp("used")
    converted(make_llama(place / "plain"), to="alibi", layers=[1])
    torch.save(IDS, place / "ids.pt")
    order, trust, installed = WAYS[request.param]
    answer = apart(USES.format(order=order, trust=trust), place, installed=installed)
    return place, answer, installed


@pytest.mark.parametrize(
    "name", ["copied", "deeply", "pickled", "by class", "saved", "deep model", "from config"]
)
def test_copies(name: str, used: Any) -> None:
    assert all(used[1][name])


def test_tokenizer_and_pipeline(used: Any) -> None:
    _, answer, _ = used
    assert len(answer["tokens"]) == len("some words")
    assert answer["written"].startswith("some words")
    assert len(answer["written"]) > len("some words")
    assert answer["generated"].replace(" ", "") == answer["written"].replace(" ", "")


def test_a_pickled_model_in_a_fresh_process(used: Any) -> None:
    place, answer, installed = used
    if installed:  # else the file in the cache of transformers has to be importable first
        script = """
import ropepatch, torch
model = torch.load("model.pt", weights_only=False)
with torch.no_grad():
    found = model(input_ids=torch.load("ids.pt"), use_cache=False).logits
answer = [torch.equal(found, torch.load("logits.pt")), ropepatch.verify(model) is not None]
"""
        assert apart(script, place, installed=True) == [True, True]
    assert answer["deep model"] == [True]


def test_a_pickled_config_in_a_fresh_process(used: Any) -> None:
    place, answer, installed = used
    if installed:
        script = """
import pickle, ropepatch
config = pickle.load(open("config.pkl", "rb"))
answer = [type(config).__name__, config.ropepatch["layers"]]
"""
        found = apart(script, place, installed=True)
        assert found == ["ConvertedLlamaConfig", {"alibi": [1], "nope": []}]
    assert answer["pickled"] == [True, True]


def test_the_logits_are_those_of_here(used: Any) -> None:
    place, _, _ = used
    model = ropepatch.load(place / "out", dtype=torch.float32)
    assert torch.equal(torch.load(place / "logits.pt"), read(model))
    assert (
        json.loads((place / "config" / "config.json").read_text(encoding="utf-8"))["model_type"]
        == "ropepatch_converted"
    )
