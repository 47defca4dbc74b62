"""One change of a live model: made, read back, pinned and undone."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch
from transformers import PreTrainedModel

from ropepatch.config_json.plan import STAMP
from ropepatch.config_json.write import Change
from ropepatch.errors import NotExpressibleError, PatchConflictError, VerificationError
from ropepatch.model.describing import Description, describe
from ropepatch.model.following import Follower
from ropepatch.model.generating import Generating, raised_generation
from ropepatch.model.key_places import key_places
from ropepatch.model.live_config import ConfigSwap, new_positions, text_config_of
from ropepatch.model.making import TurnMaker
from ropepatch.model.regimes import Regimes
from ropepatch.model.rotary import PatchedRotaryEmbedding, Varying
from ropepatch.model.sites import (
    Site,
    find_sites,
    softmax_scales,
    text_model_of,
)
from ropepatch.recipe import Recipe

HANDLE = "_ropepatch_patch"
"""Attribute of a patched model."""


class Patch:
    """A change of one live model, as long as it stands. Also a context manager.

    Example:
        >>> with ropepatch.patch(model, "yarn", factor=8):  # doctest: +SKIP
        ...     model.generate(**inputs)
    """

    def __init__(
        self, outer: torch.nn.Module, root: PreTrainedModel, asked: Recipe, change: Change
    ) -> None:
        """Prepare everything; nothing of the model changes before `apply`."""
        self.outer = outer
        """What was handed over: the model itself, or what wraps it."""
        self.model = root
        self.recipe = asked
        """As it was asked for."""
        self.change = change
        """What it means for this model."""
        self.active = False
        self.depth = 0
        """`with` blocks that it is in."""
        self.successor: Patch | None = None
        """What has replaced it."""
        self.standing = False
        """Whether it stood outside of any block when it was asked for again."""
        layout, methods = change.layout, change.methods
        self.swap = ConfigSwap(root, layout.path, new_positions(change), change.after[STAMP])
        self.text_config = text_config_of(root.config, layout.path)
        tree = dict(root.named_modules())
        self.sites = find_sites(tree, self.text_config)
        self.text_model = text_model_of(tree, self.sites)
        some = next(iter(methods.values()))
        regimes = Regimes.of(
            some,
            layout.trained_length,
            change.target_length,
            exact=asked.short_exact,
            growth=asked.growth,
        )
        labels = tuple(methods)
        words = (change.recipe.to_dict(), sorted(layout.schedules), layout.trained_length)
        self.follower = Follower(repr(words), regimes, {}, layout.family.row.one_pass)
        self.scale_ratio = _scale_ratio(change, regimes)
        self.modules = [self._module(site, labels) for site in self.sites]
        if not self.follower.is_static:
            some_layout = self.modules[0].layout
            self.follower.places = dict(
                key_places(
                    self.text_model,
                    layout,
                    labels,
                    self.sites[0].module,
                    is_complex=some_layout == "complex",
                )
            )

    def _module(self, site: Site, labels: tuple[str, ...]) -> PatchedRotaryEmbedding:
        change, regimes = self.change, self.follower.regimes
        make = TurnMaker(
            site.module,
            site.labels,
            change.layout.schedules,
            change.methods,
            exact=self.recipe.short_exact,
        )
        changed = tuple(label for label in site.labels if label in labels)
        fixed = {k: make.unchanged(k) for k in site.labels if k not in changed}
        if self.follower.is_static:
            fixed |= {label: make(label, regimes.target) for label in changed}
            return PatchedRotaryEmbedding(site.module, fixed, None)
        varying = Varying(changed, self.follower, make)
        for label in changed:
            varying.turn(label, regimes.trained)
        if changed:
            self.follower.varying.append(varying)
        return PatchedRotaryEmbedding(site.module, fixed, varying if changed else None)

    def apply(self) -> Self:
        """Make the change."""
        self.swap.apply(self.outer)
        self.scales = []
        if self.scale_ratio != 1:
            self.scales = list(softmax_scales(self.text_model))
            for attention, scale in self.scales:
                attention.__dict__["scaling"] = scale * self.scale_ratio
        for site, module in zip(self.sites, self.modules, strict=True):
            module.training = site.module.training
            site.put(module)
        self.hooks = [
            self.text_model.register_forward_pre_hook(self.follower.before, with_kwargs=True),
            self.text_model.register_forward_hook(
                self.follower.after, with_kwargs=True, always_call=True
            ),
        ]
        old_lengths = {self.change.layout.configured_length, self.trained_length}
        self.generation = raised_generation(self.model, old_lengths, self.target_length)
        self.generating = None
        if not self.follower.is_static and callable(getattr(self.model, "generate", None)):
            self.generating = Generating(self.model, self.follower)
            self.generating.apply()
        for model in (self.model, self.text_model):
            model.__dict__[HANDLE] = self
        self.active = True
        return self

    @property
    def live_only(self) -> str | None:
        """Why plain transformers could not do the same from a saved checkpoint; None if it can."""
        return self.change.live_only

    @property
    def target_length(self) -> int:
        """Tokens the change is meant for."""
        return self.change.target_length

    @property
    def trained_length(self) -> int:
        """Tokens the model was trained on."""
        return self.change.layout.trained_length

    @property
    def advice(self) -> tuple[str, ...]:
        """What may surprise."""
        notes = list(self.change.advice)
        dtypes = {b.dtype for site in self.sites for b in site.module.buffers()}
        if dtypes - {torch.float32, torch.float64}:
            notes.append(
                "the model was cast to 16 bits, which had blurred its frequencies; the patch turns "
                "by exact ones, so logits differ from the cast model's at any length."
            )
        if self.recipe.short_exact and self.change.layout.scaled:
            notes.append(
                "short_exact keeps the pretrained frequencies, not those of the scaling that this "
                "model carried before."
            )
        if self.model.base_model is self.model:
            notes.append(
                f"{type(self.model).__name__} is a model without a head; if it is a part of "
                "another, patch that one, or its save_pretrained will not know of the patch."
            )
        return tuple(notes)

    @contextmanager
    def pinned(self, length: int) -> Iterator[Self]:
        """Read everything within the block by the frequencies of one length.

        For texts whose final length is known: nothing changes on the way, so cached keys are
        never turned again, and one pass equals plain transformers at exactly that length. It
        holds in every thread. Frequencies that do not follow the length stay as they are.

        Args:
            length: Tokens.

        Raises:
            RecipeError: not a positive whole number.
            PatchConflictError: the patch was reverted.
        """
        if not self.active:
            raise PatchConflictError("this patch was reverted; there is nothing to pin.")
        with self.follower.pinned(length):
            yield self

    def describe(self) -> Description:
        """What the model really turns by, read back from its modules: the proof of effect.

        Raises:
            PatchConflictError: the patch was reverted.
            VerificationError: the model turns by other numbers than the method's.
        """
        if not self.active:
            raise PatchConflictError("this patch was reverted; there is nothing to describe.")
        for site, module in zip(self.sites, self.modules, strict=True):
            if not site.holds(module):
                raise VerificationError(
                    "somebody has put another rotary module into the model since it was patched, "
                    "so the patch is not in force; revert it and patch again."
                )
        return describe(self.model, self.change, self.modules, self.follower, self.scale_ratio)

    def revert(self) -> None:
        """Put the very modules, numbers and config values back; twice does nothing."""
        if not self.active:
            return
        if self.generating is not None:
            self.generating.revert()
        for hook in self.hooks:
            hook.remove()
        if self.generation is not None and self.model.generation_config is self.generation[1]:
            self.model.generation_config = self.generation[0]
        for attention, scale in self.scales:
            attention.__dict__["scaling"] = scale
        self.swap.revert()
        for site, module in zip(self.sites, self.modules, strict=True):
            site.put_back(module.device, training=module.training)
        for model in (self.model, self.text_model):
            model.__dict__.pop(HANDLE, None)
        self.active = False
        self.depth, self.standing = 0, False

    def __enter__(self) -> Self:
        """The patch itself.

        Raises:
            PatchConflictError: it was reverted; ask `patch` for a new one.
        """
        if not self.active:
            raise PatchConflictError("this patch was reverted; call ropepatch.patch again.")
        self.depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Revert, unless an outer block holds it or it stood before this one.

        What has taken its place within the block goes with it.
        """
        self.depth -= 1
        if self.depth < 1 and not self.standing:
            (self.successor or self).revert()

    def __repr__(self) -> str:
        """One line."""
        state = "" if self.active else " (reverted)"
        return (
            f"<Patch {self.change.recipe.method} of {type(self.model).__name__}: "
            f"{self.trained_length:,} to {self.target_length:,} tokens{state}>"
        )


def _scale_ratio(change: Change, regimes: Regimes) -> float:
    """New over old softmax scale of MLA attention; 1 elsewhere.

    Raises:
        NotExpressibleError: it would have to follow the length, which one number cannot.
    """
    if not change.layout.family.row.softmax_mscale:
        return 1.0
    ratios = set()
    for label, method in change.methods.items():
        was = change.layout.schedules[label].method
        ratios.add(method.softmax_mscale / (was.softmax_mscale if was else 1.0))
        follows = method.name == "dynamic-yarn" or (
            change.recipe.short_exact and method.softmax_mscale != 1
        )
        if follows and regimes.changes != "never":
            raise NotExpressibleError(
                f"'{change.layout.family.model_type}' puts YaRN's temperature on its softmax "
                "scale, one number for all lengths, so it cannot follow the length; use yarn "
                "without short_exact, or dynamic-ntk."
            )
    if len(ratios) != 1:
        raise NotExpressibleError("its schedules ask for different softmax scales.")
    return ratios.pop()
