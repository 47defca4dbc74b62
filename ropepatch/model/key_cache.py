"""Whose the keys in a cache are, by which frequencies they lie there, and where they stand."""

from dataclasses import dataclass, field
from typing import Any

import torch

from ropepatch.errors import CacheError

_MARK = "_ropepatch"
_MOST_PARTS = 256


@dataclass
class KeyState:
    """What we know of a cache. It hangs on the cache, so that a copy of that has its own."""

    owner: str
    """Which patch has filled it."""
    regimes: tuple[int, ...] = ()
    """In force for its keys, by row; one for all rows where they agree."""
    positions: list[torch.Tensor] = field(default_factory=list)
    """Of its tokens in order, each (.., rows, tokens)."""

    total: int = 0
    """Tokens seen."""

    def add(self, positions: torch.Tensor) -> None:
        """Note the tokens that have just been read."""
        self.positions.append(positions)
        self.total += int(positions.shape[-1])
        if len(self.positions) > _MOST_PARTS:  # so that no step costs more than the first
            self.all_positions()

    def crop(self, length: int) -> None:
        """Forget tokens that the cache has dropped, as assisted generation does."""
        if self.total > length:
            self.positions = [self.all_positions()[..., :length]] if length else []
            self.total = length

    def all_positions(self) -> torch.Tensor:
        """(.., rows, tokens)."""
        if len(self.positions) > 1:
            rows = max(part.shape[-2] for part in self.positions)
            wide = [p.expand(*p.shape[:-2], rows, p.shape[-1]) for p in self.positions]
            self.positions = [torch.cat(wide, dim=-1)]
        return self.positions[0]

    def take_rows(self, rows: torch.Tensor) -> None:
        """Follow the cache where its rows are chosen, repeated or put in another order.

        Args:
            rows: Of each new row, the old one, (rows,).
        """
        if (self.positions and self.positions[0].shape[-2] > 1) or len(self.positions) > 1:
            whole = self.all_positions()
            if whole.shape[-2] > 1:
                self.positions = [whole.index_select(-2, rows.to(whole.device))]
        if len(self.regimes) > 1:
            self.regimes = tuple(self.regimes[i] for i in rows.tolist())


class _Following:
    """What a cache does to its rows, done to its state as well.

    Mixed into the class of a cache that a patch fills whose frequencies follow the length.
    """

    _plain: type

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """As the cache's own."""
        super().reorder_cache(beam_idx)  # type: ignore[misc]
        _rows(self, beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """As the cache's own."""
        super().batch_select_indices(indices)  # type: ignore[misc]
        _rows(self, indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """As the cache's own."""
        super().batch_repeat_interleave(repeats)  # type: ignore[misc]
        state = state_of(self)
        if state is not None and state.positions:
            rows = max(state.all_positions().shape[-2], len(state.regimes))
            state.take_rows(torch.arange(rows).repeat_interleave(repeats))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """By the plain class, since this one has no name to be found by."""
        return _rebuilt, (self._plain,), self.__dict__


def _rows(cache: Any, chosen: Any) -> None:
    state = state_of(cache)
    if state is not None:
        rows = torch.as_tensor(chosen)
        state.take_rows(rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows)


_CLASSES: dict[type, type] = {}


def _following(plain: type) -> type:
    """The class with what follows mixed in; made once."""
    if plain not in _CLASSES:
        _CLASSES[plain] = type(plain.__name__, (_Following, plain), {"_plain": plain})
    return _CLASSES[plain]


def _rebuilt(plain: type) -> Any:
    return object.__new__(_following(plain))


def state_of(cache: Any) -> KeyState | None:
    """What hangs on a cache, if anything."""
    state = getattr(cache, _MARK, None)
    return state if isinstance(state, KeyState) else None


def own(cache: Any, owner: str, *, following: bool) -> KeyState:
    """The state of a cache that this patch may fill.

    Args:
        cache: Of transformers.
        owner: Names the patch.
        following: Whether the frequencies follow the length, so that rows have to be kept.

    Raises:
        CacheError: it holds keys from before the patch, or of another one.
    """
    state = state_of(cache)
    if state is not None and state.owner == owner:
        return state
    if int(cache.get_seq_length()) > 0:
        raise CacheError(
            "this cache was filled before the patch or conversion was applied, or under another "
            "one, so its keys are turned otherwise; start with an empty cache."
        )
    state = KeyState(owner)
    attach(cache, state, following=following)
    return state


def attach(cache: Any, state: KeyState, *, following: bool) -> None:
    """Hang a state on a cache; on one that the model has made itself, after it was filled."""
    setattr(cache, _MARK, state)
    if following and not isinstance(cache, _Following):
        cache.__class__ = _following(type(cache))
