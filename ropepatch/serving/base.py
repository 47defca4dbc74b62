"""What an engine can say, as data, and what is printed for it."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from ropepatch.errors import NotExpressibleError
from ropepatch.methods.table import METHODS
from ropepatch.serving.served import ServedModel

How = Literal["native", "override", "refused"]
"""Read from the checkpoint as it stands, said by flags or another file, or not at all."""

ROWS = (*METHODS, "nope", "alibi")
"""Methods and conversions, in the order of the tables."""


@dataclass(frozen=True)
class Support:
    """What one engine makes of one method, on a model of Llama's kind."""

    how: How
    why: str = ""
    """For an override what is said, for a refusal what the engine would do instead."""
    instead: tuple[str, ...] = ()
    """Methods that come nearest, best first, for a refusal."""


@dataclass(frozen=True)
class Engine:
    """One target of `export`."""

    name: str
    title: str
    checked: str
    """Which version was looked at, how, and from which on it holds."""
    methods: Mapping[str, Support]
    say: Callable[[ServedModel], "Words"]
    say_original: Callable[[ServedModel, str], "Words"] | None = None
    """The same for the model it was made from, by flags alone; None where there are none."""


@dataclass(frozen=True)
class Words:
    """What makes an engine serve a checkpoint as it is meant."""

    commands: tuple[tuple[str, ...], ...]
    """One after another; arguments, not yet quoted."""
    config: str | None = None
    """Content of a file that is needed, if one is."""
    config_name: str | None = None
    overrides: Mapping[str, Any] | None = None
    """What a flag lays over `config.json`."""
    notes: tuple[str, ...] = ()
    how: How = "native"

    @property
    def shell(self) -> str:
        """The commands, quoted for a shell, a line each."""
        return "\n".join(shlex.join(command) for command in self.commands)


@dataclass(frozen=True)
class Export:
    """What `export` found."""

    engine: Engine
    model: str
    row: str
    trained_length: int
    target_length: int
    words: Words


class CannotSayError(NotExpressibleError):
    """An engine cannot serve a checkpoint as it is meant; what comes nearest is not yet known."""

    def __init__(self, why: str, instead: tuple[str, ...], *, known: bool = True) -> None:
        """Keep the reason, methods to try first, and whether it is known to be so."""
        super().__init__(why)
        self.why, self.instead, self.known = why, instead, known


def refuse(why: str, *instead: str, known: bool = True) -> NoReturn:
    """Refuse, with methods that may come nearest.

    Args:
        why: What the engine does instead, or what is not known of it.
        *instead: Methods to try first.
        known: False where the engine may well serve it, and nobody has looked.

    Raises:
        CannotSayError: always.
    """
    raise CannotSayError(why, instead, known=known)
