"""Token ids of the data, on disk: any sequence of a training can be read at once, from anywhere.

Texts are tokenised once, as far as the training needs them, so a corpus may be larger than memory,
every process reads the same, and going on costs nothing.
"""

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ropepatch.errors import HealingError
from ropepatch.healing.documents import Document, Sources

Report = Callable[[int, int], None]
"""Called with tokens so far, and those that are wanted."""
_PIECES = 64
"""Per call of the tokenizer, which works on several at once."""
_IDS, _ENDS, _ABOUT = "tokens.bin", "documents.bin", "store.json"


@dataclass(frozen=True)
class About:
    """What a store holds."""

    tokens: int
    """To train on."""
    held_out: int
    """Tokens at the end that are only measured on."""
    documents: int
    long_documents: int
    """Of `min_doc_len` and more."""
    left_out: int
    """Documents that were too short."""
    whole: bool
    """Whether the data were read to their end."""
    fingerprint: str
    """SHA-256 over the token ids, in hexadecimal digits (16)."""


@dataclass(frozen=True, eq=False)
class Store:
    """Token ids of all documents, one after the other."""

    ids: np.ndarray
    """(tokens + held_out,), on disk."""
    ends: np.ndarray
    """(documents,): tokens up to the end of each."""
    about: About

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """What `write_store` has written.

        Raises:
            HealingError: it is damaged.
        """
        try:
            about = About(**json.loads((folder / _ABOUT).read_text(encoding="utf-8")))
            ids = np.memmap(folder / _IDS, np.uint32, "r")
            ends = np.fromfile(folder / _ENDS, np.int64)
        except (OSError, ValueError, TypeError) as error:
            raise HealingError(f"{folder} is damaged ({error}); remove it.") from None
        if len(ids) != about.tokens + about.held_out or not len(ends) or ends[-1] != len(ids):
            raise HealingError(f"{folder} is damaged (its sizes do not agree); remove it.")
        return cls(ids, ends, about)

    @property
    def train(self) -> np.ndarray:
        """Token ids to train on."""
        return self.ids[: self.about.tokens]

    @property
    def held_out(self) -> np.ndarray:
        """Token ids to measure on."""
        return self.ids[self.about.tokens :]


