"""How long a run may take."""

import time
from typing import TYPE_CHECKING, Any

from ropepatch.measuring.subject import Subject

if TYPE_CHECKING:
    from ropepatch.evaluate.outlook import Outlook

_PROBE = 128
"""Tokens that are read to learn how fast a model is."""


def forecast(subject: Subject, reader: Any, ahead: "Outlook") -> str:
    """What is to be read and how long it may take, from a few tokens read now."""
    import torch

    if not ahead.tokens:
        return "all of it is answered already"
    config = subject.model.config.get_text_config(decoder=True)
    ids = torch.arange(_PROBE, device=reader.device)[None] % config.vocab_size
    with torch.inference_mode(), reader.at_length(_PROBE):
        reader.extend(None, ids)
        _settled()
        began = time.monotonic()
        reader.extend(None, ids)
        _settled()
        per_token = (time.monotonic() - began) / _PROBE
    reader.forwarded = 0
    width = config.num_attention_heads * (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    flops = 2 * sum(p.numel() for p in subject.model.parameters())
    per_pair = per_token * 4 * config.num_hidden_layers * width / flops
    seconds = per_token * ahead.tokens + per_pair * ahead.pairs
    share = f" ({ahead.tokens / ahead.nominal:.2f} of all prompts)" if ahead.nominal else ""
    return f"to read: {ahead.tokens:,} tokens{share}, about {_time(seconds)} on {subject.device}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _settled() -> None:
    """What was asked of a GPU is done."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
