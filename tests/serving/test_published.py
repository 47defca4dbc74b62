"""Published configs, as they are and extended by every method: said, or refused in a line."""

from pathlib import Path

import pytest

from ropepatch import Recipe, extend
from ropepatch.errors import RopepatchError
from ropepatch.exporting import export
from ropepatch.methods.table import METHODS
from ropepatch.serving.base import Export
from ropepatch.serving.table import ENGINES
from tests.families.outcomes import parameters
from tests.families.shapes import SHAPES
from tests.serving.folders import found, nearest, refusal

SCALED = {
    "llama-3.1-8b": ("llama3", 8192, 131072),
    "phi-3-mini-128k": ("longrope", 4096, 131072),
    "qwen2.5-7b-yarn": ("yarn", 32768, 131072),
    "deepseek-v3": ("yarn", 4096, 163840),
    "gemma-3-4b": ("pi", 32768, 131072),
    "olmo-3-7b": ("yarn", 8192, 65536),
    "llama-4-scout-instruct": ("llama3", 8192, 10485760),
    "gpt-oss-20b": ("yarn", 4096, 131072),
    "ministral-3-8b": ("yarn", 16384, 262144),
}
"""Method, trained length and promised length of what is published scaled."""


def answer(model: Path, target: str, *, original: bool = False) -> Export | str:
    try:
        return export(model, target, original=original)
    except RopepatchError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_every_engine_answers(tmp_path: Path, shape: str) -> None:
    source = found(tmp_path, SHAPES[shape])
    folders = [source]
    for method in METHODS:
        if method != "longrope":  # its lists depend on the head
            words = parameters(method, 0)
            try:
                recipe = Recipe.named(method, **words)
                extend(source, recipe, tmp_path / method, verify=False, replace=True)
            except RopepatchError:
                continue
            folders.append(tmp_path / method)
    for folder in folders:
        for target in ENGINES:
            done = answer(folder, target)
            if isinstance(done, str):
                assert len(done.splitlines()) == 1
                if "Nearest: ropepatch" in done and folder is not source:
                    for name in nearest(done):
                        assert export(tmp_path / name, target).row == name
            else:
                assert done.target_length >= done.trained_length
                assert (done.words.how == "override") >= (done.words.overrides is not None)
            answer(folder, target, original=True)


@pytest.mark.parametrize("shape", SCALED)
@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_what_is_published_scaled_keeps_its_promise(
    tmp_path: Path, target: str, shape: str
) -> None:
    folder = found(tmp_path, SHAPES[shape])
    if (target, shape) == ("sglang", "olmo-3-7b"):
        assert "takes no blocks by layer type" in refusal(folder, target)
        return
    done = export(folder, target)
    assert (done.row, done.trained_length, done.target_length) == SCALED[shape]


@pytest.mark.parametrize("target", ["vllm", "sglang", "lmdeploy", "tgi", "transformers4"])
def test_llama_3_2_promises_131072_tokens(tmp_path: Path, target: str) -> None:
    done = export(found(tmp_path, SHAPES["llama-3.2-1b"]), target)
    assert done.target_length == 131072


def test_vllm_takes_deepseek_as_it_is(tmp_path: Path) -> None:
    assert export(found(tmp_path, SHAPES["deepseek-v3"]), "vllm").words.overrides is None


def test_sglang_takes_ministral_as_it_is(tmp_path: Path) -> None:
    assert export(found(tmp_path, SHAPES["ministral-3-8b"]), "sglang").words.overrides is None
