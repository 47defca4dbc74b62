"""What is asked of an evaluation, checked before anything is loaded."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ropepatch.errors import EvaluationError, RecipeError
from ropepatch.recipe import parse_length

Protocol = Literal["independent", "shared"]
Scoring = Literal["auto", "likelihood", "generate"]
Chat = Literal["auto", "yes", "no"]
Bos = Literal["auto", "yes", "no"]

_MOST_DEPTHS = 1001


@dataclass(frozen=True)
class NeedlePlan:
    """A grid of needle tests.

    Raises:
        EvaluationError: a value is out of its range.
    """

    lengths: tuple[int, ...]
    """Tokens of prompt and answer together."""
    tasks: tuple[str, ...] = ("niah_single",)
    depths: tuple[float, ...] = tuple(float(d) for d in range(0, 101, 10))
    """Where the needle lies, in per cent of the haystack's tokens."""
    trials: int = 1
    """Per task, length and depth."""
    seed: int = 0
    protocol: Protocol = "independent"
    scoring: Scoring = "auto"
    chat: Chat = "auto"
    answer_tokens: int | None = None
    """Budget of the answer; without one, what the longest answer of the task needs."""

    def __post_init__(self) -> None:
        from ropepatch.evaluate.tasks.table import task_named

        for name in self.tasks:
            task = task_named(name)
            if self.protocol == "shared" and not task.shared:
                raise EvaluationError(
                    f"'{name}' has no key to ask by, so one text cannot hold a needle at every "
                    "depth; use niah_single or niah_multikey, or protocol 'independent'."
                )
        _check_lengths(self.lengths)
        if not self.tasks or len(set(self.tasks)) != len(self.tasks):
            raise EvaluationError("name each task once, and at least one.")
        if not self.depths or len(set(self.depths)) != len(self.depths):
            raise EvaluationError("name each depth once, and at least one.")
        for depth in self.depths:
            if not 0 <= depth <= 100:  # also what is no number
                raise EvaluationError(f"depth {depth:g} is not between 0 and 100 (per cent).")
        _check_count("trials", self.trials)
        _check_choice("protocol", self.protocol, Protocol)
        _check_choice("scoring", self.scoring, Scoring)
        _check_choice("chat", self.chat, Chat)
        if self.answer_tokens is not None:
            _check_count("answer_tokens", self.answer_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        return _plain(self)


@dataclass(frozen=True)
class PerplexityPlan:
    """How a text is read.

    Raises:
        EvaluationError: a value is out of its range.
    """

    lengths: tuple[int, ...]
    """Tokens read, shortest first; the longest is the window."""
    max_windows: int = 4
    """Windows of the longest length that are read, over all documents."""
    buckets: int = 16
    """Equal parts of the window, for the loss by place."""
    final_tokens: int | None = 256
    """Tokens at the window's end that are read again under each shorter context; None for none."""
    stride: int | None = None
    """Tokens that the sliding window moves by; None for no sliding window."""
    bos: Bos = "auto"
    """Whether each window begins with the beginning-of-sequence token; as the tokenizer does."""
    join: bool = False
    """Whether documents are joined into one text."""
    key_context: int | None = None
    """LongPPL: tokens of the short context; None leaves LongPPL out."""
    key_gain: float = 2.0
    """LongPPL: nats that a key token gains by the long context, at least."""
    key_loss: float = 2.0
    """LongPPL: nats that a key token may still cost under the long context, at most."""

    def __post_init__(self) -> None:
        _check_lengths(self.lengths)
        if tuple(sorted(self.lengths)) != self.lengths:
            object.__setattr__(self, "lengths", tuple(sorted(self.lengths)))
        _check_count("max_windows", self.max_windows)
        _check_count("buckets", self.buckets)
        _check_choice("bos", self.bos, Bos)
        shortest, longest = self.lengths[0], self.lengths[-1]
        if self.final_tokens is not None:
            _check_count("final_tokens", self.final_tokens)
            if self.final_tokens >= shortest:
                raise EvaluationError(
                    f"final_tokens {self.final_tokens:,} leave nothing to read before them in the "
                    f"shortest length, {shortest:,}."
                )
        if self.stride is not None:
            _check_count("stride", self.stride)
            if self.stride > shortest:
                raise EvaluationError(
                    f"a stride of {self.stride:,} skips tokens of the shortest length, "
                    f"{shortest:,}; take a stride of at most that."
                )
        if self.key_context is not None:
            _check_count("key_context", self.key_context)
            if self.key_context >= longest:
                raise EvaluationError(
                    f"LongPPL's short context ({self.key_context:,}) must be shorter than the "
                    f"longest length ({longest:,})."
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        return _plain(self)


def parse_lengths(text: str | Iterable[int | str]) -> tuple[int, ...]:
    """Tokens from '4k,8k,16384' (k = 1024).

    Raises:
        EvaluationError: one is no length.
    """
    parts = text.split(",") if isinstance(text, str) else list(text)
    try:
        return tuple(parse_length(p.strip() if isinstance(p, str) else p) for p in parts if p != "")
    except RecipeError as error:
        raise EvaluationError(f"lengths: {error}") from None


def parse_depths(text: str) -> tuple[float, ...]:
    """Per cents from '0:100:10' (both ends included) or '0,25,50'.

    Raises:
        EvaluationError: it is neither, or too many.
    """
    try:
        if ":" not in text:
            return tuple(float(part) for part in text.split(",") if part.strip())
        start, stop, step = (float(part) for part in text.split(":"))
    except ValueError:
        raise EvaluationError(
            f"depths {text!r}: write START:STOP:STEP as in 0:100:10, or a list as in 0,50,100."
        ) from None
    if not math.isfinite(start + stop + step):
        raise EvaluationError(f"depths {text!r}: write numbers from 0 to 100.")
    if step <= 0 or stop < start:
        raise EvaluationError(
            f"depths {text!r}: the step must be above 0, and the end not before the start."
        )
    count = math.floor((stop - start) / step + 1e-9) + 1
    if count > _MOST_DEPTHS:
        raise EvaluationError(f"depths {text!r} are {count:,}; take at most {_MOST_DEPTHS:,}.")
    return tuple(round(start + step * i, 6) for i in range(count))


def _check_lengths(lengths: Sequence[int]) -> None:
    if not lengths or len(set(lengths)) != len(lengths):
        raise EvaluationError("name each length once, and at least one.")
    for length in lengths:
        _check_count("a length", length)


def _check_count(word: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EvaluationError(f"{word} must be a whole number from 1, not {value!r}.")


def _check_choice(word: str, value: str, of: Any) -> None:
    known = of.__args__
    if value not in known:
        raise EvaluationError(f"{word} {value!r} is none of: {', '.join(known)}.")


def _plain(plan: Any) -> dict[str, Any]:
    words = asdict(plan)
    return {f.name: _listed(words[f.name]) for f in fields(plan)}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
