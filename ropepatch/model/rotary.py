"""The module that stands where a model's rotary module stood: one for all methods and families."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

import torch

from ropepatch.model.regimes import Regimes
from ropepatch.model.turning import Layout, Turn

_MOST_TURNS = 64

Make = Callable[[str, int], Turn]


class Follows(Protocol):
    """What knows which regime the input is in."""

    regimes: Regimes

    def regimes_now(self, position_ids: torch.Tensor) -> tuple[int, ...]:
        """By row of the batch; one for all rows where they agree."""


class PatchedRotaryEmbedding(torch.nn.Module):
    """Turns by given frequencies, fixed ones or those of the regime that the input is in.

    It has no parameters and no buffers: the state dict of the model stays as it was, and no cast
    blurs the frequencies. With fixed frequencies nothing of the positions is ever read back, so
    `torch.compile(fullgraph=True)` and CUDA graphs work as with the stock module.
    """

    def __init__(
        self, stock: torch.nn.Module, fixed: Mapping[str, Turn], varying: "Varying | None"
    ) -> None:
        """Turn by `fixed`, by label, except for the labels that vary, in the place of `stock`."""
        super().__init__()
        self.stock: torch.nn.Module
        self.__dict__["stock"] = stock  # no submodule: its buffers must not follow casts
        self.fixed = dict(fixed)
        self.varying = varying

    def __getattr__(self, name: str) -> Any:
        """What models and users read from the stock module; its numbers are those in force."""
        own = self.__dict__
        if "fixed" in own and name.endswith(("inv_freq", "attention_scaling")):
            label, _, _ = name.rpartition("inv_freq" if name[-1] == "q" else "attention_scaling")
            turn = self._turn_of(label.removesuffix("_"))
            if turn is not None:
                return turn.inv_freq if name[-1] == "q" else turn.attention_factor
        if "stock" not in own:  # while it is being copied
            raise AttributeError(name)
        return getattr(own["stock"], name)

    def _turn_of(self, label: str) -> Turn | None:
        if self.varying is not None and label in self.varying.labels:
            return self.varying.turn(label, self.varying.follower.regimes.trained)
        return self.fixed.get(label)

    def forward(
        self,
        x: torch.Tensor,
        position_ids: torch.Tensor,
        layer_type: str | None = None,
    ) -> Any:
        """Cos and sin for these positions, as the stock module lays them out.

        Args:
            x: (batch, tokens, hidden); only its device and dtype count.
            position_ids: (batch or 1, tokens), or (axes, batch, tokens).
            layer_type: Which schedule, where the model has one per layer type.
        """
        label = layer_type or ""
        if self.varying is None or label not in self.varying.labels:
            return self.fixed[label](x, position_ids)
        return self.varying(label, x, position_ids)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Follow the model to another device, never to another dtype."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        turns = [*self.fixed.values(), *(self.varying.turns.values() if self.varying else ())]
        for turn in turns:
            turn.move(fn(turn.inv_freq).device)
        return self

    @property
    def layout(self) -> Layout:
        """How its cos and sin are laid out."""
        turns = [*self.fixed.values(), *(self.varying.turns.values() if self.varying else ())]
        layout: Layout = turns[0].layout
        return layout

    @property
    def device(self) -> torch.device:
        """Where its tables are."""
        turns = [*self.fixed.values(), *(self.varying.turns.values() if self.varying else ())]
        device: torch.device = turns[0].inv_freq.device
        return device

    def extra_repr(self) -> str:
        """What it turns by, for `print(model)`."""
        labels = [*self.fixed, *(self.varying.labels if self.varying else ())]
        kind = "" if self.varying is None else ", by the length"
        return f"ropepatch{kind}: {', '.join(labels) if any(labels) else 'all layers'}"


class Varying:
    """The schedules whose frequencies follow the length."""

    def __init__(self, labels: tuple[str, ...], follower: Follows, make: Make) -> None:
        """Turn these labels by what `make` gives for a label and a regime."""
        self.labels = labels
        self.follower = follower
        self.make = make
        self.turns: dict[tuple[str, int], Turn] = {}

    def turn(self, label: str, regime: int) -> Turn:
        """The turning of a regime; made once."""
        key = (label, regime)
        found = self.turns.get(key)
        if found is None:
            if len(self.turns) >= _MOST_TURNS:  # many pinned lengths, say
                self.turns.pop(next(iter(self.turns)), None)
            with torch.inference_mode(False):  # it will serve training as well
                found = self.turns[key] = self.make(label, regime)
        return found

    def __call__(self, label: str, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        """Cos and sin, each row of the batch by its own regime."""
        regimes = self.follower.regimes_now(position_ids)
        found = {r: self.turn(label, r)(x, position_ids) for r in dict.fromkeys(regimes)}
        if len(found) == 1:
            return next(iter(found.values()))
        each = [found[regime] for regime in regimes]
        if torch.is_tensor(each[0]):
            return _rows(each)
        return tuple(_rows([one[part] for one in each]) for part in range(len(each[0])))


def _rows(each: list[torch.Tensor]) -> torch.Tensor:
    """Row i of the i-th tensor, for every row of the batch."""
    axis = each[0].ndim - 3
    rows = [t.select(axis, min(i, t.shape[axis] - 1)) for i, t in enumerate(each)]
    return torch.stack(rows, dim=axis)
