"""The loss of every token of a long text, without the logits of a long text.

A vocabulary of 262,144 words makes a mebibyte of logits a token. So the text model reads a chunk,
and the head reads what comes out in blocks of a few megabytes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from ropepatch.evaluate.reader import Reader, cache_of

_BLOCK_BYTES = 32 * 1024**2
"""Of float32 logits at once; the loss needs about three times as much."""
_FACTORS = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier_scale")
_PROBE = 4
"""Tokens on which the head is compared with the model's own logits."""


class LossReader:
    """Losses of texts under one model."""

    def __init__(self, reader: Reader) -> None:
        """Find the model's head; where it is not plain, the model's own forward serves."""
        self.reader = reader
        self._head = _find_head(reader.model, reader.device)
        vocabulary = int(reader.model.get_output_embeddings().weight.shape[0])
        self._block = max(_BLOCK_BYTES // (4 * vocabulary), 1)

    def losses(self, ids: torch.Tensor, first: int = 1) -> torch.Tensor:
        """Loss of the tokens from `first` on, (rows, tokens - first), nats, float64 on the CPU.

        Args:
            ids: (rows, tokens).
            first: The first token that is scored, at least 1.
        """
        reader, found, cache, start = self.reader, [], None, 0
        step = max(reader.chunk // len(ids), 1)
        if self._head is None:
            step = min(step, self._block)
        inputs = ids[:, :-1]
        keep = step < inputs.shape[1]  # what is read in one go needs no cache
        for part in inputs.split(step, dim=1):
            stop = start + part.shape[1]
            skip = min(max(first - 1 - start, 0), part.shape[1])
            states, cache = self._read(part, cache, keep=keep)
            targets = ids[:, start + 1 + skip : stop + 1]
            if targets.shape[1]:
                found.append(self._score(states[:, skip:], targets))
            start = stop
        return torch.cat(found, dim=1)

    def _read(self, part: torch.Tensor, cache: Any, *, keep: bool) -> tuple[torch.Tensor, Any]:
        """States before the head (or logits, where the head cannot be told apart)."""
        reader = self.reader
        words: dict[str, Any] = {"input_ids": part, "use_cache": keep, "return_dict": True}
        if cache is not None:
            words[reader.cache_word] = cache
        model = reader.model if self._head is None else reader.model.base_model
        output = model(**words)
        reader.forwarded += part.numel()
        states = output.logits if self._head is None else output.last_hidden_state
        return states, cache_of(output)

    def _score(self, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        flat, wanted = states.flatten(0, 1), targets.flatten()
        parts = []
        for block, truth in zip(flat.split(self._block), wanted.split(self._block), strict=True):
            logits = block if self._head is None else self._head(block)
            loss = cross_entropy(logits.float(), truth.to(logits.device), reduction="none")
            parts.append(loss.double().cpu())
        return torch.cat(parts).view(targets.shape)


def _find_head(model: Any, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor] | None:
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
            made = _logits(head, factor, cap)
            found = made(states[0]).float().to(wanted.device)
            if torch.allclose(found, wanted[0], rtol=1e-4, atol=1e-4):
                return made
    return None


def _logits(head: Any, factor: float, cap: float | None) -> Callable[[torch.Tensor], torch.Tensor]:
    def logits(states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = head(states)
        if factor != 1:
            found = found * factor
        if cap:
            found = cap * torch.tanh(found / cap)
        return found

    return logits
