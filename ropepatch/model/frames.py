"""One forward of a text model while it runs, and small helpers on positions and regimes."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from ropepatch.errors import CacheError, RecipeError
from ropepatch.methods.base import LONGEST_LENGTH
from ropepatch.model.key_cache import KeyState


@dataclass
class Frame:
    """One forward of the text model, while it runs."""

    follower: object
    """Whose."""
    regimes: tuple[int, ...]
    state: KeyState
    positions: torch.Tensor
    earlier: list[Any] = field(default_factory=list)
    """Outputs of the pieces that were read before the last one."""
    borrowed: bool = False
    """Whether a cache was needed for the pieces alone."""


FRAMES: ContextVar[tuple[Frame, ...]] = ContextVar("ropepatch_frames", default=())
PINS: ContextVar[tuple[tuple[object, int], ...]] = ContextVar("ropepatch_pins", default=())
"""Of this thread, or task, alone."""


def checked_length(length: Any) -> int:
    """A length to pin.

    Raises:
        RecipeError: not a positive whole number of tokens.
    """
    if isinstance(length, bool) or not isinstance(length, int) or not 0 < length <= LONGEST_LENGTH:
        raise RecipeError(
            f"a length to pin is a whole number of tokens from 1 to {LONGEST_LENGTH}, "
            f"not {length!r}."
        )
    return length


def push(frame: Frame) -> None:
    """Enter a forward; one of the same model that was interrupted is forgotten."""
    others = (one for one in FRAMES.get() if one.follower is not frame.follower)
    FRAMES.set((*others, frame))


def positions_of(given: Mapping[str, Any], seen: int) -> torch.Tensor | None:
    """As the model will number its tokens, (.., rows, tokens)."""
    positions = given.get("position_ids")
    if torch.is_tensor(positions):
        return positions if positions.ndim > 1 else positions[None]
    text = given.get("input_ids")
    text = given.get("inputs_embeds") if text is None else text
    if not torch.is_tensor(text):
        return None
    return torch.arange(seen, seen + text.shape[1], device=text.device)[None]


def flat(positions: torch.Tensor) -> torch.Tensor:
    """The farthest of several axes, (rows, tokens)."""
    return positions.flatten(0, -3).amax(0) if positions.ndim > 2 else positions


def narrow(regimes: tuple[int, ...]) -> tuple[int, ...]:
    """One for all rows, where they agree."""
    return regimes[:1] if len(set(regimes)) == 1 else regimes


def wide(regimes: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """One for each row.

    Raises:
        CacheError: there are rows of different lengths, and not as many.
    """
    if len(regimes) not in (1, rows):
        raise CacheError(
            f"the cache holds {len(regimes)} rows of different lengths, the input {rows}; the "
            "rows of such a cache cannot be chosen or repeated."
        )
    return regimes * rows if len(regimes) == 1 else regimes
