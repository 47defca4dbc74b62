"""Which weights of a model are trained."""

from typing import Any

import torch

from ropepatch.errors import HealingError
from ropepatch.healing.plan import HealPlan


def text_modules(model: Any) -> list[tuple[str, torch.nn.Module]]:
    """Modules of the part that reads text, by name in the whole model."""
    text = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    text = model.base_model if text is None else text
    inside = {id(module) for module in text.modules()}
    return [(name, module) for name, module in model.named_modules() if id(module) in inside]


def freeze_others(model: Any) -> None:
    """Train the text part and the head only.

    Towers of images and sounds get no gradients from text, and DDP would wait for them.
    """
    wanted = {
        id(p)
        for _, module in text_modules(model)
        for p in module.parameters(recurse=False)
        if p.is_floating_point()
    }
    head = model.get_output_embeddings()
    wanted |= {id(p) for p in (head.parameters() if head is not None else ())}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in wanted)


def attention_linears(model: Any) -> dict[str, torch.nn.Module]:
    """The linear layers inside the attentions of the text model, by name.

    Raises:
        HealingError: there are none.
    """
    attentions = [
        name for name, m in text_modules(model) if "Attention" in type(m).__name__ and name
    ]
    found: dict[str, torch.nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and any(name.startswith(f"{a}.") for a in attentions)
    }
    if not found:
        raise HealingError(
            f"no linear layer was found in an attention of {type(model).__name__}, so adapters "
            "have no place; train all weights (--full)."
        )
    return found


def norms(model: Any) -> dict[str, torch.nn.Module]:
    """The norms of the text model that have weights, by name."""
    return {
        name: module
        for name, module in text_modules(model)
        if "Norm" in type(module).__name__ and any(True for _ in module.parameters())
    }


def trained_numbers(model: Any, plan: HealPlan) -> int:
    """How many numbers a plan trains.

    Args:
        model: Perhaps without weights, on the meta device.
        plan: Of the training.
    """
    if plan.lora is None:
        freeze_others(model)
        return sum(p.numel() for p in model.parameters() if p.requires_grad)
    linears: dict[str, Any] = attention_linears(model)
    count = sum(plan.lora * sum(m.weight.shape) for m in linears.values())
    if plan.train_norms:
        count += sum(p.numel() for m in norms(model).values() for p in m.parameters())
    if plan.train_embeddings:
        count += int(model.get_input_embeddings().weight.numel())
    return int(count)
