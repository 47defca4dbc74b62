"""Reading one input of a text model in pieces, with a cache, and joining what comes out."""

import inspect
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from transformers.cache_utils import Cache

from ropepatch.errors import CacheError


@dataclass(frozen=True)
class Piece:
    """A run of tokens of one input."""

    start: int
    stop: int
    regimes: tuple[int, ...]
    """By row; one for all rows where they agree."""


@cache
def parameters_of(model_class: Hashable) -> tuple[str, ...]:
    """Names of what a model's forward takes, in order, without `self`."""
    forward: Any = getattr(model_class, "forward")  # noqa: B009
    return tuple(inspect.signature(forward).parameters)[1:]


def piece_of(given: Mapping[str, Any], piece: Piece, total: int, seen: int) -> dict[str, Any]:
    """The arguments for one piece of an input of `total` tokens after `seen` cached ones.

    Raises:
        CacheError: an argument speaks of tokens in a way that is not known.
    """
    words = {}
    for name, value in given.items():
        if name == "attention_mask":
            words[name] = _mask(value, piece, total, seen)
        elif torch.is_tensor(value):
            words[name] = _tensor(name, value, piece, total)
        elif isinstance(value, list | tuple) and any(torch.is_tensor(v) for v in value):
            raise _unknown(name)
        else:
            words[name] = value
    return words


def _tensor(name: str, value: torch.Tensor, piece: Piece, total: int) -> torch.Tensor:
    span = slice(piece.start, piece.stop)
    if name in ("position_ids", "cache_position") and value.shape[-1] == total:
        return value[..., span]
    if value.ndim >= 2 and value.shape[1] == total:
        return value[:, span]
    if value.ndim == 0:
        return value
    raise _unknown(name)


def _mask(value: Any, piece: Piece, total: int, seen: int) -> Any:
    """A mask of tokens, (batch, seen + total), or of attention, (batch, heads, query, key)."""
    if isinstance(value, Mapping):
        return {kind: _mask(mask, piece, total, seen) for kind, mask in value.items()}
    if value is None:
        return None
    if torch.is_tensor(value) and value.ndim == 2:
        return value[:, : value.shape[1] - total + piece.stop]
    if torch.is_tensor(value) and value.ndim == 4 and value.shape[2] == total:
        keys = value.shape[3]
        if keys == seen + total:  # else a static cache, whose slots are all there already
            keys = seen + piece.stop
        return value[:, :, piece.start : piece.stop, :keys]
    raise _unknown("attention_mask")


def _unknown(name: str) -> CacheError:
    return CacheError(
        f"the input crosses a change of the frequencies and comes with {name}, which cannot be "
        "cut into pieces; pin the length: `with patch.pinned(LENGTH):`."
    )


def cache_of_output(output: Any) -> Any:
    """The cache that a model gives back, or None."""
    name = "cache" if hasattr(output, "cache") else "past_key_values"  # the old name warns
    found = getattr(output, name, None)
    if isinstance(found, Cache):
        return found
    parts = output if isinstance(output, tuple) else ()
    return next((part for part in parts if isinstance(part, Cache)), None)


def join(earlier: list[Any], last: Any, *, drop_cache: bool) -> Any:
    """The last output, with what the earlier pieces gave put before it.

    Raises:
        CacheError: it holds something that cannot be joined (attention weights, say).
    """
    if isinstance(last, tuple):  # return_dict=False: hidden states first
        hidden = torch.cat([*(one[0] for one in earlier), last[0]], dim=1)
        rest = [part for part in last[1:] if not (drop_cache and isinstance(part, Cache))]
        if any(not isinstance(part, Cache) for part in rest):
            raise unjoinable("what follows the hidden states of a tuple")
        return (hidden, *rest)
    for name, value in list(last.items()):
        if isinstance(value, Cache):
            if drop_cache:
                last[name] = None
        elif torch.is_tensor(value):
            last[name] = torch.cat([*(one[name] for one in earlier), value], dim=1)
        elif isinstance(value, tuple) and name == "hidden_states":
            each = zip(*(one[name] for one in earlier), value, strict=True)
            last[name] = tuple(torch.cat(layer, dim=1) for layer in each)
        elif value is not None:
            raise unjoinable(name)
    return last


def unjoinable(name: str) -> CacheError:
    """Why an output cannot be had from pieces."""
    return CacheError(
        f"the input crosses a change of the frequencies, and {name} cannot be joined from pieces; "
        "pin the length: `with patch.pinned(LENGTH):`."
    )
