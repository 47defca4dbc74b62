"""Whose the keys in a cache are, by which frequencies they lie there, and where they stand."""

from dataclasses import dataclass, field
from typing import Any

import torch

from ropepatch.errors import CacheError

_MARK = "_ropepatch"


@dataclass
class KeyState:
    """What we know of a cache. It hangs on the cache, so that a copy of that has its own."""

    owner: str
    """Which patch has filled it."""
    regimes: tuple[int, ...] = ()
    """In force for its keys, by row; one for all rows where they agree."""
    positions: list[torch.Tensor] = field(default_factory=list)
    """Of its tokens in order, each (.., rows, tokens)."""

    @property
    def total(self) -> int:
        """Tokens seen."""
        return sum(part.shape[-1] for part in self.positions)

    def crop(self, length: int) -> None:
        """Forget tokens that the cache has dropped, as assisted generation does."""
        if self.total > length:
            self.positions = [self.all_positions()[..., :length]] if length else []

    def all_positions(self) -> torch.Tensor:
        """(.., rows, tokens)."""
        if len(self.positions) > 1:
            rows = max(part.shape[-2] for part in self.positions)
            wide = [p.expand(*p.shape[:-2], rows, p.shape[-1]) for p in self.positions]
            self.positions = [torch.cat(wide, dim=-1)]
        return self.positions[0]


def state_of(cache: Any) -> KeyState | None:
    """What hangs on a cache, if anything."""
    state = getattr(cache, _MARK, None)
    return state if isinstance(state, KeyState) else None


def own(cache: Any, owner: str) -> KeyState:
    """The state of a cache that this patch may fill.

    Raises:
        CacheError: it holds keys from before the patch, or of another one.
    """
    state = state_of(cache)
    if state is not None and state.owner == owner:
        return state
    if int(cache.get_seq_length()) > 0:
        raise CacheError(
            "this cache was filled before the patch was applied, or under another one, so its "
            "keys are turned otherwise; start with an empty cache."
        )
    state = KeyState(owner)
    setattr(cache, _MARK, state)
    return state


def attach(cache: Any, state: KeyState) -> None:
    """Hang a state on a cache that the model made itself."""
    setattr(cache, _MARK, state)
