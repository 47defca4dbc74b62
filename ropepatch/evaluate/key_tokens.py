"""LongPPL's key tokens: those that a long context makes likely.

Fang et al., "What is Wrong with Perplexity for Long-context Language Modeling?", arXiv 2410.23771,
section 3: a token is key if the long context gains more than alpha nats over the short one
(long-short difference, equation 4) and its likelihood under the long context is above beta (long
context likelihood, equation 5); LongPPL is the perplexity over key tokens alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.head import LossReader
from ropepatch.evaluate.plan import PerplexityPlan
from ropepatch.evaluate.tokens import Tokens
from ropepatch.evaluate.windows import Window

_STRIDES = 4
"""Windows of the short context per length of it: a token sees between 1 and 1.25 times of it."""


@dataclass
class KeyJudge:
    """Chooses key tokens by the measured model, or by another one."""

    plan: PerplexityPlan
    tokens: Tokens
    """Of the measured model."""
    other: LossReader | None = None
    """Of the judge, if it is another model."""
    other_tokens: Tokens | None = None

    def __post_init__(self) -> None:
        assert self.plan.key_context is not None
        self.context: int = self.plan.key_context

    @property
    def step(self) -> int:
        """Tokens that are scored under one short context."""
        return max(self.context // _STRIDES, 1)

    @property
    def row(self) -> int:
        """Tokens read for them."""
        return self.context + self.step

    def rows(self, size: int) -> int:
        """How often, for a window of `size` tokens."""
        return max(-(-(size - self.context) // self.step), 0)

    def chosen(self, loss: LossReader, window: Window, by_place: np.ndarray) -> np.ndarray:
        """Which tokens of a window are key, (tokens,), bool.

        Args:
            loss: Of the measured model.
            window: The text.
            by_place: Its losses under the whole window, NaN where there are none.

        Raises:
            EvaluationError: the judge reads other tokens, and the texts cannot be laid side by
                side.
        """
        if self.other is None:
            return self._key(loss, window.ids, window.leading, by_place)
        assert self.other_tokens is not None
        if _same(self.tokens, self.other_tokens):
            whole = _losses(self.other, window.ids, max(window.leading, 1))
            return self._key(self.other, window.ids, window.leading, whole)
        text = self.tokens.exactly(window.ids[window.leading :].tolist())
        lead = self.other_tokens.leading()
        theirs, spans = _spans(self.other_tokens, text)
        ids = np.asarray([*lead, *theirs], np.int32)
        whole = _losses(self.other, ids, max(len(lead), 1))
        key = self._key(self.other, ids, len(lead), whole)[len(lead) :]
        marked = np.zeros(len(text), bool)
        for (a, b), is_key in zip(spans, key, strict=True):
            marked[a:b] |= bool(is_key)
        own, own_spans = _spans(self.tokens, text)
        if list(own) != list(window.ids[window.leading :]):
            raise EvaluationError(
                "the text does not tokenise to the same tokens twice, so the judge's choice cannot "
                "be carried over; use a judge with the same tokenizer, or none."
            )
        found = [bool(marked[a:b].any()) for a, b in own_spans]
        return np.asarray([False] * window.leading + found)

    def _key(self, loss: LossReader, ids: np.ndarray, leading: int, long: np.ndarray) -> np.ndarray:
        short = self._short(loss, ids, leading)
        with np.errstate(invalid="ignore"):  # NaN where nothing was scored; never key
            gained: np.ndarray = short - long > self.plan.key_gain
            likely: np.ndarray = long < self.plan.key_loss
        key: np.ndarray = np.logical_and(gained, likely)
        return key

    def _short(self, loss: LossReader, ids: np.ndarray, leading: int) -> np.ndarray:
        """Losses under the short context; NaN where the whole context is no longer."""
        found = np.full(len(ids), np.nan)
        lead, step = ids[:leading], self.step
        for start in range(leading + self.context, len(ids), step):
            stop = min(start + step, len(ids))
            row = np.concatenate([lead, ids[start - self.context : stop]])
            found[start:stop] = _losses(loss, row, leading + self.context)[-(stop - start) :]
        return found


def _losses(loss: LossReader, ids: np.ndarray, first: int) -> np.ndarray:
    """By place, NaN before `first`."""
    reader = loss.reader
    with reader.at_length(len(ids)):
        found = loss.losses(reader.tensor([ids]), first)[0].numpy()
    return np.concatenate([np.full(first, np.nan), found])


def _same(a: Tokens, b: Tokens) -> bool:
    return bool(a.tokenizer.get_vocab() == b.tokenizer.get_vocab())


def _spans(tokens: Tokens, text: str) -> tuple[Any, list[tuple[int, int]]]:
    if not getattr(tokens.tokenizer, "is_fast", False):
        raise EvaluationError(
            "a judge with another vocabulary needs fast tokenizers, which say where tokens stand."
        )
    found = tokens.tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    return found["input_ids"], [tuple(span) for span in found["offset_mapping"]]
