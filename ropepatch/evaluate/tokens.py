"""A tokenizer as evaluation needs it: texts that continue each other, special tokens once."""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropepatch.errors import EvaluationError

_ANCHOR = "."
_PROBE = (
    " Fifteen vexed quizzes jumped; the lighthouse keeper's 48,135 gulls (\u00fc\u00df\u4e2d) flew."
)
_MARK = "QXJZKVWQ"
_INSTRUCT = re.compile(r"(^|[-_./ ])(instruct|chat|it|sft|dpo|rlhf|assistant)([-_./ ]|$)", re.I)


@dataclass(frozen=True)
class Frame:
    """What stands around the text that a user would write."""

    before: tuple[int, ...]
    """Token ids: the beginning-of-sequence token, or a chat template up to the user's words."""
    after: tuple[int, ...]
    """Token ids: a chat template from the user's words to the model's own."""


class Tokens:
    """Wraps a tokenizer of transformers, fast or slow."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._anchor = self._plain([_ANCHOR])[0]

    def _plain(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        ids = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [list(row) for row in ids]

    def following(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts as they stand after a full stop, none of them special.

        SentencePiece marks the beginning of a text like a space, so a piece that is to continue
        another cannot be tokenised alone.
        """
        n = len(self._anchor)
        rows = self._plain([_ANCHOR + text for text in texts])
        alone = [i for i, row in enumerate(rows) if row[:n] != self._anchor]
        found = [row[n:] for row in rows]
        for i, ids in zip(alone, self._plain([texts[i] for i in alone]), strict=True):
            found[i] = ids  # the full stop melts into what follows
        return found

    def split(self, text: str, ends: Sequence[int]) -> tuple[list[int], list[int]]:
        """Token ids of a text and, for each place in it, how many tokens lie wholly before it.

        Args:
            text: As it stands after a full stop.
            ends: Places, in characters.
        """
        whole, *parts = self.following([text, *(text[:end] for end in ends)])
        return whole, [_shared(whole, part) for part in parts]

    def whole(self, text: str) -> list[int]:
        """Token ids of a text of its own, without special tokens."""
        return self._plain([text])[0]

    def leading(self) -> tuple[int, ...]:
        """Special tokens that the tokenizer itself puts before a text."""
        with_special = list(self.tokenizer(_ANCHOR, verbose=False)["input_ids"])
        for k in range(len(with_special) - len(self._anchor) + 1):
            if with_special[k : k + len(self._anchor)] == self._anchor:
                return tuple(with_special[:k])
        return ()

    def digest(self) -> str:
        """What tells it from another tokenizer, or from itself under another template."""
        said = [self.following([_PROBE])[0], self.leading(), self.end(), len(self.tokenizer)]
        template = getattr(self.tokenizer, "chat_template", None)
        return hashlib.sha256(repr([said, template]).encode()).hexdigest()[:16]

    def plain_frame(self) -> Frame:
        """A text as it is."""
        return Frame(self.leading(), ())

    def chat_frame(self) -> Frame:
        """The tokenizer's chat template around one message of a user.

        Raises:
            EvaluationError: it has none, or one that does not show the message as it is.
        """
        rendered = self._rendered()
        if rendered is None:
            raise EvaluationError(
                "the tokenizer has no chat template; leave out --chat, or use a tokenizer that "
                "has one."
            )
        before, mark, after = rendered.partition(_MARK)
        if not mark:
            raise EvaluationError("the chat template does not show the user's message; --no-chat.")
        # A template writes its own special tokens, the beginning-of-sequence one among them.
        return Frame(tuple(self.whole(before)), tuple(self.following([after])[0]))

    def _rendered(self) -> str | None:
        if not getattr(self.tokenizer, "chat_template", None):
            return None
        message = [{"role": "user", "content": _MARK}]
        try:
            text = self.tokenizer.apply_chat_template(
                message,
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=False,  # an answer has no room for it; others take no notice
            )
        except Exception as error:  # a template is a program of somebody else's
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise EvaluationError(f"the chat template fails: {reason}; --no-chat.") from error
        return str(text)

    def chats(self, ends: Sequence[int], name: str) -> bool:
        """Whether the model was taught to chat by the template.

        Either the token that ends a turn in the template also ends generation, which base models
        that carry a template do not say, or the name tells.

        Args:
            ends: Token ids that end generation.
            name: Of the model or its folder.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            return False
        after = self.chat_frame().after
        special = set(self.tokenizer.all_special_ids) | set(_added(self.tokenizer))
        closing = next((i for i in after if i in special), None)
        return closing in ends or bool(_INSTRUCT.search(os.path.basename(name.rstrip("/"))))

    def decode(self, ids: Sequence[int]) -> str:
        """The text, special tokens left out."""
        return str(self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=True))

    def exactly(self, ids: Sequence[int]) -> str:
        """The text as it is."""
        return str(
            self.tokenizer.decode(
                [int(i) for i in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def end(self) -> int | None:
        """The end-of-sequence token."""
        value = getattr(self.tokenizer, "eos_token_id", None)
        return None if value is None else int(value)


def check_ids(ids: np.ndarray, vocabulary: int | None) -> None:
    """Refuse token ids that a model cannot read.

    Raises:
        EvaluationError: the tokenizer is another model's.
    """
    if vocabulary is not None and ids.size and int(ids.max()) >= vocabulary:
        raise EvaluationError(
            f"the tokenizer gives token {int(ids.max()):,}, the model knows {vocabulary:,}; it is "
            "another model's tokenizer."
        )


def _added(tokenizer: Any) -> list[int]:
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    return [int(i) for i, token in added.items() if getattr(token, "special", False)]


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two rows begin with in common."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
