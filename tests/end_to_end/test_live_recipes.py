"""The scripts of recipes/live on a tiny model: what they print is what the patched model says."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import ropepatch
from tests.tiny import TRAINED

ROOT = Path(__file__).resolve().parents[2]
TEXT = "The tide that carried the boats out at dawn had long turned when the bell rang. " * 4
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
DYNAMIC = ropepatch.Recipe.named("dynamic-ntk", factor=4)
YARN = ropepatch.Recipe.named("yarn", factor=4)
EXACT = ropepatch.Recipe.named("yarn", factor=4, short_exact=True)

pytestmark = pytest.mark.slow  # each script imports torch and transformers anew


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip without packages that ropepatch itself does not need."""
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def run(script: str, *arguments: str | Path, typed: str = "") -> str:
    """What a script prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "recipes" / "live" / script), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        input=typed,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def chat_folder(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a chat template."""
    folder = tmp_path_factory.mktemp("models") / "tiny-chat"
    shutil.copytree(llama_folder, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """A text longer than the model was trained on."""
    assert len(TEXT) > TRAINED
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


class Tiny:
    """The tiny model in this process."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = ropepatch.load(folder)

    def says(self, text: str, recipe: ropepatch.Recipe | None, count: int) -> str:
        """How it goes on, greedily, having read the text at once."""
        given = self.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
        words = {"attention_mask": torch.ones_like(given), "max_new_tokens": count}
        if recipe is None:
            out = self.model.generate(given, **words)
        else:
            with ropepatch.patch(self.model, recipe):
                out = self.model.generate(given, **words)
        return str(self.tokenizer.decode(out[0, given.shape[1] :], skip_special_tokens=True))

    def nats(self, text: str) -> float:
        """Sum over a text's tokens, the first after what the harness puts before it."""
        ids = [self.tokenizer.bos_token_id, *self.tokenizer(text, verbose=False)["input_ids"]]
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids])).logits[0, :-1]
        return torch.nn.functional.cross_entropy(
            logits, torch.tensor(ids[1:]), reduction="sum"
        ).item()


def squeezed(text: str) -> str:
    """Without blanks, of which a streamer puts others than a decoder."""
    return "".join(text.split())


def test_stream(llama_folder: Path, text_file: Path) -> None:
    said = run(
        "stream.py", llama_folder, text_file, "--method", "dynamic-ntk", "--new-tokens", "24"
    )
    description, _, words = said.partition(f"{len(TEXT) - TRAINED} beyond\n")
    assert description.startswith("dynamic-ntk on LlamaForCausalLM")
    tiny = Tiny(llama_folder)
    assert squeezed(words) == squeezed(tiny.says(TEXT, DYNAMIC, 24))
    assert squeezed(words) != squeezed(tiny.says(TEXT, None, 24))


def test_pipeline(llama_folder: Path) -> None:
    prompts = [TEXT[:300], TEXT[3:60]]
    said = run("pipe.py", llama_folder, *prompts, "--new-tokens", "12")
    tiny = Tiny(llama_folder)
    for prompt in prompts:
        assert f"{prompt} [{tiny.says(prompt, EXACT, 12).strip()}]" in said


def turns(*said: str) -> str:
    """A conversation as the template writes it."""
    names = ("u", "a") * len(said)
    lines = (f"{name}:{words}\n" for name, words in zip(names, said, strict=False))
    return "".join(lines) + "a:"


@pytest.mark.parametrize("way", ["asked", "typed"])
def test_chat(chat_folder: Path, text_file: Path, way: str) -> None:
    questions = ["Which bell?", "Where was it?"]
    asks = (
        [] if way == "typed" else [word for question in questions for word in ("--ask", question)]
    )
    options = ("--chunk", "100", "--new-tokens", "20")
    typed = "\n".join(questions) if way == "typed" else ""
    said = run("chat.py", chat_folder, text_file, *options, *asks, typed=typed)
    read = re.findall(r"read (\d+) of (\d+) tokens", said)
    assert [int(done) for done, _ in read] == [100, 200, 300, int(read[-1][1])]
    assert int(read[-1][1]) > len(TEXT)
    tiny = Tiny(chat_folder)
    exact = ropepatch.Recipe.named("dynamic-ntk", factor=4, short_exact=True)
    first = tiny.says(turns(f"{TEXT}\n\n{questions[0]}"), exact, 20)
    second = tiny.says(turns(f"{TEXT}\n\n{questions[0]}", first, questions[1]), exact, 20)
    want = f"? {questions[0]} {first} ? {questions[1]} {second}"
    assert squeezed(said.split("tokens\n")[-1]) == squeezed(want)


@needs("peft")
def test_adapter(llama_folder: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    said = run("adapter.py", llama_folder, adapter, "--steps", "4", "--rate", "0.01")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert (adapter / "adapter_model.safetensors").is_file()
    again, without = (float(n) for n in re.findall(r": ([\d.e+-]+)$", said, re.MULTILINE)[-2:])
    assert again == 0
    assert without > 0.1


@needs("lm_eval")
def test_harness(llama_folder: Path, tmp_path: Path) -> None:
    texts = [TEXT, TEXT[5:150]]
    data = tmp_path / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    said = run("lm_eval_run.py", llama_folder, "--data", data)
    row = re.search(r"bits_per_byte +(\S+) +(\S+)$", said, re.MULTILINE)
    assert row, said
    tiny = Tiny(llama_folder)
    size = sum(map(len, texts)) * math.log(2)
    plain = sum(map(tiny.nats, texts)) / size
    with ropepatch.patch(tiny.model, YARN):
        patched = sum(map(tiny.nats, texts)) / size
    assert float(row[1]) == pytest.approx(plain, rel=1e-4)
    assert float(row[2]) == pytest.approx(patched, rel=1e-4)
    assert row[1] != row[2]


@pytest.fixture(params=["chat", "plain"])
def served(request: pytest.FixtureRequest, chat_folder: Path, llama_folder: Path) -> Path:
    """With a chat template and without."""
    return chat_folder if request.param == "chat" else llama_folder


@needs("fastapi", "uvicorn", "openai")
def test_serving(served: Path) -> None:
    said = run("serve.py", served, "--once", TEXT, "--port", "0")
    _, _, answer = said.partition("/v1\n")
    prompt = turns(TEXT) if "chat" in served.name else TEXT
    tiny = Tiny(served)
    assert squeezed(answer) == squeezed(tiny.says(prompt, EXACT, 100))
    assert squeezed(answer) != squeezed(tiny.says(prompt, None, 100))
