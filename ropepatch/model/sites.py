"""Where the rotary parts of a live model are, found by structure and not by class names."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from ropepatch.errors import UnsupportedModelError
from ropepatch.model.rotary import PatchedRotaryEmbedding


@dataclass(frozen=True)
class Site:
    """One rotary module and everything that holds it."""

    module: torch.nn.Module
    labels: tuple[str, ...]
    holders: tuple[tuple[torch.nn.Module, str], ...]
    """(module, attribute) pairs."""

    def put(self, module: torch.nn.Module) -> None:
        """Let every holder hold this module instead."""
        for holder, name in self.holders:
            holder._modules[name] = module


def root_of(model: Any) -> PreTrainedModel:
    """The transformers model inside whatever wraps it (PEFT, torch.compile, DDP, ...).

    Raises:
        UnsupportedModelError: there is none.
    """
    if not isinstance(model, torch.nn.Module):
        raise UnsupportedModelError(
            f"patch needs a transformers model, not {type(model).__name__}; for a folder use "
            "ropepatch.load or ropepatch.extend."
        )
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise UnsupportedModelError(
        f"{type(model).__name__} holds no transformers model (PreTrainedModel) to patch."
    )


def labels_of(module: torch.nn.Module) -> tuple[str, ...]:
    """Labels of the schedules a stock rotary module holds; none for any other module."""
    names = [name for name in module._buffers if name.endswith("inv_freq")]
    if "inv_freq" in names:
        return ("",)
    ending = "_inv_freq"
    return tuple(
        name.removesuffix(ending) for name in names if not name.endswith(f"original{ending}")
    )


def find_sites(root: PreTrainedModel, text: PreTrainedConfig) -> tuple[Site, ...]:
    """The rotary modules of the text model.

    Args:
        root: The whole model.
        text: The config of its text part.

    Raises:
        UnsupportedModelError: it has none that turns by inverse frequencies.
    """
    holders: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    found: dict[int, torch.nn.Module] = {}
    for holder in root.modules():
        for name, child in holder._modules.items():
            if isinstance(child, PatchedRotaryEmbedding):
                raise UnsupportedModelError(
                    f"{type(root).__name__} holds rotary modules of another patch, whose handle is "
                    "gone; load the model again."
                )
            own = getattr(child, "config", None)
            if child is not None and labels_of(child) and isinstance(own, type(text)):
                holders.setdefault(id(child), []).append((holder, name))
                found[id(child)] = child
    if not found:
        raise UnsupportedModelError(
            f"{type(root).__name__} has no rotary module with inverse frequencies, so there is "
            "nothing to patch."
        )
    return tuple(
        Site(module, labels_of(module), tuple(holders[key])) for key, module in found.items()
    )


def text_model_of(root: PreTrainedModel, sites: tuple[Site, ...]) -> PreTrainedModel:
    """The innermost model whose forward runs all the rotary modules."""
    wanted = {id(site.module) for site in sites}
    names = [name for name, module in root.named_modules() if id(module) in wanted]
    inner = root
    for name, module in root.named_modules():
        inside = all(one.startswith(f"{name}.") for one in names)
        if name and inside and isinstance(module, PreTrainedModel):
            inner = module
    return inner


def softmax_scales(
    text_model: torch.nn.Module,
) -> Iterator[tuple[torch.nn.Module, float]]:
    """Attention modules that keep a softmax scale of their own, and the scale."""
    for module in text_model.modules():
        scale = getattr(module, "scaling", None)
        if (
            "Attention" in type(module).__name__ or type(module).__name__.endswith("MLA")
        ) and isinstance(scale, float):
            yield module, scale
