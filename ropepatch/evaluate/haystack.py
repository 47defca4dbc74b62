"""The text that needles are hidden in: tokenised once, cut by tokens, never characters."""

import hashlib
import itertools
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.sentences import sentences
from ropepatch.evaluate.tokens import Tokens

_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*|\n+")
_BATCH = 256
"""Sentences per call of the tokenizer."""
_LONGEST = 240
"""Characters of a sentence; what goes on without a stop is cut, between words if it has any."""
_SUFFIXES = (".txt", ".md", ".text", ".rst")


class Haystack:
    """Sentences as token ids, as many as are asked for."""

    def __init__(self, tokens: Tokens, sentences: Iterator[str]) -> None:
        self._tokens = tokens
        self._rest = sentences
        self._parts: list[np.ndarray] = []
        self._whole = np.zeros(0, np.int32)
        self.ends = np.zeros(1, np.int64)
        """Tokens up to the end of each sentence, zero before the first."""

    def take(self, count: int) -> np.ndarray:
        """The first `count` token ids."""
        while self.ends[-1] < count:
            batch = [f" {s}" for s in itertools.islice(self._rest, _BATCH)]
            rows = self._tokens.following(batch)
            if not any(rows):
                raise EvaluationError("the haystack's sentences make no tokens.")
            sizes = np.cumsum([len(row) for row in rows])
            self._whole = np.concatenate(
                [self._whole, np.fromiter(itertools.chain(*rows), np.int32)]
            )
            self.ends = np.concatenate([self.ends, self.ends[-1] + sizes])
        return self._whole[:count]


def own_sentences(seed: int) -> Iterator[str]:
    """Prose of this package, then sentences drawn by `seed` without end."""
    prose = (resources.files("ropepatch.evaluate") / "texts" / "prose.txt").read_text("utf-8")
    return itertools.chain(cut(prose), sentences(seed))


def given_sentences(path: Path) -> tuple[Iterator[str], str]:
    """Sentences of a file or of all text files of a folder, again from the start after the end.

    Returns:
        The sentences, and a digest of the texts.

    Raises:
        EvaluationError: it is missing, no text, or holds no sentence.
    """
    texts = read_texts(path)
    found = [sentence for _, text in texts for sentence in cut(text)]
    if not found:
        raise EvaluationError(f"the haystack {path} is empty; give a file with some text in it.")
    digest = hashlib.sha256("\0".join(text for _, text in texts).encode()).hexdigest()[:16]
    return itertools.cycle(found), digest


def read_texts(path: Path) -> list[tuple[str, str]]:
    """Name and text of a file, or of the text files of a folder in the order of their names.

    Raises:
        EvaluationError: there are none, or one cannot be read.
    """
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
        if not files:
            raise EvaluationError(f"{path} holds no text file ({', '.join(_SUFFIXES)}).")
    else:
        files = [path]
    texts = []
    for file in files:
        try:
            texts.append((file.name, file.read_text(encoding="utf-8-sig")))
        except OSError as error:
            raise EvaluationError(f"cannot read the text {file}: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise EvaluationError(f"{file} is not UTF-8 text.") from None
    return texts


def cut(text: str) -> Iterator[str]:
    """Sentences of a text, white space made single."""
    for part in _END.split(text):
        words = [
            word[i : i + _LONGEST] for word in part.split() for i in range(0, len(word), _LONGEST)
        ]
        while words:
            size, n = 0, 0
            while n < len(words) and size + len(words[n]) <= _LONGEST:
                size += len(words[n]) + 1
                n += 1
            n = max(n, 1)
            yield " ".join(words[:n])
            words = words[n:]
