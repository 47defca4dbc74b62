"""What the tests of whole runs share."""

from pathlib import Path

import pytest

from tests.end_to_end.conftest import run

__all__ = ["run"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def retriever() -> Path:
    """The tiny model that finds what is hidden within its 256 tokens."""
    return ROOT / "recipes" / "models" / "tiny-retriever"


@pytest.fixture(scope="session")
def prose() -> Path:
    """The package's own text."""
    return ROOT / "ropepatch" / "evaluate" / "texts" / "prose.txt"
