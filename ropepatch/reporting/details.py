"""What the page says of each run: how it was made, all its numbers, what failed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropepatch.evaluate.measures import NeedleGrid, NeedleSummary, PerplexitySummary
from ropepatch.reporting import numbers
from ropepatch.reporting.collect import Run

_TOLD = (
    *("label", "model", "trained_length", "target_length", "command", "versions"),
    *("device", "started", "recipe", "frequencies"),
)
"""Of `about`, what has a place of its own."""
_VERSIONS = ("ropepatch", "transformers", "torch", "python")


@dataclass(frozen=True)
class Table:
    """Rows of text under a heading; the first cell of a row is its name."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Details:
    """One run."""

    kind: str
    command: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]


def details(run: Run) -> Details:
    """All that is to say of a run."""
    facts = [*_made(run), *_planned(run)]
    tables: list[Table] = []
    if run.needle is not None:
        facts += _needle_facts(run, run.needle)
        tables += _needle_tables(run.needle)
    if run.perplexity is not None:
        facts += _perplexity_facts(run.perplexity)
        tables += _perplexity_tables(run.perplexity)
    command = str(run.about.get("command") or numbers.NONE)
    return Details(run.kind, command, tuple(facts), tuple(tables))


def _made(run: Run) -> Iterator[tuple[str, str]]:
    about, asked = run.about, run.asked
    found = about.get("versions")
    versions: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    names = [*_VERSIONS, *(name for name in versions if name not in _VERSIONS)]
    yield "folder", str(run.folder)
    yield "model", _said(about.get("model"))
    yield "trained length", _said(about.get("trained_length"))
    yield "target length", _said(about.get("target_length"))
    yield "recipe", _said(about.get("recipe"))
    yield "versions", ", ".join(f"{name} {_said(versions.get(name))}" for name in names)
    yield "device", _said(about.get("device"))
    yield "dtype", _said(asked.get("dtype"))
    yield "attention", _said(asked.get("attention"))
    yield "started", _said(about.get("started"))
    yield from (_words(name, value) for name, value in about.items() if name not in _TOLD)
    for name, value in asked.items():
        if name not in ("kind", "plan", "model", "dtype", "attention"):
            yield _words(f"{name} (digest)" if name in about else name, value)


def _planned(run: Run) -> Iterator[tuple[str, str]]:
    """The plan; where `asked` says what became of 'auto', that alone is said."""
    return (_words(name, value) for name, value in run.plan.items() if name not in run.asked)


def _words(name: str, value: Any) -> tuple[str, str]:
    return (name.replace("_", " ").replace("bos", "BOS"), _said(value))


def _said(value: Any) -> str:
    """A value of JSON as a person writes it."""
    if value is None or value == "":
        return numbers.NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_said(inner)}" for key, inner in value.items()) or numbers.NONE
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_said(inner).replace(",", "") for inner in value) or numbers.NONE
    return str(value)


def _needle_facts(run: Run, found: NeedleSummary) -> Iterator[tuple[str, str]]:
    asked = run.answers_per_length * len(found.lengths)
    yield "answers", f"{found.trials:,}" + (f" of {asked:,} asked" if asked else "")
    share = f" ({found.share:.0%})" if found.share is not None else ""
    yield "tokens forwarded / nominal", f"{found.forwarded:,} / {found.nominal:,}{share}"


def _perplexity_facts(found: PerplexitySummary) -> Iterator[tuple[str, str]]:
    yield "windows read", f"{found.windows:,}"
    yield "tokens scored", f"{found.tokens:,}"
    yield "tokens forwarded", f"{found.forwarded:,}"


def _needle_tables(found: NeedleSummary) -> Iterator[Table]:
    for grid in found.grids:
        rows = tuple(
            (
                numbers.tokens(length),
                numbers.share(score.exact),
                numbers.interval(score.low, score.high),
                numbers.share(score.recall),
                numbers.loss(score.logprob),
                numbers.tokens(score.trials),
                numbers.tokens(score.failed),
            )
            for length, score in grid.by_length.items()
        )
        columns = ("length", "exact", "95 % interval", "recall", "logprob", "trials", "failed")
        yield Table(f"{grid.task}, by length", columns, rows)
        yield _grid_table(grid)


def _grid_table(grid: NeedleGrid) -> Table:
    rows = tuple(
        (numbers.depth(depth), *(_cell(grid, length, depth) for length in grid.lengths))
        for depth in grid.depths
    )
    columns = ("depth", *(numbers.tokens(length) for length in grid.lengths))
    return Table(f"{grid.task}, exact by depth and length", columns, rows)


def _cell(grid: NeedleGrid, length: int, depth: float | None) -> str:
    score = grid.cells[length, depth]
    if score.exact is None:
        return "failed" if score.failed else numbers.NONE
    return numbers.share(score.exact) + (f" ({score.failed} failed)" if score.failed else "")


def _perplexity_tables(found: PerplexitySummary) -> Iterator[Table]:
    columns = ("length", "perplexity", "loss", "last tokens", "sliding", "tokens", "windows")
    yield Table(
        "by length",
        columns,
        tuple(
            (
                numbers.tokens(row.length),
                numbers.perplexity(row.whole.perplexity if row.whole else None),
                numbers.loss(row.whole.loss if row.whole else None),
                numbers.loss(row.final.loss if row.final else None),
                numbers.perplexity(row.sliding.perplexity if row.sliding else None),
                numbers.tokens(row.whole.tokens if row.whole else None),
                numbers.tokens(row.whole.windows if row.whole else None),
            )
            for row in found.by_length
        ),
    )
    if found.key is not None:
        share = numbers.NONE if found.key.share is None else f"{found.key.share:.2%}"
        row = (
            numbers.perplexity(found.key.tally.perplexity),
            numbers.tokens(found.key.tally.tokens),
            share,
        )
        yield Table("LongPPL", ("LongPPL", "key tokens", "share of tokens judged"), (row,))
    if found.places:
        rows = tuple(
            (
                f"{place.start:,}–{place.stop:,}",
                numbers.loss(place.tally.loss),
                numbers.tokens(place.tally.tokens),
            )
            for place in found.places
        )
        yield Table("loss by place", ("tokens", "loss", "scored"), rows)
