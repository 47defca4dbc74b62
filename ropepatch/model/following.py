"""Keeps frequencies and cached keys in step with the length, one forward at a time.

A follower sits on the text model as two hooks. Before a forward it finds which regime each row
of the batch is in, turns the cached keys if that is a new one, and reads an input that crosses
from one regime into the next in pieces. So every token is read under the regime of its own place,
however the text arrives.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from ropepatch.errors import CacheError
from ropepatch.model.frames import (
    FRAMES,
    PINS,
    Frame,
    checked_length,
    flat,
    narrow,
    positions_of,
    push,
    wide,
)
from ropepatch.model.key_cache import KeyState, attach, own
from ropepatch.model.key_turning import KeyPlace, turn_again
from ropepatch.model.pieces import (
    Piece,
    cache_of_output,
    join,
    parameters_of,
    piece_of,
    unjoinable,
)
from ropepatch.model.regimes import Regimes
from ropepatch.model.rotary import Varying


class Follower:
    """What watches the length for one patched model."""

    def __init__(
        self,
        owner: str,
        regimes: Regimes,
        places: Mapping[str, KeyPlace],
        why_not: str | None,
    ) -> None:
        """Follow the length of one model's inputs.

        Args:
            owner: Names the patch; caches that it fills carry the name.
            regimes: Where frequencies change.
            places: By label, how cached keys are kept.
            why_not: Why an input cannot be read in pieces, if so.
        """
        self.owner = owner
        self.regimes = regimes
        self.why_not = why_not
        self.places = dict(places)
        self.varying: list[Varying] = []
        """One per rotary module; they turn alike."""
        self.pins: list[tuple[object, int]] = []
        self.static_state = KeyState(owner)
        """Of every cache, where there is nothing to remember of one."""

    @property
    def is_static(self) -> bool:
        """Whether the frequencies never change."""
        return self.regimes.changes == "never"

    @contextmanager
    def pinned(self, length: int) -> Iterator[None]:
        """Hold the regime of `length` for every forward, in every thread, until the block ends."""
        pin = (object(), checked_length(length))
        self.pins.append(pin)
        try:
            yield
        finally:  # blocks of several threads need not end in order
            self.pins.remove(pin)

    @contextmanager
    def pinned_here(self, length: int) -> Iterator[None]:
        """The same for what this thread does within the block."""
        before = PINS.get()
        token = PINS.set((*before, (self, checked_length(length))))
        try:
            yield
        finally:
            PINS.reset(token)

    def pin(self) -> int | None:
        """The regime of the pinned length, the innermost first."""
        here = (length for one, length in reversed(PINS.get()) if one is self)
        length = next(here, self.pins[-1][1] if self.pins else None)
        return None if length is None else self.regimes.pinned(length)

    def regimes_now(self, position_ids: torch.Tensor) -> tuple[int, ...]:
        """By row, what a rotary module is to turn by; outside a forward, by its own positions."""
        for frame in reversed(FRAMES.get()):
            if frame.follower is self and frame.positions.shape[-1] == position_ids.shape[-1]:
                return frame.regimes  # of another width, it was left behind by an interrupt
        pin = self.pin()
        return (pin,) if pin is not None else self._rows(flat(position_ids).amax(-1, keepdim=True))

    def before(self, module: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
        """Forward pre-hook of the text model.

        Raises:
            CacheError: the cache holds keys of another rotation.
        """
        if torch.compiler.is_compiling() and self.is_static:
            return None
        return self._before(module, args, words)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before(self, module: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
        names = parameters_of(module.__class__)
        given = dict(zip(names, args, strict=False)) | words
        key = "cache" if "cache" in names and "past_key_values" not in given else "past_key_values"
        cache = given.get(key)
        if cache is not None and not hasattr(cache, "get_seq_length"):
            self._refuse_without_lengths(cache)
            cache = None
        state = (
            own(cache, self.owner, following=not self.is_static)
            if cache is not None
            else KeyState(self.owner)
        )
        if self.is_static:
            push(Frame(self, (self.regimes.target,), state, torch.empty(0)))
            return None
        seen = int(cache.get_seq_length()) if cache is not None else 0
        state.crop(seen)
        if state.total != seen:
            raise CacheError(
                f"the cache holds {seen} tokens, {state.total} of them read under this patch; "
                "start with an empty cache."
            )
        positions = positions_of(given, seen)
        if positions is None:  # neither ids nor embeddings: the model will say so
            push(Frame(self, (self.regimes.trained,), state, torch.empty(0)))
            return None
        pieces = self._pieces(flat(positions), given)
        frame = Frame(self, pieces[-1].regimes, state, positions[..., pieces[-1].start :])
        if len(pieces) > 1:
            given = self._read_all_but_last(module, given, key, positions, pieces, frame)
            cache = given[key]
            frame.state = own(cache, self.owner, following=not self.is_static)
        self._enter(cache, frame)
        push(frame)
        return ((), given) if len(pieces) > 1 else None

    def after(self, module: Any, args: tuple[Any, ...], words: dict[str, Any], output: Any) -> Any:
        """Forward hook of the text model; called even where the forward failed."""
        if torch.compiler.is_compiling() and self.is_static:
            cache = cache_of_output(output)
            if cache is not None:
                attach(cache, self.static_state, following=False)
            return None
        return self._after(output)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _after(self, output: Any) -> Any:
        frames = FRAMES.get()
        if not frames or frames[-1].follower is not self:
            return None
        FRAMES.set(frames[:-1])
        frame = frames[-1]
        cache = cache_of_output(output)
        if output is None:
            return None
        if not self.is_static and frame.positions.numel():
            frame.state.add(frame.positions.detach())
            frame.state.regimes = frame.regimes
        if cache is not None:
            attach(cache, frame.state, following=not self.is_static)
        return join(frame.earlier, output, drop_cache=frame.borrowed) if frame.earlier else None

    def _enter(self, cache: Any, frame: Frame) -> None:
        """Turn what lies in the cache to the regimes of this forward."""
        state = frame.state
        if cache is None or not state.total:
            return
        rows = max(len(state.regimes), len(frame.regimes))
        old, new = wide(state.regimes, rows), wide(frame.regimes, rows)
        if old == new:
            return
        self._refuse_pieces()
        if getattr(cache, "offloading", False) and torch.cuda.is_available():
            torch.cuda.synchronize()  # a layer may be on its way between devices
        for label, turn in {k: v.turn for v in self.varying for k in v.labels}.items():
            turns = [(turn(label, a), turn(label, b)) for a, b in zip(old, new, strict=True)]
            turn_again(cache, self.places[label], state.all_positions(), turns)
        state.regimes = frame.regimes

    def _pieces(self, positions: torch.Tensor, given: Mapping[str, Any]) -> list[Piece]:
        """Runs of tokens that are in one regime, row by row."""
        count = positions.shape[-1]
        pin = self.pin()
        if pin is not None:
            return [Piece(0, count, (pin,))]
        if count == 1:
            return [Piece(0, 1, self._rows(positions))]
        low, high = torch.stack((positions.min(), positions.max())).tolist()
        if self.regimes.at(low + 1) == (regime := self.regimes.at(high + 1)):
            return [Piece(0, count, (regime,))]
        self._refuse_pieces()
        ends = self.regimes.ends(high + 1)
        places = torch.bucketize(
            (positions + 1).contiguous(), torch.tensor(ends, device=positions.device)
        ).clamp(max=len(ends) - 1)  # what changes once has no end
        changes = (places[:, 1:] != places[:, :-1]).any(0).nonzero()[:, 0] + 1
        starts = [0, *changes.tolist()]
        if given.get("attention_mask") is None and bool(
            (positions[:, 1:] < positions[:, :-1]).any()
        ):
            raise CacheError(
                "several texts packed into one row cross a change of the frequencies, which "
                "cannot be read in pieces; pin the length: `with patch.pinned(LENGTH):`."
            )
        regimes = [tuple(ends[i] for i in places[:, start].tolist()) for start in starts]
        return [
            Piece(start, stop, narrow(regime))
            for start, stop, regime in zip(starts, [*starts[1:], count], regimes, strict=True)
        ]

    def _read_all_but_last(
        self,
        module: Any,
        given: dict[str, Any],
        key: str,
        positions: torch.Tensor,
        pieces: list[Piece],
        frame: Frame,
    ) -> dict[str, Any]:
        """Read the earlier pieces; what to read the last one with."""
        if module.training and getattr(module, "gradient_checkpointing", False):
            raise CacheError(
                "gradient checkpointing keeps no cache, so an input that crosses a change of the "
                "frequencies cannot be read in pieces; pin the length: "
                "`with patch.pinned(LENGTH):`."
            )
        for name in ("output_attentions", "output_router_logits"):
            asked = given.get(name)
            if getattr(module.config, name, False) if asked is None else asked:
                raise unjoinable(name)
        total = pieces[-1].stop
        seen = frame.state.total
        config = getattr(module.config, "use_cache", True)
        wanted = config if given.get("use_cache") is None else given["use_cache"]
        frame.borrowed = given.get(key) is None and not wanted
        given = given | {"use_cache": True}
        if "position_ids" in parameters_of(module.__class__):
            given["position_ids"] = positions
        for piece in pieces[:-1]:
            words = piece_of(given, piece, total, seen) | {"return_dict": True}
            output = module(**words)
            if given.get(key) is None and cache_of_output(output) is None:
                words[key] = DynamicCache(config=module.config)  # it makes none itself
                output = module(**words)
            frame.earlier.append(output)
            given[key] = cache_of_output(output) or words.get(key)
        return piece_of(given, pieces[-1], total, seen)

    def _refuse_without_lengths(self, cache: Any) -> None:
        """A cache that does not tell what it holds (paged ones) serves where nothing changes.

        Raises:
            CacheError: the frequencies follow the length and no length is pinned.
        """
        if not self.is_static and self.pin() is None:
            raise CacheError(
                f"{type(cache).__name__} does not tell which tokens it holds, so its keys cannot "
                "follow a change of the frequencies; pin the length: `with patch.pinned(LENGTH):`."
            )

    def _refuse_pieces(self) -> None:
        if self.why_not is not None:
            raise CacheError(
                f"this text crosses a change of the frequencies, and {self.why_not}; pin the "
                "length: `with patch.pinned(LENGTH):`."
            )

    def _rows(self, last: torch.Tensor) -> tuple[int, ...]:
        """Regimes by row from the last position of each, (rows, 1)."""
        return narrow(tuple(self.regimes.at(int(p) + 1) for p in last[:, 0].tolist()))
