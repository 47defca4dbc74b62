"""The numbers of ALiBi: slopes, the bias as a matrix, and the same bias as a few more channels.

Source: Press et al., Train Short, Test Long, arXiv:2108.12409.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

_BASE = 256
"""bfloat16 holds whole numbers up to here, so positions travel as digits of this base."""
_LEAST_WORK = 2**22
"""Query-key pairs from which on it pays to switch denormal numbers off."""


def alibi_slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """The slope of each head, (heads,), as the code of the paper orders them.

    For a power of two a geometric row that ends at 2^-bias_max. Otherwise the row of the next
    smaller power of two, then every other slope of the next larger one's.

    Source: arXiv:2108.12409, section 3 and its code; `bias_max` is MPT's `alibi_bias_max`.
    """
    power = 2 ** int(math.log2(heads))
    row = [2.0 ** (-bias_max * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-bias_max * i / (2 * power)) for i in range(1, 2 * power, 2)]
    return [*row, *between[: heads - power]]


@dataclass(frozen=True)
class Rows:
    """What each query may read, by its mask."""

    first: torch.Tensor
    """(batch, 1, queries, 1)."""
    count: torch.Tensor
    """(batch, 1, queries, 1)."""
    gaps: bool
    """Whether some query may read keys that are no row of neighbours."""


def rows_of(mask: torch.Tensor | None) -> Rows | None:
    """The rows of a mask, looked up once for all layers that share it."""
    if mask is None:
        return None
    found: Rows | None = getattr(mask, "_ropepatch_rows", None)
    if found is None:
        allowed = readable(mask)
        first = allowed.view(torch.uint8).argmax(-1, keepdim=True)
        count = allowed.sum(-1, keepdim=True)
        if torch.compiler.is_compiling():  # what the numbers are cannot steer a graph
            return Rows(first, count, gaps=False)
        starts = (allowed[..., 1:] & ~allowed[..., :-1]).sum(-1, keepdim=True) + allowed[..., :1]
        found = Rows(first, count, gaps=bool((starts > 1).any()))
        mask._ropepatch_rows = found  # type: ignore[attr-defined]
    return found


def readable(mask: torch.Tensor) -> torch.Tensor:
    """Which keys a query may read, (batch, 1, queries, keys), from a mask of either kind."""
    mask = mask[:, :1]
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def places(rows: Rows | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Which key is each query's own, (batch or 1, 1, queries, 1), in float.

    A softmax ignores what is the same for all keys of a query, so this need not be exact; it
    keeps the numbers small where they count.
    """
    count, keys = query.shape[2], key.shape[2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    if rows is None:
        return torch.arange(keys - count, keys, device=key.device, dtype=dtype)[None, None, :, None]
    return (rows.first + rows.count - 1).to(dtype)


def full_bias(
    slopes: torch.Tensor, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """What is added to the scores, (batch or 1, heads, queries, keys).

    Distance counts the tokens that a query may read, so padding between them and the branches of
    a tree count as little as they do where positions are given.
    """
    keys, dtype = key.shape[2], torch.promote_types(query.dtype, torch.float32)
    if mask is not None:
        allowed = readable(mask)
        ahead = allowed.cumsum(-1, dtype=torch.int32) - allowed.sum(-1, keepdim=True)
    elif query.shape[2] == 1:  # a step of decoding: few numbers, so few calls
        ahead = torch.arange(1 - keys, 1, device=key.device)
    else:
        ahead = torch.arange(keys, device=key.device) - places(None, query, key)
    return (slopes[None, :, None, None] * ahead.to(dtype)).to(query.dtype)


def channels(
    slopes: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    own: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values with the bias in more channels, a multiple of eight in all.

    They stand in front: kernels sum from there, so that slope * key - slope * query has become
    small, and exact, before the features are added to it. Slopes are split into two numbers of
    few bits and positions into digits, whose products are exact in every precision.

    Args:
        slopes: (heads,), over the softmax scale.
        query: (batch, heads, queries, features).
        key: (batch, key heads, keys, features).
        value: (batch, key heads, keys, features of values).
        own: The `places` of the queries, (batch or 1, 1, queries, 1).
    """
    keys = key.shape[2]
    centre = keys // 2
    slots = torch.arange(keys, device=key.device) - centre
    high, low = slots.div(_BASE, rounding_mode="floor"), slots.remainder(_BASE)
    digits = [(16.0, high * 16), (1.0, low)]  # (of the query, of the keys)
    if keys > _BASE * 2 * _BASE:
        upper, high = high.div(_BASE, rounding_mode="floor"), high.remainder(_BASE)
        digits = [(256.0, upper * 256), (16.0, high * 16), (1.0, low)]
    coarse = slopes.bfloat16().to(slopes.dtype)
    on_query, on_key = [], []
    for part in (coarse, slopes - coarse):
        each = part[None, :, None, None]
        for weight, digit in digits:
            on_query.append((each * weight).expand(1, -1, own.shape[2], 1))
            on_key.append(digit)
        on_query.append(each * ((centre - own) / _BASE))  # the rest on the key: float16 ends early
        on_key.append(torch.full_like(low, _BASE))
    more = max(len(on_key), value.shape[-1] - key.shape[-1])
    more += -(more + key.shape[-1]) % 8
    batch = max(part.shape[0] for part in on_query)
    ahead = torch.cat([part.expand(batch, -1, -1, -1) for part in on_query], -1).to(query.dtype)
    behind = torch.stack(on_key, -1).to(key.dtype)
    ahead, behind = (F.pad(part, (0, more - part.shape[-1])) for part in (ahead, behind))
    return (
        torch.cat([ahead.expand(query.shape[0], -1, -1, -1), query], -1),
        torch.cat([behind.expand(*key.shape[:3], -1), key], -1),
        F.pad(value, (0, more + key.shape[-1] - value.shape[-1])),
    )


class _Flushed:
    """Numbers below 1e-38 are zero within: far keys weigh as little, and slow a CPU down."""

    def __enter__(self) -> None:
        self.was = not torch.full((), 1e-39).mul(1.0).item()
        torch.set_flush_denormal(True)

    def __exit__(self, *_: object) -> None:
        torch.set_flush_denormal(self.was)


def without_denormals(query: torch.Tensor, key: torch.Tensor) -> Any:
    """A block within which a CPU skips denormal numbers, where that pays."""
    if query.device.type != "cpu" or torch.compiler.is_compiling():
        return nullcontext()
    return _Flushed() if query.shape[2] * key.shape[2] >= _LEAST_WORK else nullcontext()
