"""The loss of every token of a long text, without the logits of a long text.

A vocabulary of 262,144 words makes a mebibyte of logits a token. So the text model reads a chunk,
and the head reads what comes out in blocks of a few megabytes.
"""

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from ropepatch.evaluate.reader import Reader, cache_of
from ropepatch.heads import find_head

_BLOCK_BYTES = 32 * 1024**2
"""Of float32 logits at once; the loss needs about three times as much."""


class LossReader:
    """Losses of texts under one model."""

    def __init__(self, reader: Reader) -> None:
        """Find the model's head; where it is not plain, the model's own forward serves."""
        self.reader = reader
        self._head = find_head(reader.model, reader.device)
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
