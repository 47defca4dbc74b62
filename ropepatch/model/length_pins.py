"""Holds a model to the frequencies of one length, whether we patched it or transformers scales it.

Stock dynamic NTK and LongRoPE look at the longest position of each call, so a text read in chunks
is read by another model than in one pass, and what was read before decides about what comes next.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from ropepatch.errors import RopepatchError
from ropepatch.model.patching import patch_of
from ropepatch.model.sites import Site, find_sites

_FOLLOWING = ("dynamic", "longrope")


def length_pin(model: Any) -> Callable[[int], AbstractContextManager[Any]] | None:
    """What pins a model to a length; None where its frequencies do not follow the length.

    Args:
        model: Of transformers, patched or not.
    """
    patch = patch_of(model)
    if patch is not None:
        return None if patch.follower.is_static else patch.pinned
    sites = [site for site in _sites(model) if _follows(site.module)]
    if not sites:
        return None

    @contextmanager
    def pinned(length: int) -> Iterator[None]:
        with ExitStack() as stack:
            for site in sites:
                stack.enter_context(_stock_pinned(site.module, length))
            yield

    return pinned


def _sites(model: Any) -> tuple[Site, ...]:
    tree = dict(model.named_modules())
    config = model.config
    try:
        return find_sites(tree, config.get_text_config(decoder=True))
    except RopepatchError:
        return ()  # nothing turns (ALiBi, no positions, converted layers)


def _follows(module: torch.nn.Module) -> bool:
    kinds = getattr(module, "rope_type", None)
    found = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any(isinstance(kind, str) and kind in _FOLLOWING for kind in found)


@contextmanager
def _stock_pinned(module: Any, length: int) -> Iterator[None]:
    """A stock rotary module that is shown one more position, the last of the text, in each call."""
    stock, own = module.forward, module.__dict__.get("forward")  # accelerate puts one there too

    def forward(x: torch.Tensor, position_ids: torch.Tensor, *args: Any, **words: Any) -> Any:
        last = torch.full_like(position_ids[..., :1], length - 1)
        made = stock(x, torch.cat([position_ids, last], dim=-1), *args, **words)
        if isinstance(made, tuple):
            return tuple(part[..., :-1, :] for part in made)
        return made[..., :-1, :]

    _forget(module)
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own
        _forget(module)


def _forget(module: Any) -> None:
    """Let the next call choose anew; the dynamic type keeps the frequencies of longer texts."""
    for name in list(vars(module)):
        if name.endswith("max_seq_len_cached"):
            setattr(module, name, 0)
