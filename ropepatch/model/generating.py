"""`generate` on a patched model: the length is pinned where cached keys could not follow it."""

import copy
from functools import partial
from typing import Any

from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import BaseQuantizedLayer

from ropepatch.errors import CacheError
from ropepatch.model.following import Follower

_DEFAULT_NEW = 20
"""Tokens that transformers generates where nothing says how many."""
_BATCHED = ("generate_batch", "init_continuous_batching")


class Generating:
    """Stands before the `generate` of one model instance."""

    def __init__(self, model: PreTrainedModel, follower: Follower) -> None:
        """Prepare; `apply` puts it there."""
        self.model = model
        self.follower = follower
        self.earlier: dict[str, Any] = {}
        """What the instance had of its own (models with a generation of their own do)."""

    def apply(self) -> None:
        """Let the instance call this first."""
        for name in ("generate", *_BATCHED):
            if hasattr(type(self.model), name) or name in self.model.__dict__:
                self.earlier[name] = self.model.__dict__.get(name)
                self.model.__dict__[name] = getattr(self, name)

    def revert(self) -> None:
        """Put back what was there, unless somebody has put another there since."""
        for name, earlier in self.earlier.items():
            if getattr(self.model.__dict__.get(name), "__self__", None) is not self:
                continue
            if earlier is None:
                del self.model.__dict__[name]
            else:
                self.model.__dict__[name] = earlier
        self.earlier.clear()

    def _own(self, name: str) -> Any:
        """What would be called without a patch."""
        return self.earlier.get(name) or partial(getattr(type(self.model), name), self.model)

    def generate_batch(self, *args: Any, **words: Any) -> Any:
        """As the model's own, where the frequencies stay as they are."""
        self._refuse_pages()
        return self._own("generate_batch")(*args, **words)

    def init_continuous_batching(self, *args: Any, **words: Any) -> Any:
        """As the model's own, where the frequencies stay as they are."""
        self._refuse_pages()
        return self._own("init_continuous_batching")(*args, **words)

    def _refuse_pages(self) -> None:
        """Refuse here, since transformers turns an error of its batching thread into nothing.

        Raises:
            CacheError: the frequencies follow the length and no length is pinned.
        """
        if self.follower.pin() is None:
            raise CacheError(
                "continuous batching keeps keys in pages that cannot follow a change of the "
                "frequencies; pin the length: `with patch.pinned(LENGTH):`."
            )

    def generate(self, *args: Any, **words: Any) -> Any:
        """As the model's own, under a pinned length where its cache needs one."""
        model: Any = self.model
        whole = self._own("generate")
        given = next((a for a in args if isinstance(a, GenerationConfig)), None)
        told = words if given is None else {"generation_config": given, **words}
        length = known_length(model, args, told) if self._needs_pin(told) else None
        if length is None or self.follower.pin() is not None:
            return whole(*args, **words)
        with self.follower.pinned_here(length):
            return whole(*args, **words)

    def _needs_pin(self, words: dict[str, Any]) -> bool:
        """Whether cached keys cannot be turned again: quantized ones, or in an unknown place."""
        config = words.get("generation_config") or self.model.generation_config
        kind = words.get("cache_implementation", getattr(config, "cache_implementation", None))
        cache = words.get("cache", words.get("past_key_values"))
        layers = getattr(cache, "layers", ())
        return (
            kind == "quantized"
            or any(isinstance(layer, BaseQuantizedLayer) for layer in layers)
            or self.follower.why_not is not None
        )


def known_length(model: Any, args: tuple[Any, ...], words: dict[str, Any]) -> int:
    """Tokens at which a generation ends at the latest."""
    config = words.get("generation_config") or model.generation_config
    prompt: Any = args[0] if args else None
    for name in ("inputs", "input_ids", "inputs_embeds"):
        prompt = words.get(name) if prompt is None else prompt
    count = int(prompt.shape[1]) if hasattr(prompt, "shape") and len(prompt.shape) > 1 else 0
    new = words.get("max_new_tokens", getattr(config, "max_new_tokens", None))
    if new is not None:
        return count + int(new)
    most = words.get("max_length", getattr(config, "max_length", None))
    return count + _DEFAULT_NEW if most is None else max(int(most), count + 1)


def raised_generation(
    model: PreTrainedModel, old_lengths: set[int], target: int
) -> tuple[Any, Any] | None:
    """Let `generate` go on where it used to stop at the old full length.

    Args:
        model: Gets a generation config of its own, since models may share one.
        old_lengths: Tokens; what its `max_length` says if it means the full length.
        target: Tokens.

    Returns:
        The old and the new generation config, or None where nothing had to change.
    """
    old: Any = getattr(model, "generation_config", None)
    length = getattr(old, "max_length", None)
    if length not in old_lengths or length >= target:
        return None
    new = copy.deepcopy(old)
    new.max_length = target
    model.generation_config = new
    return old, new
