"""What all tests share: tiny checkpoints, made once, and the GPU tests left out without a GPU."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiny


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return  # and torch need not be imported
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real tiny Llama with tokenizer and generation config; shared, so not to be changed."""
    return tiny.make_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def sharded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights in several files with an index; shared, so not to be changed."""
    folder = tmp_path_factory.mktemp("models") / "tiny-sharded"
    return tiny.make_llama(folder, max_shard_size="60KB")


@pytest.fixture(scope="session")
def pickled_folder(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as an old .bin file alone; shared, so not to be changed."""
    import torch
    from safetensors.torch import load_file

    folder = tmp_path_factory.mktemp("models") / "tiny-pickled"
    shutil.copytree(llama_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = load_file(llama_folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with a config and weights of zeros, for what only handles files."""
    return tiny.bare_checkpoint(tmp_path / "model")


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder with a model in it, which only root may enter."""
    folder = tmp_path / "locked"
    tiny.bare_checkpoint(folder / "model")
    folder.chmod(0)
    yield folder
    folder.chmod(0o700)


@pytest.fixture
def powerless(locked: Path) -> Iterator[None]:
    """Lay down root's rights for one test, where they would open every folder."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)
