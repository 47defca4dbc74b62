"""The classes of a converted model: the model's own, with other attention put into it."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ropepatch.runtime.attention import (
    BLOCKS,
    DENSE,
    IMPLEMENTATIONS,
    STATE,
    UNBUILT,
    VARLEN,
    Alibi,
)
from ropepatch.runtime.native import Scaled, rename_as
from ropepatch.runtime.words import MODULE, STAMP, in_memory, on_disk

_ASKED = {"eager": "mask", "sdpa": "channels", "flex_attention": "flex"}
"""Kernels by the attention implementation that somebody asks for."""
_OURS = {DENSE: "channels", BLOCKS: "flex", VARLEN: "flash"}


class Still:
    """Forward hook of an attention or its rotary module: every token stands at position 0."""

    def __init__(self, factor: float, place: int | None, *, biased: bool) -> None:
        """Keep the attention factor.

        Args:
            factor: Multiplies cos and sin.
            place: Of `position_embeddings` among the arguments.
            biased: Whether the attention must run through one of ours.
        """
        self.factor, self.place, self.biased = factor, place, biased

    def __call__(self, module: Any, args: Any, words: dict[str, Any]) -> Any:
        """Before an attention."""
        if self.biased and module.config._attn_implementation not in IMPLEMENTATIONS.values():
            raise RuntimeError(
                f"attn_implementation is '{module.config._attn_implementation}', under which this "
                "converted model would lose its linear biases; use model.set_attn_implementation."
            )
        if "position_embeddings" in words:
            found = self.still(words["position_embeddings"])
            return args, words | {"position_embeddings": found}
        if self.place is not None and len(args) > self.place:
            found = self.still(args[self.place])
            return (*args[: self.place], found, *args[self.place + 1 :]), words
        return None

    def after(self, module: Any, args: Any, output: Any) -> Any:
        """After a rotary module."""
        return self.still(output)

    def still(self, given: Any) -> Any:
        """Cos and sin of position 0, in whatever form they come."""
        if given is None:  # of a layer that does not turn
            return None
        if torch.is_tensor(given):
            return given.new_full((1,) * given.ndim, self.factor).expand_as(given)
        cos, sin = given
        return self.still(cos), sin.new_zeros((1,) * sin.ndim).expand_as(sin)


def attentions(model: torch.nn.Module, text: Any) -> Iterator[tuple[torch.nn.Module, int | None]]:
    """The attentions of the text model that may turn, and the place of `position_embeddings`."""
    for module in model.modules():
        name = type(module).__name__
        if "Attention" not in name and not name.endswith("MLA"):
            continue
        if getattr(module, "config", None) is not text:
            continue
        parameters = list(inspect.signature(type(module).forward).parameters)
        if "position_embeddings" in parameters:
            yield module, parameters.index("position_embeddings") - 1
        elif rotary_within(module) is not None:
            yield module, None


def rotary_within(module: torch.nn.Module) -> torch.nn.Module | None:
    """The rotary module that an attention keeps for itself."""
    found = (child for child in module.children() if hasattr(child, "inv_freq"))
    return next(found, None)


class Installed:
    """What was put into a model, and how it comes out again."""

    def __init__(self, model: Any, config: Any) -> None:
        """Put into a model what the stamp of its config says; all or nothing."""
        stamp = getattr(config, STAMP)
        text = text_config_in(config, stamp)
        self.text, self.was = text, text._attn_implementation
        self.handles: list[Any] = []
        self.states: list[tuple[torch.nn.Module, Alibi]] = []
        self.kernel: str | None = None
        self.count = 0
        """Attentions that were changed."""
        try:
            self._put(model, text, stamp)
        except BaseException:
            self.revert()
            raise

    def _put(self, model: Any, text: Any, stamp: dict[str, Any]) -> None:
        scale = stamp["slopes"]["scale"]
        native: Any = stamp.get("native")
        for module in model.modules() if native else ():
            if type(module).__name__ in native["classes"]:
                hook = Scaled(native["arguments"], scale)
                self._hook(module.register_forward_pre_hook, hook, with_kwargs=True)
                self.count += 1
        biased, still = stamp["layers"]["alibi"], stamp["layers"]["nope"]
        seen = set()
        for module, place in attentions(model, text):
            is_biased = biased == "all" or module.layer_idx in biased
            if is_biased or still == "all" or module.layer_idx in still:
                self._convert(module, place, stamp, is_biased=is_biased)
                seen.add(module.layer_idx)
        missing = {layer for asked in (biased, still) if asked != "all" for layer in asked} - seen
        if missing or not (seen or self.handles):
            where = f"layer {min(missing)}" if missing else type(model).__name__
            raise ValueError(
                f"no attention was found in {where}; this model's layers cannot be told apart, "
                "or turn in a way that cannot be taken out."
            )
        if self.states:
            asked = stamp["kernel"]
            self.use(kernel_for(self.was) if asked == "auto" else asked)

    def _convert(
        self, module: torch.nn.Module, place: int | None, stamp: dict[str, Any], *, is_biased: bool
    ) -> None:
        config: Any = module.config
        both_ways = getattr(config, "is_causal", None) is False
        if is_biased and (both_ways or not getattr(module, "is_causal", True)):
            raise ValueError(
                f"{type(module).__name__} reads in both directions; linear biases are for models "
                "that read from left to right."
            )
        self.count += 1
        hook = Still(stamp["factor"], place, biased=is_biased)
        self._hook(module.register_forward_pre_hook, hook, with_kwargs=True)
        rotary = rotary_within(module) if place is None else None
        if rotary is not None:
            self._hook(rotary.register_forward_hook, hook.after)
        if is_biased:
            state = Alibi(**stamp["slopes"])
            module.add_module(STATE, state)
            self.states.append((module, state))

    def _hook(self, register: Callable[..., Any], hook: Any, **words: Any) -> None:
        self.handles.append(register(hook, **words))

    def use(self, kernel: str) -> None:
        """Compute by this kernel from now on: channels, mask, flex or flash."""
        for _, state in self.states:
            state.kernel = kernel
            if "flash" in str(self.was):
                state.flash = self.was
        self.text._attn_implementation_internal = IMPLEMENTATIONS[kernel]
        self.kernel = kernel

    def revert(self) -> None:
        """Take everything out again."""
        for handle in self.handles:
            handle.remove()
        for module, _ in self.states:
            module._modules.pop(STATE, None)
        if self.kernel is not None:
            own = self.was in IMPLEMENTATIONS.values()  # of a config that was used before
            self.text._attn_implementation_internal = "sdpa" if own else self.was


def text_config_in(config: Any, stamp: dict[str, Any]) -> Any:
    """The text part of a config object."""
    for key in stamp["path"]:
        config = getattr(config, key)
    return config


def kernel_for(implementation: Any) -> str:
    """What computes the biases where transformers was asked for this implementation.

    Raises:
        ValueError: nothing does.
    """
    name = str(implementation)
    name = _OURS.get(name, name)
    kernel = "flash" if name.startswith("flash_attention") else _ASKED.get(name, name)
    if kernel not in IMPLEMENTATIONS:
        raise ValueError(
            f"linear biases are computed by {', '.join(IMPLEMENTATIONS)}, or by transformers' "
            f"words for them (sdpa, eager, flex_attention, flash_attention_2), not by '{name}'."
        )
    return kernel


class ConvertedConfig:
    """In front of the config class of a model: how it is written and read."""

    def to_dict(self) -> dict[str, Any]:
        """The words of config.json, which nobody reads by mistake."""
        return on_disk(super().to_dict())  # type: ignore[misc]

    def save_pretrained(self, save_directory: Any, *args: Any, **words: Any) -> Any:
        """Also the Python file that loads the model where ropepatch is not installed."""
        found = super().save_pretrained(save_directory, *args, **words)  # type: ignore[misc]
        path = Path(save_directory) / f"{MODULE}.py"
        path.write_text(self.ropepatch_source(), encoding="utf-8")
        return found

    @classmethod
    def ropepatch_source(cls) -> str:
        """That file: the one this class was read from."""
        return Path(inspect.getfile(cls)).read_text(encoding="utf-8")

    @classmethod
    def get_config_dict(cls, *args: Any, **words: Any) -> Any:
        """As the model's own class reads it."""
        found, rest = super().get_config_dict(*args, **words)  # type: ignore[misc]
        return in_memory(found), rest

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **words: Any) -> Any:
        """From either form; until a converted class builds the model, none can run."""
        found: Any = super().from_dict(in_memory(config_dict), **words)  # type: ignore[misc]
        config = found[0] if isinstance(found, tuple) else found
        stamp = getattr(config, STAMP, None)
        if stamp is not None and "attn_implementation" not in words:
            text_config_in(config, stamp)._attn_implementation_internal = UNBUILT
        return found


