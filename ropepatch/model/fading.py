"""A change of positions that comes in little by little while a model is trained.

Frequencies move in a straight line from what they were to what they become (nothing, where a
layer stops turning), the attention factor likewise, and the slopes of linear biases from zero.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ropepatch.errors import NotExpressibleError
from ropepatch.model.length_pins import length_pin
from ropepatch.model.patching import patch_of
from ropepatch.model.rotary import PatchedRotaryEmbedding
from ropepatch.model.sites import root_of
from ropepatch.model.turning import Turn
from ropepatch.runtime.attention import Alibi
from ropepatch.runtime.classes import Still, rotary_within

Fade = Callable[[float], None]
"""Called with how much of the change is in force, from 0 to 1."""


def fading(model: Any) -> Fade:
    """What brings the change of a live model in.

    Args:
        model: Patched, or converted; wrapped or not.

    Raises:
        NotExpressibleError: its frequencies follow the length, or only its own code turns.
    """
    root = root_of(model)
    if length_pin(root) is not None:
        raise NotExpressibleError(
            "a change that follows the length cannot come in little by little; leave out fade."
        )
    turns = [_Turning(turn) for turn in _turns(root)] if patch_of(root) is not None else []
    stills = list(_stills(root))
    if not turns and not stills:
        raise NotExpressibleError(
            f"this {type(root).__name__} carries no patch and no conversion of ropepatch's that "
            "could come in little by little; leave out fade."
        )
    slopes = [(m, m.scale) for m in root.modules() if isinstance(m, Alibi)]
    faded = _Faded(root, stills) if stills else None

    def fade(share: float) -> None:
        for turning in turns:
            turning.at(share)
        for state, scale in slopes:
            state.scale, state.slopes = scale * share, None
        if faded is not None:
            faded.at(share)

    return fade


def _turns(root: Any) -> Iterator[tuple[Any, str, Turn]]:
    for module in root.modules():
        if isinstance(module, PatchedRotaryEmbedding):
            for label, turn in module.fixed.items():
                if turn.stock is not None:
                    raise NotExpressibleError(
                        "this model turns by code of its own, which takes no frequencies between "
                        "the old and the new; leave out fade."
                    )
                yield module, label, turn


class _Turning:
    """One schedule of a patched rotary module."""

    def __init__(self, found: tuple[Any, str, Turn]) -> None:
        self.module, self.label, self.turn = found
        prefix = f"{self.label}_" if self.label else ""
        stock = self.module.__dict__["stock"]
        self.old: torch.Tensor = getattr(stock, f"{prefix}inv_freq").detach().float()
        self.old_factor = float(getattr(stock, f"{prefix}attention_scaling", 1.0))

    def at(self, share: float) -> None:
        """Between the frequencies from before and those of the patch."""
        if share >= 1:
            self.module.fixed[self.label] = self.turn
            return
        turn = self.turn
        old = self.old.to(turn.inv_freq.device)
        if old.shape != turn.inv_freq.shape:
            raise NotExpressibleError("the patch turns other pairs than before; leave out fade.")
        factor = self.old_factor + share * (turn.attention_factor - self.old_factor)
        between = old + share * (turn.inv_freq - old)
        stock = self.module.__dict__["stock"]
        self.module.fixed[self.label] = Turn(between, factor, turn.layout, stock, self.label)


def _stills(root: Any) -> Iterator[tuple[Any, Still]]:
    """Attentions that no longer turn, each with the hook that holds it still."""
    for module in root.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, Still):
                yield module, hook


class _Faded:
    """Lets layers that were stopped turn by a share of their angles.

    Angles are frequency times place, so a share of the angles is what the model's own rotary
    module gives for a share of the places.
    """

    def __init__(self, root: Any, stills: list[tuple[Any, Still]]) -> None:
        self.stills = stills
        self.share = 1.0
        self.given: dict[Any, Any] = {}
        """Cos and sin in part, by the whole ones that go with them."""
        if any(rotary_within(module) is not None for module, _ in stills):
            raise NotExpressibleError(
                "the attentions of this model turn by themselves, so their angles cannot be taken "
                "away little by little; leave out fade."
            )
        self.rotary = [m for m in root.modules() if hasattr(m, "rope_type") and callable(m)]
        for module in self.rotary:
            module.register_forward_hook(self._also, with_kwargs=True)

    def at(self, share: float) -> None:
        """How much of the change is in force."""
        self.share = share
        for _, hook in self.stills:
            if share >= 1:
                hook.__dict__.pop("still", None)
            else:
                hook.__dict__["still"] = self._in_part
        self.given.clear()

    def _also(self, module: Any, args: Any, words: dict[str, Any], output: Any) -> None:
        if self.share >= 1 or not isinstance(output, tuple):
            return
        named = dict(words)
        rest = list(args)
        if "position_ids" in named:
            named["position_ids"] = named["position_ids"] * (1 - self.share)
        else:
            rest[1] = rest[1] * (1 - self.share)
        self.given[id(output[0])] = (output, module.forward(*rest, **named))

    def _in_part(self, whole: Any) -> Any:
        if whole is None:
            return None
        found = self.given.get(id(whole[0]))
        if found is None:
            raise NotExpressibleError(
                "the angles of this model do not come from its rotary module; leave out fade."
            )
        return found[1]
