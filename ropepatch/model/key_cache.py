"""Keys that lie rotated in a cache: whose they are, where they stand, and turning them again."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import BaseQuantizedLayer, DynamicLayer, StaticLayer

from ropepatch.errors import CacheError
from ropepatch.model.turning import Turn

_MARK = "_ropepatch"


@dataclass(frozen=True)
class KeyPlace:
    """Where in a cached key the turned features lie."""

    start: int
    """First turned feature; negative counts from the end."""
    interleaved: bool
    """Whether a pair's two features are neighbours; else they are half the width apart."""


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


def turn_again(
    cache: Any,
    layers: tuple[int, ...],
    place: KeyPlace,
    positions: torch.Tensor,
    turns: list[tuple[Turn, Turn]],
) -> None:
    """Turn the cached keys of some layers from one regime to another.

    Args:
        cache: Of transformers.
        layers: Their indices; those that keep no keys of their own are passed over.
        place: Where the turned features lie.
        positions: Of all tokens seen, (.., rows, tokens).
        turns: Old and new, one for all rows or one per row.

    Raises:
        CacheError: a layer keeps its keys in a form that cannot be turned.
    """
    ready: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}
    for index in layers:
        layer: Any = cache.layers[index] if index < len(cache.layers) else None
        keys = getattr(layer, "keys", None)
        if keys is None or keys.numel() == 0:
            continue
        refuse_unturnable(layer)
        count = _filled(layer, positions.shape[-1])
        key = (count, keys.device)
        if key not in ready:
            ready[key] = _difference(positions[..., -count:].to(keys.device), turns)
        turned = turn_keys(keys[..., :count, :], *ready[key], place)
        if isinstance(layer, StaticLayer):  # a compiled graph may hold on to this very tensor
            keys[..., :count, :].copy_(turned)
        else:
            layer.keys = turned


def refuse_unturnable(layer: Any) -> None:
    """Refuse a layer of a cache whose keys cannot be turned again.

    Raises:
        CacheError: it is quantized, or of a kind that is not known.
    """
    plain = isinstance(layer, DynamicLayer | StaticLayer)
    if isinstance(layer, BaseQuantizedLayer) or not plain or not layer.keys.is_floating_point():
        raise CacheError(
            f"{type(layer).__name__} does not keep keys that can be turned again when the "
            "frequencies change; pin the length for this text: `with patch.pinned(LENGTH):`."
        )


def turn_keys(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, place: KeyPlace
) -> torch.Tensor:
    """Keys turned further.

    Args:
        keys: (batch, heads, tokens, features).
        cos: (batch or 1, tokens, pairs), float32, of the angles to add.
        sin: The same of sine.
        place: Where in the features the pairs lie.
    """
    width = 2 * cos.shape[-1]
    start = place.start % keys.shape[-1]
    before, part, after = keys.split([start, width, keys.shape[-1] - start - width], dim=-1)
    part = part if part.dtype == torch.float64 else part.float()
    cos, sin = cos[:, None], sin[:, None]
    if place.interleaved:
        first, second = part[..., ::2], part[..., 1::2]
    else:
        first, second = part.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.stack(turned, -1).flatten(-2) if place.interleaved else torch.cat(turned, -1)
    return torch.cat((before, joined.to(keys.dtype), after), dim=-1)


def _difference(
    positions: torch.Tensor, turns: list[tuple[Turn, Turn]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cos and sin of new minus old angle, times new over old attention factor."""
    parts = []
    for row, (old, new) in enumerate(turns):
        of_row = positions if len(turns) == 1 else positions[..., _row(row, positions), :]
        (was_cos, was_sin), (cos, sin) = old.by_pair(of_row), new.by_pair(of_row)
        size = was_cos.square() + was_sin.square()
        parts.append(
            ((cos * was_cos + sin * was_sin) / size, (sin * was_cos - cos * was_sin) / size)
        )
    if len(parts) == 1:
        return parts[0]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _row(row: int, positions: torch.Tensor) -> list[int]:
    return [min(row, positions.shape[-2] - 1)]


def _filled(layer: Any, total: int) -> int:
    """How many of its slots hold keys: the last so many tokens, in order."""
    slots = int(layer.keys.shape[-2])
    return min(total, slots) if isinstance(layer, StaticLayer) else slots
