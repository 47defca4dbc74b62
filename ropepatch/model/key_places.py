"""How a model's cache keeps what was turned, by structure; rows of families name what differs."""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from ropepatch.config_json.layout import Layout
from ropepatch.model.key_turning import KeyPlace

_TURNS = ("rotate_half_llm", "rotate_half")
"""What the function is called; where a vision tower has one of its own, the text's comes first."""


def key_places(
    text_model: torch.nn.Module,
    layout: Layout,
    labels: tuple[str, ...],
    stock: torch.nn.Module,
    *,
    is_complex: bool,
) -> Mapping[str, KeyPlace]:
    """By label, how cached keys are kept; empty where they cannot be turned again.

    Args:
        text_model: Whose attention fills the cache.
        layout: Of its config.
        labels: Of the schedules that change.
        stock: One of its rotary modules.
        is_complex: Whether that gives complex numbers, which turn neighbouring features.
    """
    row = layout.family.row
    if row.one_pass is not None:
        return {}
    interleaved, backwards = _pairing(stock)
    norms = _norms(text_model, row.norm_after) if row.norm_after else {}
    return {
        label: KeyPlace(
            width=layout.schedules[label].geometry.rotary_dim,
            slots=_slots(layout, label),
            interleaved=interleaved or is_complex,
            backwards=backwards,
            latent=layout.family.is_mla,
            indexer=row.indexer,
            norms=norms,
        )
        for label in labels
    }


def _pairing(stock: torch.nn.Module) -> tuple[bool, bool]:
    """Whether pairs are neighbours, and whether they turn backwards, by `rotate_half`.

    Every family has a function of this name beside its rotary module, or takes halves.
    """
    beside = sys.modules[type(stock).__module__]
    turn: Any = next((getattr(beside, n) for n in _TURNS if hasattr(beside, n)), None)
    if turn is None:
        return False, False
    found = turn(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    return found[0] in (2.0, -2.0), found[0] > 0


def _slots(layout: Layout, label: str) -> tuple[int, ...] | None:
    """Layers of the cache; by number only where some keep keys that were never turned."""
    own = {i for group in layout.groups_of(label) for i in group.layers}
    keeping = {
        i
        for group in layout.groups
        if group.attends or group.layer_type == "cross_attention"
        for i in group.layers
    }
    return None if own == keeping else tuple(sorted(own))


def _norms(text_model: torch.nn.Module, name: str) -> dict[int, torch.nn.Module]:
    found = {}
    for module in text_model.modules():
        slot, norm = getattr(module, "layer_idx", None), getattr(module, name, None)
        if isinstance(slot, int) and isinstance(norm, torch.nn.Module):
            found[slot] = norm
    return found
