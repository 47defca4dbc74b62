"""The program in this process, as the end-to-end tests call it."""

from tests.end_to_end.conftest import run

__all__ = ["run"]