class Encoder:
    """Documents as token ids, each led and ended as the tokenizer has it."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        """Find the tokens that stand before and behind a document.

        Args:
            tokenizer: Of transformers.
            vocabulary: Token ids that the model can read.
        """
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        end = tokenizer.eos_token_id
        self.last = [] if end is None else [int(end)]
        begin = tokenizer.bos_token_id
        own = list(tokenizer("a").input_ids[:1])
        self.first = [int(begin)] if begin is not None and own == [begin] else []

    def parts(self, documents: Iterator[Document]) -> Iterator[Iterator[np.ndarray]]:
        """Of each document its token ids, in parts; a part is made when it is asked for."""
        pieces = ((i, piece) for i, doc in enumerate(documents) for piece in doc)
        encoded = itertools.chain.from_iterable(self._batches(pieces))
        for _, group in itertools.groupby(encoded, lambda pair: pair[0]):
            parts = (ids for _, ids in group if len(ids))
            if (first := next(parts, None)) is not None:
                yield itertools.chain([self._ids(self.first), first], parts, [self._ids(self.last)])

    def _batches(self, pieces: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, np.ndarray]]]:
        while batch := list(itertools.islice(pieces, _PIECES)):
            rows = self._tokenizer(
                [text for _, text in batch], add_special_tokens=False, verbose=False
            ).input_ids
            yield [(i, self._ids(row)) for (i, _), row in zip(batch, rows, strict=True)]

    def _ids(self, row: Sequence[int]) -> np.ndarray:
        ids = np.asarray(row, np.int64)
        if len(ids) and ids.max() >= self._vocabulary:
            raise HealingError(
                f"the tokenizer gives token {int(ids.max())}, the model knows {self._vocabulary}; "
                "it is another model's."
            )
        return ids.astype(np.uint32)


def write_store(
    folder: Path,
    sources: Sources,
    encoder: Encoder,
    *,
    wanted: int,
    held_out: int,
    seq_len: int,
    min_doc_len: int = 0,
    long_share: float = 1.0,
    seed: int = 0,
    report: Report = lambda done, wanted: None,
) -> Store:
    """Tokenise as much as is wanted; the folder is there whole, or not at all.

    Args:
        folder: Need not exist; what it holds already is taken as it is.
        sources: Of documents.
        encoder: Of the model.
        wanted: Tokens to train on; fewer where the data have no more.
        held_out: Tokens to measure on, at most; a twentieth where data are few.
        seq_len: Tokens of a sequence, of which there must be one.
        min_doc_len: Tokens of a long document.
        long_share: Share of tokens from long documents, at least.
        seed: Of the order.
        report: Called while tokenising.

    Raises:
        HealingError: the data are too few, or cannot be read.
    """
    if (folder / _ABOUT).exists():
        return Store.open(folder)
    stage = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(stage, ignore_errors=True)
    try:
        stage.mkdir(parents=True)
        about = _fill(
            stage,
            encoder.parts(sources.documents(seed)),
            _Choice(min_doc_len, long_share),
            wanted + held_out,
            report,
        )
        about = _divided(about, held_out, seq_len, min_doc_len)
        text = json.dumps(asdict(about), indent=2) + "\n"
        (stage / _ABOUT).write_text(text, encoding="utf-8")
        stage.rename(folder)
    except OSError as error:
        raise HealingError(f"cannot write {folder}: {error.strerror}.") from None
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Store.open(folder)


@dataclass
class _Choice:
    """Short documents only as far as long ones keep their share."""

    least: int
    share: float
    long: int = 0
    """Tokens of long documents so far."""
    short: int = 0
    documents: int = 0
    """Long ones."""
    left_out: int = 0

    def taken(self, parts: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """The parts of a document that is wanted; none of one that is not."""
        count, begun = 0, []
        for part in parts:
            begun.append(part)
            count += len(part)
            if count >= self.least:
                break
        if count >= self.least:
            self.documents += 1
            for part in itertools.chain(begun, parts):
                self.long += len(part)
                yield part
        elif (self.short + count) * self.share <= self.long * (1 - self.share):
            self.short += count
            yield from begun
        else:
            self.left_out += 1


def _fill(
    stage: Path,
    documents: Iterator[Iterator[np.ndarray]],
    choice: _Choice,
    wanted: int,
    report: Report,
) -> About:
    digest, ends, count = hashlib.sha256(), [], 0
    with (stage / _IDS).open("wb") as file:
        for parts in documents:
            before = count
            for taken in choice.taken(parts):
                part = taken[: wanted - count].tobytes()
                file.write(part)
                digest.update(part)
                count += len(part) // 4
                report(count, wanted)
                if count >= wanted:
                    break
            if count > before:
                ends.append(count)
                digest.update(count.to_bytes(8, "little"))
            if count >= wanted:
                break
    np.asarray(ends, np.int64).tofile(stage / _ENDS)
    print_ = digest.hexdigest()[:16]
    whole = count < wanted
    return About(count, 0, len(ends), choice.documents, choice.left_out, whole, print_)


def _divided(about: About, held_out: int, seq_len: int, min_doc_len: int) -> About:
    """The end is held out, in whole sequences."""
    if about.tokens < seq_len + 1:
        left, lower = "", ""
        if about.left_out:
            left = f" ({about.left_out} documents below min_doc_len {min_doc_len:,} were left out)"
            lower = ", a lower --min-doc-len"
        raise HealingError(
            f"the data have {about.tokens:,} tokens{left}, one sequence needs {seq_len + 1:,}; "
            f"give more data{lower} or a shorter --seq-len."
        )
    twentieth = max(about.tokens // 20 // seq_len, 1) * seq_len + 1  # what follows the last one
    held = min(held_out, twentieth) if about.whole else held_out
    if about.tokens - held < seq_len + 1:
        held = 0
    return About(**{**asdict(about), "tokens": about.tokens - held, "held_out": held})
