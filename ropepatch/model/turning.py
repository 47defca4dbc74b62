"""Turning by given frequencies: cos and sin as a model's own rotary module would give them.

How that module lays out what it computes (pairs in halves or side by side, several axes of
positions, complex numbers) is found by calling it, not by its name.
"""

import copy
from collections.abc import Mapping
from typing import Any, Literal

import torch

from ropepatch.errors import CacheError, UnsupportedModelError
from ropepatch.geometry import Frequencies

Layout = Literal["halves", "pairs", "single", "complex", "own"]
"""halves: (c0 c1 .. c0 c1 ..); pairs: (c0 c0 c1 c1 ..); single: (c0 c1 ..); own: only its code
knows (several axes of positions)."""

_DIRECT: tuple[Layout, ...] = ("halves", "pairs", "single")
_AXES = (3, 4, 2)
"""How many axes of positions models of several modalities have."""
_INSTANCE = ("forward", "_old_forward", "_hf_hook")
"""What accelerate puts on a module; a copy must not carry it."""


class Turn:
    """One set of frequencies, for one schedule of one rotary module.

    The table is float32 and no buffer: no cast of the model reaches it, no state dict holds it.
    """

    def __init__(
        self,
        inv_freq: torch.Tensor,
        attention_factor: float,
        layout: Layout,
        stock: torch.nn.Module,
        label: str,
    ) -> None:
        """Take the place of `stock` for the schedule called `label`.

        Args:
            inv_freq: (pairs,), float32.
            attention_factor: Multiplies cos and sin.
            layout: As `layout_of` found it.
            stock: The module transformers built; not changed.
            label: Layer type; "" where one schedule serves all layers.
        """
        self.inv_freq = inv_freq
        self.attention_factor = attention_factor
        self.layout = layout
        self.label = label
        self.stock = None if layout in _DIRECT else _fixed(stock, label, inv_freq, attention_factor)
        self.wide = _widened(inv_freq, layout)
        """(width,): each frequency as often as cos and sin hold it."""
        self.elsewhere: dict[torch.device, Turn] = {}
        """Copies on other devices, where one module serves several."""

    def __call__(self, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        """What the stock module would return: cos and sin, (batch, tokens, width), in x's dtype.

        Args:
            x: Hidden states; only their device and dtype count.
            position_ids: (batch or 1, tokens), or (axes, batch, tokens).
        """
        if self.inv_freq.device != x.device:
            return self.on(x.device)(x, position_ids)
        if self.stock is not None:
            return self.stock(x, position_ids, *((self.label,) if self.label else ()))
        one = position_ids.shape[-1] == 1  # then calls cost more than cosines
        angles = position_ids[..., None].float() * (self.wide if one else self.inv_freq)
        cos, sin = angles.cos(), angles.sin_()  # in place: for long inputs memory is the price
        if self.attention_factor != 1:
            cos.mul_(self.attention_factor)
            sin.mul_(self.attention_factor)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        return (cos, sin) if one else (_widened(cos, self.layout), _widened(sin, self.layout))

    def on(self, device: torch.device) -> "Turn":
        """The same turning on another device."""
        found = self.elsewhere.get(device)
        if found is None:
            found = copy.copy(self)
            found.elsewhere = {}
            found.move(device)
            self.elsewhere[device] = found
        return found

    def by_pair(self, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and sin of each pair, (batch or 1, tokens, pairs), float32.

        Raises:
            CacheError: the two features of a pair do not turn alike.
        """
        found = self(torch.zeros(1, 1, 1, device=position_ids.device), position_ids)
        if self.layout == "complex":
            return found.real, found.imag
        cos, sin = found
        pairs = self.inv_freq.numel()
        if cos.shape[-1] == pairs:
            return cos, sin
        for first, second in (
            (slice(pairs), slice(pairs, None)),
            (slice(0, None, 2), slice(1, None, 2)),
        ):
            if torch.equal(cos[..., first], cos[..., second]):
                return cos[..., first], sin[..., first]
        raise CacheError(
            "the two features of a pair turn by different axes of positions here, so cached keys "
            "cannot be turned again; pin the length: `with patch.pinned(LENGTH):`."
        )

    def move(self, device: torch.device) -> None:
        """Move the table; the dtype never changes."""
        if self.inv_freq.device == device or device.type == "meta":
            return
        with torch.inference_mode(False):
            self.inv_freq, self.wide = self.inv_freq.to(device), self.wide.to(device)
        if self.stock is not None:
            self.stock = _fixed(self.stock, self.label, self.inv_freq, self.attention_factor)


def layout_of(stock: torch.nn.Module, label: str, inv_freq: torch.Tensor) -> Layout:
    """How a rotary module lays out cos and sin, found by calling a copy of it on the CPU.

    Raises:
        UnsupportedModelError: it cannot be called, or does not turn by its `inv_freq`.
    """
    table = inv_freq.cpu()
    own = Turn(table, 1.0, "own", stock, label)
    flat = torch.tensor([[0, 1, 7]])
    axes = torch.tensor([[[0, 1, 7]], [[0, 2, 5]], [[0, 3, 11]], [[0, 4, 13]]])
    dtypes = (torch.float32, torch.bfloat16)
    try:
        wanted = {d: own(torch.zeros(1, 3, 1, dtype=d), flat) for d in dtypes}
        other = Turn(table * 0.5, 1.0, "own", stock, label)(torch.zeros(1, 3, 1), flat)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
        if label or not _wants_axes(own, axes):
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise UnsupportedModelError(
                f"{type(stock).__name__} cannot be called with positions alone ({reason})."
            ) from error
        return "own"
    if torch.is_tensor(wanted[torch.float32]):
        if not wanted[torch.float32].is_complex():
            raise UnsupportedModelError(f"{type(stock).__name__} returns one real tensor.")
        _check_turns(stock, wanted[torch.float32], other)
        return "complex"
    several = {count: _call_or_none(own, axes[:count]) for count in _AXES}
    for layout in _DIRECT:
        ours = Turn(table, 1.0, layout, stock, label)
        same = all(_equal(ours(torch.zeros(1, 3, 1, dtype=d), flat), wanted[d]) for d in dtypes)
        on_axes = all(
            theirs is None or _equal(ours(torch.zeros(1, 3, 1), axes[:count]), theirs)
            for count, theirs in several.items()
        )
        if same and on_axes:
            return layout
    _check_turns(stock, wanted[torch.float32][1], other[1])
    return "own"


def _check_turns(stock: torch.nn.Module, found: torch.Tensor, other: torch.Tensor) -> None:
    if torch.equal(found, other):
        raise UnsupportedModelError(
            f"{type(stock).__name__} does not turn by its inv_freq, so a patch would do nothing."
        )


def _wants_axes(own: Turn, axes: torch.Tensor) -> bool:
    return any(_call_or_none(own, axes[:count]) is not None for count in _AXES)


def _call_or_none(own: Turn, positions: torch.Tensor) -> Any:
    try:
        return own(torch.zeros(1, 3, 1), positions)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError):
        return None


def _equal(ours: Any, theirs: Any) -> bool:
    return (
        isinstance(theirs, tuple)
        and len(theirs) == 2
        and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    )


def _widened(values: torch.Tensor, layout: Layout) -> torch.Tensor:
    """(.., pairs) as cos and sin hold them."""
    if layout == "halves":
        return torch.cat((values, values), dim=-1)
    return values.repeat_interleave(2, dim=-1) if layout == "pairs" else values


def _prefix(label: str) -> str:
    return f"{label}_" if label else ""


def _fixed(
    stock: torch.nn.Module, label: str, inv_freq: torch.Tensor, attention_factor: float
) -> torch.nn.Module:
    """A shallow copy of a rotary module that turns by these numbers and never recomputes them."""
    clone = copy.copy(stock)
    own = clone.__dict__
    for name in _INSTANCE:
        own.pop(name, None)
    own["_buffers"] = {k: v for k, v in own["_buffers"].items() if not k.endswith("inv_freq")}
    kinds = own.get("rope_type")
    own["rope_type"] = dict.fromkeys(kinds, "default") if isinstance(kinds, Mapping) else "default"
    own[_prefix(label) + "inv_freq"] = inv_freq
    own[_prefix(label) + "attention_scaling"] = attention_factor
    return clone


def stock_numbers(stock: torch.nn.Module, label: str) -> tuple[torch.Tensor, float]:
    """The frequencies a stock module was built with, (pairs,), and its attention factor."""
    prefix = _prefix(label)
    module: Any = stock
    table = getattr(module, f"{prefix}original_inv_freq", None)
    if table is None:  # what a dynamic type has grown to is not what it was built with
        table = getattr(module, f"{prefix}inv_freq")
    return table, float(getattr(module, f"{prefix}attention_scaling", 1.0))


def table_of(
    wanted: Frequencies, base: Frequencies, stock: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """Frequencies as a float32 table on the stock table's device.

    Where they are the pretrained ones, the stock module's own float32 numbers are taken, so that
    nothing changes by even one bit; unless the model was cast to 16 bits, which blurred them.
    """
    device = torch.device("cpu") if stock.is_meta else stock.device
    table = torch.tensor(wanted.inv_freq, dtype=torch.float64).float().to(device)
    same = wanted == base and stock.dtype == torch.float32 and not stock.is_meta
    if same and torch.allclose(stock, table, rtol=1e-5, atol=0.0):
        table = stock.detach().clone()
    return table, wanted.attention_factor