class ConvertedModel:
    """In front of the class of a model: made as its config says, and saved so."""

    def __init_subclass__(cls, **words: Any) -> None:
        """Its weights are renamed as those of the class behind it."""
        super().__init_subclass__(**words)
        rename_as(cls.__name__, cls.__mro__[2].__name__)

    def __init__(self, config: Any, *args: Any, **words: Any) -> None:
        """Build the model, then put the other attention into it."""
        text = text_config_in(config, getattr(config, STAMP))
        if text._attn_implementation == UNBUILT:
            text._attn_implementation_internal = None  # the class chooses
        super().__init__(config, *args, **words)  # type: ignore[call-arg]
        me: Any = self
        inner = (m for m in me.modules() if m is not self and isinstance(m, ConvertedModel))
        done: Any = next(inner, None)  # heads of some tasks build the model by an auto class
        self.ropepatch_installed = done.ropepatch_installed if done else Installed(self, config)

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **words: Any) -> None:
        """Choose the kernel that computes the linear biases, in transformers' words or ours."""
        installed: Installed = self.__dict__["ropepatch_installed"]
        if installed.kernel is None:
            super().set_attn_implementation(attn_implementation, *args, **words)  # type: ignore[misc]
            return
        installed.use(kernel_for(attn_implementation))

    def save_pretrained(self, save_directory: Any, *args: Any, **words: Any) -> Any:
        """As a converted model, whatever its config has been replaced by.

        Raises:
            RuntimeError: its config no longer says that it is converted.
        """
        me: Any = self
        if not isinstance(me.config, ConvertedConfig):
            raise RuntimeError(
                f"the config of this {type(self).__name__} was replaced by a "
                f"{type(me.config).__name__}, so it would be saved as if it had never been "
                "converted; put the converted config back."
            )
        config: Any = me.config
        before = config.architectures
        try:
            return super().save_pretrained(save_directory, *args, **words)  # type: ignore[misc]
        finally:
            config.architectures = before
