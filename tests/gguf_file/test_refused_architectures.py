"""Architectures that metadata cannot extend, each refused by its name and the reason."""

from pathlib import Path

import pytest

from ropepatch.errors import CheckpointError, ConfigError, NotExpressibleError
from ropepatch.gguf_extending import extend_gguf, inspect_gguf
from ropepatch.gguf_file.architectures import ARCHITECTURES
from tests.gguf_file.made import LONGROPE, NTK, YARN, make_model, one_line
from tests.gguf_file.test_architectures import refused


@pytest.mark.parametrize(
    ("arch", "said"),
    [
        ("deepseek2", "scales the softmax of latent attention"),
        ("mistral4", "scales the softmax of latent attention"),
        ("cohere2", "turns only the layers that have a window"),
        ("llama4", "turns only the layers that have a window"),
        ("grok", "rotary metadata of 'grok' is not known here"),
        ("hunyuan-dense", "rotary metadata of 'hunyuan-dense' is not known here"),
        (
            "brand-new",
            "rotary metadata of 'brand-new' is not known here; extend the model's safeten",
        ),
    ],
)
def test_refused_architectures(arch: str, said: str, tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", arch)
    for words in (YARN, NTK, LONGROPE):
        refused(source, words, said)
    assert inspect_gguf(source).refused is not None


@pytest.mark.parametrize("arch", ["bloom", "mamba", "t5"])
def test_models_that_do_not_turn(arch: str, tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", arch)
    refused(source, YARN, rf"does not turn by RoPE \('{arch}'\)")
    with pytest.raises(ConfigError, match=f"a '{arch}' does not turn by RoPE"):
        inspect_gguf(source)


@pytest.mark.parametrize("arch", ["mamba", "mamba2", "rwkv7"])
def test_models_without_heads(arch: str, tmp_path: Path) -> None:
    """Their files have a count of 0, as llama.cpp's converter writes it."""
    keys = {"attention.head_count": 0}
    without = ("rope.dimension_count", "rope.freq_base")
    source = make_model(tmp_path / "x.gguf", arch, keys=keys, without=without)
    refused(source, YARN, "does not turn by RoPE")


def test_the_table_is_sound() -> None:
    for name, row in ARCHITECTURES.items():
        assert name == name.lower()
        assert row.refused is None or (row.factors, row.windowed, row.betas) == (
            None,
            "same",
            False,
        )


@pytest.mark.parametrize("arch", [a for a, row in ARCHITECTURES.items() if row.refused is None])
def test_every_architecture_takes_yarn(arch: str, tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", arch)
    for method in ("yarn", "pi", "ntk"):
        extend_gguf(source, {"method": method, "factor": 4}, dry_run=True)
    for method in ("dynamic-ntk", "dynamic-yarn"):
        line = refused(source, {"method": method, "factor": 4}, "follows the length of the input")
        for named in ("yarn", "ntk"):
            assert f"--method {named}" in line


def test_an_architecture_of_two_lines(tmp_path: Path) -> None:
    source = make_model(tmp_path / "x.gguf", "two\nlines\x1b[31m")
    with pytest.raises((NotExpressibleError, CheckpointError)) as caught:
        extend_gguf(source, YARN)
    assert one_line(caught.value).isprintable()
