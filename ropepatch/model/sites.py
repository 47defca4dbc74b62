"""Where the rotary parts of a live model are, found by structure and not by class names."""

from collections.abc import Iterator, Mapping
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

    def holds(self, module: torch.nn.Module) -> bool:
        """Whether every holder holds this one."""
        return all(holder._modules.get(name) is module for holder, name in self.holders)

    def put_back(self, device: torch.device, *, training: bool) -> None:
        """Let the holders hold the stock module again, on the device where the model is now."""
        stock = self.module
        empty = [name for name, buffer in stock._buffers.items() if buffer is not None]
        if any(stock.get_buffer(name).is_meta for name in empty):
            weight = next(self.holders[0][0].parameters())
            if not weight.is_meta:  # filled since; no state dict holds these buffers
                fresh: Any = type(stock)(config=stock.config)
                for name in empty:
                    stock._buffers[name] = fresh._buffers[name].to(device)
        elif device.type != "meta":
            stock.to(device)
        stock.training = training
        self.put(stock)


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


Tree = Mapping[str, torch.nn.Module]
"""Every module of a model by its name, found in one walk."""


def find_sites(tree: Tree, text: PreTrainedConfig) -> tuple[Site, ...]:
    """The rotary modules of the text model.

    Args:
        tree: Of the whole model.
        text: The config of its text part.

    Raises:
        UnsupportedModelError: it has none that turns by inverse frequencies.
    """
    holders: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    found: dict[int, torch.nn.Module] = {}
    rotary = {id(module) for module in tree.values() if _is_rotary(module, text)}
    for holder in tree.values():
        for name, child in holder._modules.items():
            if child is not None and id(child) in rotary:
                holders.setdefault(id(child), []).append((holder, name))
                found[id(child)] = child
    if not found:
        raise UnsupportedModelError(
            f"{type(tree['']).__name__} has no rotary module with inverse frequencies, so there "
            "is nothing to patch."
        )
    return tuple(
        Site(module, labels_of(module), tuple(holders[key])) for key, module in found.items()
    )


def _is_rotary(module: torch.nn.Module, text: PreTrainedConfig) -> bool:
    if isinstance(module, PatchedRotaryEmbedding):
        raise UnsupportedModelError(
            "the model holds rotary modules of another patch, whose handle is gone; load the "
            "model again."
        )
    if not module._buffers or not labels_of(module):
        return False
    return isinstance(getattr(module, "config", None), type(text))


def text_model_of(tree: Tree, sites: tuple[Site, ...]) -> PreTrainedModel:
    """The innermost model whose forward runs all the rotary modules."""
    wanted = {id(site.module) for site in sites}
    names = [name for name, module in tree.items() if id(module) in wanted]
    models = [(name, m) for name, m in tree.items() if isinstance(m, PreTrainedModel)]
    inner = models[0][1]
    for name, module in models[1:]:
        if all(one.startswith(f"{name}.") for one in names):
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
