"""Documents of files, folders and datasets, one after the other, never all at once."""

import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ropepatch.errors import HealingError

Document = Iterable[str]
"""Its text in pieces, in order; a file larger than memory is one document all the same."""
TEXT = (".txt", ".md", ".text", ".rst")
ROWS = (".jsonl", ".ndjson", ".parquet")
_PIECE = 1 << 20
"""Characters that are tokenised at once."""
_LONGEST = 4 * _PIECE
"""Characters without any space after which even a word is cut."""
_LAST_BREAK = re.compile(r"(?s).*\n|.*(?<=\S)(?=\s)")
_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w./-]*){0,3}")
_OPEN = 16
"""Files with rows that are read in turns."""
_SHUFFLED = 1000
"""Rows of a hub's dataset among which the next is drawn."""


class Sources:
    """Where documents come from, checked before anything is loaded."""

    def __init__(self, names: Sequence[str], column: str | None = None) -> None:
        """Look whether all of them are there.

        Args:
            names: Files (text, JSONL, parquet), folders of them, or datasets of the hub as
                `dataset[:config[:split[:column]]]`.
            column: Where rows keep their text; "text" if not given.

        Raises:
            HealingError: one is not there, or holds nothing that can be read.
        """
        if not names:
            raise HealingError(
                "--data is missing: text files, JSONL or parquet files, folders of them, or a "
                "dataset of the hub."
            )
        self.names = tuple(names)
        self.column = column
        self._files: list[Path] = []
        self._datasets: list[str] = []
        for name in names:
            self._find(name)

    def _find(self, name: str) -> None:
        try:
            path = Path(name).expanduser()
            is_folder, is_there = bool(name) and path.is_dir(), bool(name) and path.exists()
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise HealingError(f"the data {name} do not exist, or not for us: {reason}.") from None
        if is_folder:
            found = sorted(
                p
                for p in path.rglob("*")
                if p.suffix in (*TEXT, *ROWS)
                and p.is_file()
                and not any(part.startswith(".") for part in p.relative_to(path).parts)
            )
            if not found:
                raise HealingError(
                    f"the folder {name} holds no data ({', '.join((*TEXT, *ROWS))})."
                )
            self._files += found
        elif is_there:
            self._files.append(path)
        else:
            looks_like_file = path.suffix in (*TEXT, *ROWS) or name.count("/") > 1
            if looks_like_file or name.startswith((".", "~")) or not _DATASET.fullmatch(name):
                raise HealingError(f"the data {name or repr(name)} do not exist.")
            self._datasets.append(name)

    def documents(self, seed: int) -> Iterator[Document]:
        """Every document once, in an order that the seed decides.

        Raises:
            HealingError: a file cannot be read.
        """
        files = list(self._files)
        random.Random(seed).shuffle(files)
        texts = iter([p for p in files if p.suffix not in ROWS])
        rows = iter([p for p in files if p.suffix in ROWS])
        readers: list[Iterator[Document]] = [([_pieces(p)]).__iter__() for p in texts]
        readers += [self._rows_of(p) for p in rows]
        readers += [_hub_rows(name, self.column, seed) for name in self._datasets]
        yield from _in_turns(readers)

    def _rows_of(self, path: Path) -> Iterator[Document]:
        rows = _parquet_rows(path, self.column) if path.suffix == ".parquet" else _json_rows(path)
        for where, row in rows:
            text = row if isinstance(row, str) else _text_of(row, self.column, where)
            yield [text.encode(errors="replace").decode()]  # JSON may hold half characters

    def local(self) -> list[Path]:
        """The files among them."""
        return list(self._files)


def _in_turns(readers: list[Iterator[Document]]) -> Iterator[Document]:
    """One document of each of the first readers, then the next of each, ..."""
    waiting = iter(readers)
    open_now = list(itertools.islice(waiting, _OPEN))
    while open_now:
        for reader in list(open_now):
            try:
                yield next(reader)
            except StopIteration:
                open_now.remove(reader)
                open_now += itertools.islice(waiting, 1)


def _pieces(path: Path) -> Iterator[str]:
    """A text file in pieces that end at the end of a line, or else of a word."""
    rest = ""
    try:
        with path.open(encoding="utf-8-sig") as file:
            while block := file.read(_PIECE):
                rest += block
                cut = _LAST_BREAK.match(rest)
                if cut is not None and cut.end():
                    yield rest[: cut.end()]
                    rest = rest[cut.end() :]
                elif len(rest) >= _LONGEST:
                    yield rest
                    rest = ""
    except OSError as error:
        raise HealingError(f"cannot read the data {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise HealingError(
            f"the data {path} are not UTF-8 text; {', '.join(ROWS)} are read by their endings."
        ) from None
    if rest:
        yield rest


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}, line {number}", json.loads(line)
    except OSError as error:
        raise HealingError(f"cannot read the data {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise HealingError(f"the data {path} are not UTF-8 text.") from None
    except (ValueError, RecursionError):
        raise HealingError(f"the data {path}, line {number}, are no JSON.") from None


def _parquet_rows(path: Path, column: str | None) -> Iterator[tuple[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise HealingError(
            f"the data {path} need pyarrow: pip install 'ropepatch[datasets]'."
        ) from None
    try:
        file = parquet.ParquetFile(path)
        wanted = column or "text"
        if wanted not in file.schema_arrow.names:
            _text_of(dict.fromkeys(file.schema_arrow.names), column, str(path))
        for batch in file.iter_batches(batch_size=64, columns=[wanted]):
            for row in batch.to_pylist():
                yield str(path), row
    except (OSError, ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise HealingError(f"cannot read the data {path}: {reason}") from None


def _hub_rows(source: str, column: str | None, seed: int) -> Iterator[Document]:
    name, config, split, own = [*source.split(":"), "", "", ""][:4]
    try:
        from datasets import load_dataset
    except ImportError:
        raise HealingError(
            f"the data {source} are no file; to read datasets of the hub: "
            "pip install 'ropepatch[datasets]'."
        ) from None
    try:
        rows = load_dataset(name, config or None, split=split or "train", streaming=True)
        for row in rows.shuffle(seed=seed, buffer_size=_SHUFFLED):
            yield [_text_of(row, own or column, source)]
    except HealingError:
        raise
    except Exception as error:  # of the hub, of the network, of a loader
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise HealingError(f"the data {source} cannot be read: {reason}") from error


def _text_of(row: Any, column: str | None, where: str) -> str:
    wanted = column or "text"
    found = row.get(wanted) if isinstance(row, dict) else None
    if isinstance(row, dict) and wanted in row and found is None:
        return ""  # a document without text
    if not isinstance(found, str):
        names = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise HealingError(
            f"{where}: no text in column '{wanted}'; there is: {names}. Name it with --text-column."
        )
    return found
