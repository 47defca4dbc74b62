"""What turns a text model's states into logits, so that nobody has to hold those of a long text."""

from collections.abc import Callable
from typing import Any

import torch

Head = Callable[[torch.Tensor], torch.Tensor]
"""(..., hidden) to (..., vocabulary)."""
_FACTORS = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier_scale")
_PROBE = 4
"""Tokens on which a candidate is compared with the model's own logits."""


def find_head(model: Any, device: torch.device) -> Head | None:
    """What turns the text model's states into the model's logits; None if none of ours does.

    The candidates are the output embedding alone, with a factor of the config, and with a soft
    cap; one counts only if it gives the model's own logits on a few tokens.
    """
    head, base = model.get_output_embeddings(), model.base_model
    if head is None or base is model:
        return None
    config = model.config.get_text_config(decoder=True)
    cap = getattr(config, "final_logit_softcapping", None)
    factors = [1.0]
    for name in _FACTORS:
        value = getattr(config, name, None)
        if isinstance(value, int | float) and value not in (0, 1):
            factors += [float(value), 1 / float(value)]
    probe = torch.arange(_PROBE, device=device)[None] + 1
    with torch.inference_mode():
        wanted = model(input_ids=probe, use_cache=False, return_dict=True).logits.float()
        output = base(input_ids=probe, use_cache=False, return_dict=True)
        states = getattr(output, "last_hidden_state", None)
        if states is None or states.shape[-1] != head.weight.shape[1]:
            return None
        for factor in factors:
            made = _logits(model, factor, cap)
            found = made(states[0]).float().to(wanted.device)
            if torch.allclose(found, wanted[0], rtol=1e-4, atol=1e-4):
                return made
    return None


def _logits(model: Any, factor: float, cap: float | None) -> Head:
    def logits(states: torch.Tensor) -> torch.Tensor:
        # asked for each time: adapters put another in its place where embeddings are tied
        found: torch.Tensor = model.get_output_embeddings()(states)
        if factor != 1:
            found = found * factor
        if cap:
            found = cap * torch.tanh(found / cap)
        return found

    return logits
