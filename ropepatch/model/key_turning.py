"""Turning keys that lie in a cache from one set of frequencies to another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers.cache_utils import BaseQuantizedLayer, DynamicLayer, StaticLayer

from ropepatch.errors import CacheError
from ropepatch.model.turning import Turn

Turns = list[tuple[Turn, Turn]]
"""Old and new, one for all rows or one per row."""


@dataclass(frozen=True)
class KeyPlace:
    """How one model's cache keeps what was turned."""

    width: int
    """Turned features, twice the number of pairs."""
    slots: tuple[int, ...] | None
    """Indices of the cache's layers; None for all that keep keys."""
    interleaved: bool = False
    """Whether a pair's two features are neighbours; else they are half the width apart."""
    backwards: bool = False
    """Whether it turns the other way round."""
    latent: bool = False
    """MLA: the turned part is shared by all heads and kept in the place of the values."""
    indexer: Literal["first", "last", "still"] | None = None
    """Which features of an indexer's keys turn, where layers keep such."""
    norms: Mapping[int, torch.nn.Module] = field(default_factory=dict)
    """By slot, a norm that keys go through after they were turned."""


def turn_again(cache: Any, place: KeyPlace, positions: torch.Tensor, turns: Turns) -> None:
    """Turn the cached keys of one schedule from one regime to another.

    Args:
        cache: Of transformers.
        place: How it keeps what was turned.
        positions: Of all tokens seen, (.., rows, tokens).
        turns: Old and new.

    Raises:
        CacheError: a layer keeps its keys in a form that cannot be turned.
    """
    difference = _Difference(positions, turns)
    slots = range(len(cache.layers)) if place.slots is None else place.slots
    for slot in slots:
        layer: Any = cache.layers[slot] if slot < len(cache.layers) else None
        if getattr(layer, "keys", None) is None:
            continue
        refuse_unturnable(layer, place)
        if layer.keys.numel() == 0:
            continue
        name = "values" if place.latent and _is_latent(layer, place) else "keys"
        start = layer.keys.shape[-1] - place.width if place.latent and name == "keys" else 0
        _replace(layer, name, start, place, difference, place.norms.get(slot))
        if place.indexer in ("first", "last") and getattr(layer, "indexer_keys", None) is not None:
            wide = layer.indexer_keys.shape[-1]
            start = 0 if place.indexer == "first" else wide - place.width
            _replace(layer, "indexer_keys", start, place, difference, None)


def refuse_unturnable(layer: Any, place: KeyPlace) -> None:
    """Refuse a layer of a cache whose keys cannot be turned again.

    Raises:
        CacheError: it is quantized, or of a kind that is not known.
    """
    plain = isinstance(layer, DynamicLayer | StaticLayer)
    others = [
        name
        for name, value in vars(layer).items()
        if name.endswith("_keys") and torch.is_tensor(value) and value.numel()
    ]
    known = ["indexer_keys"] if place.indexer else []
    quantized = isinstance(layer, BaseQuantizedLayer) or not plain
    if quantized or not layer.keys.is_floating_point() or set(others) - set(known):
        raise CacheError(
            f"{type(layer).__name__} does not keep keys that can be turned again when the "
            "frequencies change; pin the length for this text: `with patch.pinned(LENGTH):`."
        )


def turn_keys(
    keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, start: int, *, interleaved: bool
) -> torch.Tensor:
    """Keys turned further.

    Args:
        keys: (batch, heads, tokens, features).
        cos: (batch or 1, tokens, pairs), of the angles to add.
        sin: The same of sine.
        start: First turned feature.
        interleaved: Whether a pair's two features are neighbours.
    """
    width = 2 * cos.shape[-1]
    before, part, after = keys.split([start, width, keys.shape[-1] - start - width], dim=-1)
    part = part if part.dtype == torch.float64 else part.float()
    cos, sin = cos[:, None], sin[:, None]
    first, second = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat((before, joined.to(keys.dtype), after), dim=-1)


class _Difference:
    """New minus old angle of every token, times new over old attention factor."""

    def __init__(self, positions: torch.Tensor, turns: Turns) -> None:
        self.positions = positions
        self.turns = turns
        self.made: dict[tuple[int, torch.device, bool], tuple[torch.Tensor, torch.Tensor]] = {}

    def of_last(
        self, count: int, device: torch.device, *, normed: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and sin for the last `count` tokens, (rows, count, pairs)."""
        key = (count, device, normed)
        if key not in self.made:
            positions = self.positions[..., self.positions.shape[-1] - count :].to(device)
            parts = [self._row(i, positions, normed=normed) for i in range(len(self.turns))]
            self.made[key] = (torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]))
        return self.made[key]

    def _row(
        self, row: int, positions: torch.Tensor, *, normed: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        old, new = self.turns[row]
        if len(self.turns) > 1:
            row = min(row, positions.shape[-2] - 1)
            positions = positions[..., row : row + 1, :]
        (was_cos, was_sin), (cos, sin) = old.by_pair(positions), new.by_pair(positions)
        size = was_cos.square() + was_sin.square()
        if normed:  # a norm has taken both factors out
            size = size * (new.attention_factor / old.attention_factor)
        return (cos * was_cos + sin * was_sin) / size, (sin * was_cos - cos * was_sin) / size


def _replace(
    layer: Any,
    name: str,
    start: int,
    place: KeyPlace,
    difference: _Difference,
    norm: torch.nn.Module | None,
) -> None:
    """Turn one tensor of a layer."""
    whole = getattr(layer, name)
    flat = whole.ndim == 3  # an indexer's, which has no heads
    keys = whole[:, None] if flat else whole
    slots = int(keys.shape[-2])
    total = int(difference.positions.shape[-1])
    static = isinstance(layer, StaticLayer)
    count = min(total, slots) if static else slots  # a window keeps the last tokens, in order
    cos, sin = difference.of_last(count, keys.device, normed=norm is not None)
    keys = keys[..., :count, :]
    weight = getattr(norm, "weight", None)
    scaled = keys if weight is None else keys / weight.to(keys.device)
    turn = turn_keys(
        scaled, cos, -sin if place.backwards else sin, start, interleaved=place.interleaved
    )
    turned = (turn if weight is None else turn * weight.to(keys.device)).to(keys.dtype)
    turned = turned[:, 0] if flat else turned
    if static:  # a compiled graph may hold on to this very tensor
        whole[..., :count, :].copy_(turned)
    else:
        setattr(layer, name, turned)


def _is_latent(layer: Any, place: KeyPlace) -> bool:
    return bool(layer.values.shape[1] == 1 and layer.values.shape[-1] == place.width)
