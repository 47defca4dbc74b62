"""What a family does by itself, and what must be done to it: its biases, its names of weights."""

import inspect
from typing import Any

import torch


class Scaled:
    """Forward pre-hook of an attention that has linear biases of its own: slopes times a number."""

    def __init__(self, names: list[str], scale: float) -> None:
        """Scale these arguments: biases, or masks that hold them."""
        self.names, self.scale = names, scale

    def __call__(self, module: Any, args: Any, words: dict[str, Any]) -> Any:
        """Before the attention."""
        parameters = list(inspect.signature(type(module).forward).parameters)[1:]
        given = dict(zip(parameters, args, strict=False)) | words
        if given.get(self.names[0]) is None:
            raise RuntimeError(f"{type(module).__name__} was called without {self.names[0]}.")
        for name in self.names:
            bias = given.get(name)
            if torch.is_tensor(bias) and bias.is_floating_point():
                lowest = torch.finfo(bias.dtype).min / 2
                given[name] = torch.where(bias > lowest, bias * self.scale, bias)
        return (), given


def rename_as(name: str, base: str) -> None:
    """Let weights be renamed for one class as they are for another.

    transformers renames some by the name of a class (GPT-NeoX's head, for one); without that the
    head of a converted model would be random.
    """
    from transformers import conversion_mapping as known

    found = known.get_checkpoint_conversion_mapping(base)
    if found is not None:
        known.register_checkpoint_conversion_mapping(name, found, overwrite=True)
