"""`generate` on a patched model: the length is pinned where cached keys could not follow it."""

from functools import partial
from typing import Any

from transformers import PreTrainedModel
from transformers.cache_utils import BaseQuantizedLayer

from ropepatch.model.following import Follower


class Generating:
    """Stands before the `generate` of one model instance."""

    def __init__(self, model: PreTrainedModel, follower: Follower) -> None:
        """Prepare; `apply` puts it there."""
        self.model = model
        self.follower = follower
        self.earlier: Any = None
        """What the instance had of its own (models with a generation of their own do)."""

    def apply(self) -> None:
        """Let the instance call this first."""
        self.earlier = self.model.__dict__.get("generate")
        self.model.__dict__["generate"] = self.generate

    def revert(self) -> None:
        """Put back what was there, unless somebody has put another there since."""
        own = self.model.__dict__.get("generate")
        if getattr(own, "__self__", None) is not self:
            return
        if self.earlier is None:
            del self.model.__dict__["generate"]
        else:
            self.model.__dict__["generate"] = self.earlier

    def generate(self, *args: Any, **words: Any) -> Any:
        """As the model's own, under a pinned length where its cache needs one."""
        model: Any = self.model
        whole = self.earlier or partial(type(model).generate, model)
        length = known_length(model, args, words) if self._needs_pin(words) else None
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


def known_length(model: Any, args: tuple[Any, ...], words: dict[str, Any]) -> int | None:
    """Tokens at which a generation ends at the latest, if it says so."""
    config = words.get("generation_config") or model.generation_config
    prompt: Any = args[0] if args else None
    for name in ("inputs", "input_ids", "inputs_embeds"):
        prompt = words.get(name) if prompt is None else prompt
    count = int(prompt.shape[1]) if hasattr(prompt, "shape") and len(prompt.shape) > 1 else 0
    new = words.get("max_new_tokens", getattr(config, "max_new_tokens", None))
    if new is not None:
        return count + int(new)
    most = words.get("max_length", getattr(config, "max_length", None))
    return None if most is None else max(int(most), count + 1)
