"""Texts to read: a file, a folder, a dataset of the hub, or what Python brings along."""

import itertools
import re
from pathlib import Path
from typing import Any

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.haystack import read_texts

_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+){0,3}")
_CHARACTERS = 8
"""Of a dataset's document per token asked for, before it is tokenised."""
_MOST_DOCUMENTS = 10_000


def texts_of(source: str | None, longest: int, windows: int) -> tuple[list[tuple[str, str]], str]:
    """Documents to read, and what they are called.

    Args:
        source: A file, a folder, or `dataset[:config[:split[:column]]]`; None for the topics of
            Python's own `help()`, about 150,000 tokens of prose that nobody has to download.
        longest: Tokens of the longest length, so that a dataset is read no further than needed.
        windows: How many of them are wanted.

    Raises:
        EvaluationError: there is no such text, or none that can be read.
    """
    if source is None:
        from pydoc_data.topics import topics

        text = "\n\n".join(sorted(topics.values(), key=len, reverse=True))
        return [("python-help", text)], "the topics of Python's help()"
    if not source:
        raise EvaluationError("--text is empty; name a file, a folder or a dataset.")
    path = Path(source).expanduser()
    if path.exists():
        texts = [(name, text) for name, text in read_texts(path) if text.strip()]
        if not texts:
            raise EvaluationError(f"the text {source} is empty.")
        return texts, source
    looks_like_file = source.endswith((".txt", ".md", ".json", ".jsonl")) or source.count("/") > 1
    if looks_like_file or source.startswith((".", "~")) or not _DATASET.fullmatch(source):
        raise EvaluationError(f"the text {source} does not exist.")
    return _dataset(source, longest, windows), source


def _dataset(source: str, longest: int, windows: int) -> list[tuple[str, str]]:
    name, config, split, column = [*source.split(":"), "", "", ""][:4]
    try:
        from datasets import load_dataset
    except ImportError:
        raise EvaluationError(
            f"the text {source} is no file; to read datasets of the hub: "
            "pip install 'ropepatch[datasets]'."
        ) from None
    try:
        rows = load_dataset(name, config or None, split=split or "test", streaming=True)
        texts = _documents(rows, column or "text", longest * _CHARACTERS, windows)
    except EvaluationError:
        raise
    except Exception as error:  # of the hub, of the network, of a loader
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise EvaluationError(f"the text {source} cannot be read: {reason}") from error
    if not texts:
        raise EvaluationError(f"the dataset {source} holds no text.")
    return texts


def _documents(rows: Any, column: str, characters: int, windows: int) -> list[tuple[str, str]]:
    """Long documents first come first served, until there is text enough."""
    texts: list[tuple[str, str]] = []
    long = 0
    for i, row in enumerate(itertools.islice(rows, _MOST_DOCUMENTS)):
        if not isinstance(row.get(column), str):
            raise EvaluationError(
                f"the dataset has no text in column '{column}'; it has: {', '.join(row)}. Write "
                "dataset:config:split:column."
            )
        texts.append((f"row {i}", row[column]))
        long += len(row[column]) // characters
        if long >= windows or sum(len(text) for _, text in texts) > 4 * characters * windows:
            break
    return texts
