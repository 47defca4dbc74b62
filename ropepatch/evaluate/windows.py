"""Texts cut into windows of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.plan import PerplexityPlan
from ropepatch.evaluate.tokens import Tokens, check_ids


@dataclass(frozen=True, eq=False)
class Window:
    """A piece of one document."""

    document: str
    number: int
    """Within its document."""
    ids: np.ndarray
    """(tokens,), with the leading special tokens if there are any."""
    leading: int
    """Special tokens in front; they are read, never scored."""


class Corpus:
    """Documents as token ids."""

    def __init__(
        self,
        plan: PerplexityPlan,
        tokens: Tokens,
        texts: list[tuple[str, str]],
        vocabulary: int | None = None,
    ) -> None:
        """Tokenise.

        Args:
            plan: How they are read.
            tokens: Of the model.
            texts: Documents, each with a name.
            vocabulary: Token ids that the model can read, if known.

        Raises:
            EvaluationError: no document is long enough for the longest length, a special token
                that the plan asks for is missing, or the tokenizer is another model's.
        """
        self.plan = plan
        self.leading = _leading(plan, tokens)
        if plan.join:
            end = tokens.end()
            if end is None:
                raise EvaluationError(
                    "the tokenizer has no end-of-sequence token to join documents with; leave out "
                    "--join."
                )
            joined: list[int] = []
            for _, text in texts:
                joined += [*([end] if joined else []), *tokens.whole(text)]
            rows = [("joined", joined)]
        else:
            rows = [(name, tokens.whole(text)) for name, text in texts]
        self.documents = {
            _unique(name, i, rows): np.asarray(ids, np.int32) for i, (name, ids) in enumerate(rows)
        }
        for ids in self.documents.values():
            check_ids(ids, vocabulary)
        if (least := len(self.leading) + 2) > plan.lengths[0]:
            raise EvaluationError(f"a length of {plan.lengths[0]} scores nothing; take {least} up.")
        self.tokens = sum(len(ids) for ids in self.documents.values())
        longest = max((len(ids) for ids in self.documents.values()), default=0)
        need = plan.lengths[-1] - len(self.leading)
        if longest < need:
            joined_fit = self.tokens >= need and not plan.join
            hint = "join the documents (--join), or " if joined_fit else ""
            raise EvaluationError(
                f"the longest document has {longest:,} tokens, the longest length asks for "
                f"{need:,}; {hint}give a longer text or shorter lengths."
            )

    def windows(self) -> Iterator[Window]:
        """Windows of the longest length that follow each other, document by document in turn."""
        size = self.plan.lengths[-1] - len(self.leading)
        queues = [
            (name, [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)])
            for name, ids in self.documents.items()
        ]
        given, number = 0, 0
        while given < self.plan.max_windows and any(number < len(parts) for _, parts in queues):
            for name, parts in queues:
                if number < len(parts) and given < self.plan.max_windows:
                    given += 1
                    yield Window(name, number, self.led(parts[number]), len(self.leading))
            number += 1

    def led(self, ids: np.ndarray) -> np.ndarray:
        """With the leading special tokens."""
        return np.concatenate([np.asarray(self.leading, np.int32), ids])


def _leading(plan: PerplexityPlan, tokens: Tokens) -> tuple[int, ...]:
    if plan.bos == "no":
        return ()
    own = tokens.leading()
    if plan.bos == "auto" or own:
        return own
    bos = getattr(tokens.tokenizer, "bos_token_id", None)
    if bos is None:
        raise EvaluationError("the tokenizer has no beginning-of-sequence token; leave out --bos.")
    return (int(bos),)


def _unique(name: str, i: int, rows: list[tuple[str, list[int]]]) -> str:
    return name if sum(other == name for other, _ in rows) == 1 else f"{name} ({i + 1})"
