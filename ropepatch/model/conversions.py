"""One conversion of a live model: made, read back and undone."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

import torch
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

from ropepatch.config_json.convert import convert_config
from ropepatch.config_json.encodings import ConversionPlan
from ropepatch.config_json.plan import STAMP, writable_text
from ropepatch.errors import PatchConflictError, RecipeError, UnsupportedModelError
from ropepatch.model.encoding_proof import ConversionProof, prove_conversion
from ropepatch.model.following import Follower
from ropepatch.model.generating import raised_generation
from ropepatch.model.live_config import ConfigSwap
from ropepatch.model.regimes import Regimes
from ropepatch.model.sites import Site, find_sites, text_model_of
from ropepatch.runtime.attention import IMPLEMENTATIONS
from ropepatch.runtime.classes import Installed, kernel_for
from ropepatch.runtime.made import base_names, converted_config, converted_model, plain_class

CONVERSION = "_ropepatch_conversion"
"""Attribute of a converted model."""

Kernel = Literal["auto", "channels", "mask", "flex", "flash"]


class Conversion:
    """A conversion of one live model, as long as it stands. Also a context manager.

    Example:
        >>> with ropepatch.convert(model, to="alibi"):  # doctest: +SKIP
        ...     train(model)
    """

    def __init__(
        self, outer: torch.nn.Module, root: PreTrainedModel, plan: ConversionPlan, kernel: str
    ) -> None:
        """Prepare everything; nothing of the model changes before `apply`.

        Raises:
            UnsupportedModelError: its class is not one of transformers.
        """
        self.outer, self.model, self.plan = outer, root, plan
        self.asked_kernel = kernel
        self.active = False
        self._installed: Installed | None = None
        self.hooks: list[Any] = []
        self.name: str | None = None
        self.generation: tuple[Any, Any] | None = None
        self.plain_class = type(root)
        names = base_names(type(root.config), type(root))
        after = convert_config(plan, names)
        text = writable_text(after, plan.path)
        values = {plan.length_key: text[plan.length_key]} if plan.recipe.factor > 1 else {}
        self.swap = ConfigSwap(root, plan.path, values, after[STAMP] | {"kernel": kernel})
        self.converted_class = converted_model(
            plain_class(type(root)), converted_config(plain_class(type(root.config)))
        )
        if self.converted_class.__mro__[2] is not type(root):
            raise UnsupportedModelError(
                f"{type(root).__name__} is a class of its own, not one of transformers, so what "
                "was converted could not be saved; convert a model of the class it derives from."
            )

    def apply(self) -> Self:
        """Make the change, or leave everything as it was.

        Raises:
            UnsupportedModelError: its attentions cannot take it.
        """
        try:
            self._put_in()
        except BaseException as error:
            self._take_out()
            if isinstance(error, ValueError):
                raise UnsupportedModelError(str(error)) from None
            raise
        self.active = True
        return self

    def _put_in(self) -> None:
        self.swap.apply(self.outer)
        config: Any = self.swap.config
        config.__class__ = self.converted_class.config_class
        self._installed = Installed(self.model, config)
        self.model.__class__ = self.converted_class
        self.model.__dict__["ropepatch_installed"] = self.installed
        self.name = self.model.__dict__.get("name_or_path")
        if self.name:  # an adapter that is trained on it must not find the original
            renamed = f"{self.name} (converted to {self.plan.recipe.to}; save this model first)"
            self.model.__dict__["name_or_path"] = renamed
        self.generation = raised_generation(
            self.model, {self.plan.trained_length}, self.plan.target_length
        )
        self.hooks = self._watch_caches()
        self.model.__dict__[CONVERSION] = self

    def _watch_caches(self) -> list[Any]:
        """Refuse caches whose keys were made before the conversion."""
        tree = dict(self.model.named_modules())
        try:
            sites: tuple[Site, ...] = find_sites(tree, self.installed.text)
        except UnsupportedModelError:  # one with biases of its own
            return []
        text_model = text_model_of(tree, sites)
        length = self.plan.target_length
        follower = Follower(repr(self.plan.recipe), Regimes("never", length, length), {}, None)
        return [
            text_model.register_forward_pre_hook(follower.before, with_kwargs=True),
            text_model.register_forward_hook(follower.after, with_kwargs=True, always_call=True),
        ]

    @property
    def installed(self) -> Installed:
        """What was put into the model.

        Raises:
            PatchConflictError: it was reverted.
        """
        if self._installed is None:
            raise PatchConflictError("this conversion was reverted; nothing of it is left.")
        return self._installed

    @property
    def kernel(self) -> str | None:
        """What computes the biases: channels, mask, flex or flash; None without any."""
        return self.installed.kernel

    @property
    def advice(self) -> tuple[str, ...]:
        """What may surprise."""
        return self.plan.advice

    def describe(self) -> ConversionProof:
        """What runs in each layer, and how exact the biases are: the proof of effect.

        Raises:
            PatchConflictError: it was reverted.
            VerificationError: the biases are not what they should be.
        """
        return prove_conversion(self.model, self.installed, self.plan)

    def revert(self) -> None:
        """Put the very class, attention and config back; twice does nothing."""
        if not self.active:
            return
        self._take_out()
        self.active = False

    def _take_out(self) -> None:
        """What has been put in so far."""
        for hook in self.hooks:
            hook.remove()
        if self.generation is not None and self.model.generation_config is self.generation[1]:
            self.model.generation_config = self.generation[0]
        if self._installed is not None:
            self._installed.revert()
            self._installed = None
        self.model.__class__ = self.plain_class
        if self.name is not None:
            self.model.__dict__["name_or_path"] = self.name
        self.model.__dict__.pop("ropepatch_installed", None)
        self.model.__dict__.pop(CONVERSION, None)
        self.swap.revert()

    def __enter__(self) -> Self:
        """The conversion itself.

        Raises:
            PatchConflictError: it was reverted.
        """
        if not self.active:
            raise PatchConflictError("this conversion was reverted; call ropepatch.convert again.")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Revert."""
        self.revert()

    def __repr__(self) -> str:
        """One line."""
        state = "" if self.active else " (reverted)"
        return f"<Conversion of {self.plain_class.__name__} to {self.plan.recipe.to}{state}>"


