"""A model that reads token ids in chunks, through a cache, and answers at chosen places."""

import copy
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ropepatch.errors import EvaluationError

AtLength = Callable[[int], AbstractContextManager[Any]]
"""Holds a model's frequencies to those of a text of so many tokens."""

LEAST_CHUNK = 16
DEFAULT_CHUNK = 4096


class Reader:
    """Reads with one model."""

    def __init__(
        self, model: Any, *, chunk: int | None = None, at_length: AtLength | None = None
    ) -> None:
        """Wrap a causal language model of transformers.

        Args:
            model: In evaluation mode; it is not changed.
            chunk: Tokens per forward, over all rows.
            at_length: For models whose frequencies follow the length.
        """
        self.model = model
        self.chunk = chunk or DEFAULT_CHUNK
        self.at_length: AtLength = at_length or (lambda length: nullcontext())
        self.follows_length = at_length is not None
        self.forwarded = 0
        """Tokens read so far."""
        self.device = model.get_input_embeddings().weight.device
        if self.device.type == "meta":  # offloaded by accelerate, which moves inputs itself
            self.device = torch.device("cpu")
        names = inspect.signature(model.forward).parameters
        self._keeps = "logits_to_keep" in names
        self.cache_word = "cache" if "cache" in names else "past_key_values"

    def tensor(self, rows: Sequence[np.ndarray]) -> torch.Tensor:
        """(rows, tokens), on the model's device."""
        return torch.from_numpy(np.stack(rows).astype(np.int64)).to(self.device)

    def extend(self, cache: Any, ids: torch.Tensor) -> Any:
        """Read tokens for what they leave in the cache.

        Args:
            cache: Of what was read before, or None; it grows.
            ids: (rows, tokens).
        """
        for part in ids.split(self._width(ids), dim=1):
            cache, _ = self._forward(part, cache, None)
        return cache

    def logits(self, cache: Any, ids: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
        """Logits after some of the tokens, (rows, places, vocabulary), float32.

        Args:
            cache: Of what was read before, or None; it grows.
            ids: (rows, tokens).
            places: In `ids`, ascending.
        """
        found, start = [], 0
        for part in ids.split(self._width(ids), dim=1):
            here = [p - start for p in places if start <= p < start + part.shape[1]]
            cache, logits = self._forward(part, cache, here)
            if logits is not None:
                found.append(logits.float())
            start += part.shape[1]
        return torch.cat(found, dim=1)

    def greedy(
        self, cache: Any, ids: torch.Tensor, budget: int, ends: Sequence[int]
    ) -> list[list[int]]:
        """The most likely continuation of each row, up to one of `ends` or `budget` tokens."""
        *_, size = ids.shape
        if size > 1:
            cache = self.extend(cache, ids[:, :-1])
        stop = torch.tensor(list(ends), device=self.device)
        made: list[torch.Tensor] = []
        done = torch.zeros(len(ids), dtype=torch.bool, device=self.device)
        last = ids[:, -1:]
        for _ in range(budget):
            cache, logits = self._forward(last, cache, [0])
            assert logits is not None
            last = logits[:, -1:].argmax(-1)
            made.append(last)
            done |= torch.isin(last[:, 0], stop)
            if bool(done.all()):
                break
        rows = torch.cat(made, dim=1).tolist() if made else [[] for _ in ids]
        return [_until(row, ends) for row in rows]

    def _width(self, ids: torch.Tensor) -> int:
        return max(self.chunk // len(ids), 1)

    def _forward(
        self, ids: torch.Tensor, cache: Any, places: Sequence[int] | None
    ) -> tuple[Any, torch.Tensor | None]:
        """One forward; the head sees only `places`."""
        words: dict[str, Any] = {"input_ids": ids, "use_cache": True, "return_dict": True}
        if cache is not None:
            words[self.cache_word] = cache
        if self._keeps:
            words["logits_to_keep"] = (
                torch.tensor(list(places), device=self.device) if places else 1
            )
        output = self.model(**words)
        self.forwarded += ids.numel()
        cache = cache_of(output)
        if cache is None:
            raise EvaluationError(
                f"{type(self.model).__name__} returns no key-value cache, so it cannot read in "
                "chunks or share what was read; ropepatch evaluates models that keep one."
            )
        if not places:
            return cache, None
        logits = output.logits
        return cache, logits if self._keeps else logits[:, list(places)]


def cache_of(output: Any) -> Any:
    """The cache that a forward returned, by its newer or older name."""
    for name in ("cache", "past_key_values", "cache_params"):
        found = getattr(output, name, None)
        if found is not None:
            return found
    return None


def fork(cache: Any, rows: int = 1) -> Any:
    """A copy of a cache that grows on its own; what both hold is shared, not copied.

    Layers that grow by concatenation never write into what they hold, so their tensors serve all
    copies; others are copied whole.

    Args:
        cache: Of one row, or None.
        rows: Rows of the copy, all alike.
    """
    if cache is None:
        return None
    shared: dict[int, Any] = {}
    for layer in getattr(cache, "layers", ()):
        if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
            for tensor in (layer.keys, layer.values):
                if tensor is not None:
                    shared[id(tensor)] = tensor
    made = copy.deepcopy(cache, shared)
    if rows > 1:
        made.batch_repeat_interleave(rows)
    return made


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on whichever device."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )


def _until(row: Sequence[int], ends: Sequence[int]) -> list[int]:
    for i, token in enumerate(row):
        if token in ends:
            return list(row[:i])
    return list(row)
