"""How a run is done, apart from what is asked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ropepatch.measuring.subject import Say

if TYPE_CHECKING:
    from ropepatch.evaluate.needle import Progress


@dataclass(frozen=True)
class Settings:
    """How a run is done; none of it changes a result."""

    reuse: bool = True
    """Whether what prompts have in common is read once."""
    chunk: int | None = None
    """Tokens per forward; None for as many as memory suggests."""
    short: int | None = None
    """Tokens up to which prompts are read side by side; None for the default."""
    command: str = ""
    """As the user typed it, for the record."""
    label: str | None = None
    """What reports call it; None for the model's name."""
    say: Say = lambda text: None
    report: Callable[["Progress"], None] = lambda progress: None