def conversion_of(model: Any) -> Conversion | None:
    """The conversion that a model carries, or None."""
    found = model.__dict__.get(CONVERSION)
    return found if isinstance(found, Conversion) else None


def checked_kernel(kernel: Any) -> str:
    """A kernel by our word or transformers'.

    Raises:
        RecipeError: nothing computes linear biases by it.
    """
    if kernel == "auto":
        return "auto"
    try:
        found = kernel_for(kernel)
    except ValueError:
        raise RecipeError(
            f"kernel is auto, {', '.join(IMPLEMENTATIONS)}, not {kernel!r}."
        ) from None
    if found == "flash" and not is_flash_attn_2_available():
        raise RecipeError("kernel 'flash' needs the package flash-attn and a GPU; use 'channels'.")
    return found


def undo_loaded(model: PreTrainedModel, stamp: Mapping[str, Any]) -> None:
    """Take the conversion out of a model that was loaded as a converted one.

    Its classes may be those of the file beside the weights, so they are known by what they hold.
    """
    here: Any = model
    here.ropepatch_installed.revert()
    text: Any = here.config
    for key in stamp["path"]:
        text = getattr(text, key)
    for key, value in stamp["before"].items():
        setattr(text, key, getattr(type(text)(), key, None) if value is None else value)
    here.config.architectures = stamp["base"]["architectures"]
    for name in (STAMP, "auto_map"):
        here.config.__dict__.pop(name, None)
    here.config.__class__ = type(here.config).__mro__[2]
    for module in list(here.modules()):
        if module.__dict__.pop("ropepatch_installed", None) is not None:
            module.__class__ = type(module).__mro__[2]
