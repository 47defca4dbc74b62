"""The table of all subjects: one row each, a column per kind and length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ropepatch.plots.canvas import short_length
from ropepatch.reporting import numbers
from ropepatch.reporting.collect import Subject


@dataclass(frozen=True)
class Cell:
    """One number of the table."""

    text: str
    detail: str = ""
    """The interval of a score."""
    value: float | None = None
    whole: bool = True
    """False where an answer or a window is missing; such a number is never the best."""
    best: bool = False
    beyond: bool = False
    """Whether the length lies beyond what this row's model was trained for."""


@dataclass(frozen=True)
class Column:
    """One length of one kind."""

    kind: str
    length: int

    @property
    def name(self) -> str:
        """As people say it."""
        return short_length(self.length)


@dataclass(frozen=True)
class Headline:
    """The table."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Subject, tuple[Cell, ...]], ...]

    @property
    def trained_length(self) -> int | None:
        """Where all rows share it."""
        return shared_trained_length([subject for subject, _ in self.rows])

    def count(self, kind: str) -> int:
        """Columns of a kind."""
        return sum(column.kind == kind for column in self.columns)

    def marks(self, i: int) -> str:
        """What the left edge of a column is: where a kind begins, where the trained length ends."""
        column = self.columns[i]
        before = self.columns[i - 1] if i else None
        if before is None or before.kind != column.kind:
            return "kind"
        trained = self.trained_length
        return "edge" if trained and before.length <= trained < column.length else ""


def shared_trained_length(subjects: Sequence[Subject]) -> int | None:
    """The trained length, if all that note one note the same."""
    known = {s.trained_length for s in subjects if s.trained_length is not None}
    return known.pop() if len(known) == 1 else None


def headline(subjects: Sequence[Subject]) -> Headline:
    """Make the table; the best of each column is marked where there is a difference."""
    needle = sorted({n for s in subjects if s.needle for n in s.needle.lengths})
    read = sorted({n for s in subjects if s.perplexity for n in s.perplexity.lengths})
    columns = [Column("needle", n) for n in needle] + [Column("perplexity", n) for n in read]
    grid = []
    most = max((s.perplexity.windows for s in subjects if s.perplexity), default=0)
    for column in columns:
        if column.kind == "needle":
            grid.append(_marked([_needle(s, column.length) for s in subjects], max))
        else:
            grid.append(_marked([_perplexity(s, column.length, most) for s in subjects], min))
    rows = [(subject, tuple(row[i] for row in grid)) for i, subject in enumerate(subjects)]
    return Headline(tuple(columns), tuple(rows))


def _beyond(subject: Subject, length: int) -> bool:
    return subject.trained_length is not None and length > subject.trained_length


def _needle(subject: Subject, length: int) -> Cell:
    score = subject.needle.by_length.get(length) if subject.needle else None
    beyond = _beyond(subject, length)
    if score is None or score.exact is None:
        return Cell("failed" if score and score.failed else numbers.NONE, beyond=beyond)
    return Cell(
        numbers.share(score.exact),
        numbers.interval(score.low, score.high),
        score.exact,
        whole=not score.failed and score.trials >= subject.answers_per_length,
        beyond=beyond,
    )


def _perplexity(subject: Subject, length: int, most: int) -> Cell:
    """The number of one length; `most` is how many windows the fullest run has."""
    found, beyond = subject.perplexity, _beyond(subject, length)
    row = next((r for r in found.by_length if r.length == length), None) if found else None
    if found is None or row is None or row.whole is None:
        failed = found is not None and bool(found.failures)
        return Cell("failed" if failed else numbers.NONE, beyond=beyond)
    value = row.whole.perplexity
    if value is None:
        return Cell("no number", beyond=beyond)
    whole = row.whole.windows == most
    return Cell(numbers.perplexity(value), "", value, whole=whole, beyond=beyond)


def _marked(cells: list[Cell], best: Callable[[list[float]], float]) -> list[Cell]:
    """The best as far as numbers are shown; none where all read the same."""
    whole = {cell.value: cell.text for cell in cells if cell.value is not None and cell.whole}
    if len(set(whole.values())) < 2:
        return cells
    text = whole[best(list(whole))]
    return [replace(cell, best=cell.whole and cell.text == text) for cell in cells]
