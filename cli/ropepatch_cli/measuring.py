"""What was measured, as tables in the terminal: the same numbers as in the report."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropepatch_cli.terminal import Listing, bold, dim, line, print_json

if TYPE_CHECKING:
    from ropepatch.evaluate.measures import Failure, NeedleGrid, NeedleSummary, PerplexitySummary
    from ropepatch.reporting.collect import Subject
    from ropepatch.reporting.headline import Cell
    from ropepatch.reporting.page import Written


def needle(summary: "NeedleSummary", trained_length: int | None = None) -> None:
    """One task: a row per depth, a column per length; several: a row per task."""
    lengths = summary.lengths
    several = len(summary.grids) != 1
    listing = Listing("task" if several else "depth", *_length_columns(lengths, trained_length))
    if several:
        _task_rows(listing, summary)
    else:
        _depth_rows(listing, summary.grids[0])
    listing.show()
    _beyond(lengths, trained_length)
    if summary.share is not None:
        line(
            f"{summary.trials:,} answers; {summary.forwarded:,} tokens forwarded of "
            f"{summary.nominal:,} nominal ({summary.share:.0%})."
        )
    failures(summary.failures)


def _depth_rows(listing: Listing, grid: "NeedleGrid") -> None:
    from ropepatch.reporting import numbers

    for depth in grid.depths:
        cells = [grid.cells[length, depth] for length in grid.lengths]
        listing.add(numbers.depth(depth), *(_share(c.exact, c.failed) for c in cells))
    scores = list(grid.by_length.values())
    listing.add("all", *(_share(s.exact, s.failed) for s in scores))
    listing.add("95 %", *(numbers.interval(s.low, s.high) for s in scores))


def _task_rows(listing: Listing, summary: "NeedleSummary") -> None:
    for grid in summary.grids:
        listing.add(grid.task, *(_share(s.exact, s.failed) for s in grid.by_length.values()))
    listing.add("all", *(_share(s.exact, s.failed) for s in summary.by_length.values()))


def _share(exact: float | None, failed: int) -> str:
    from ropepatch.reporting import numbers

    if exact is None:
        return "failed" if failed else numbers.NONE
    return numbers.share(exact) + ("†" if failed else "")


def perplexity(summary: "PerplexitySummary", trained_length: int | None = None) -> None:
    """A row per length; columns for what was measured."""
    from ropepatch.reporting import numbers

    rows = summary.by_length
    has_final, has_sliding = any(r.final for r in rows), any(r.sliding for r in rows)
    columns = ["length", ">perplexity"]
    columns += [">loss, last tokens"] * has_final + [">sliding"] * has_sliding + [">tokens"]
    listing = Listing(*columns)
    for row in rows:
        beyond = trained_length is not None and row.length > trained_length
        cells = [f"{row.length:,}{'+' if beyond else ''}"]
        cells.append(numbers.perplexity(row.whole.perplexity if row.whole else None))
        if has_final:
            cells.append(numbers.loss(row.final.loss if row.final else None))
        if has_sliding:
            cells.append(numbers.perplexity(row.sliding.perplexity if row.sliding else None))
        cells.append(numbers.tokens(row.whole.tokens if row.whole else None))
        listing.add(*cells)
    listing.show()
    _beyond(summary.lengths, trained_length)
    if summary.key is not None:
        share = summary.key.share
        line(
            f"LongPPL {numbers.perplexity(summary.key.tally.perplexity)} over "
            f"{summary.key.tally.tokens:,} key tokens"
            + (f" ({share:.2%} of those judged)." if share is not None else ".")
        )
    windows = "window" if summary.windows == 1 else "windows"
    line(f"{summary.windows:,} {windows}; {summary.forwarded:,} tokens forwarded.")
    failures(summary.failures)


def comparison(subjects: "Sequence[Subject]") -> None:
    """A table per kind: a row per method, a column per length; a star before the best."""
    from ropepatch.reporting.headline import headline

    table = headline(subjects)
    trained = table.trained_length
    for kind, title in (("needle", "needles found at"), ("perplexity", "perplexity at")):
        own = [i for i, column in enumerate(table.columns) if column.kind == kind]
        if not own:
            continue
        lengths = [table.columns[i].length for i in own]
        listing = Listing(title, *_length_columns(lengths, trained))
        for subject, cells in table.rows:
            listing.add(subject.label, *(_starred(cells[i]) for i in own))
        listing.show()
        line("")
    starred = any(cell.best for _, cells in table.rows for cell in cells)
    if starred:
        line(dim("* best of its column, by the number alone; the report has the intervals."))
    _beyond([column.length for column in table.columns], trained)
    if any(not cell.whole for _, cells in table.rows for cell in cells):
        line(dim("† an answer or a window is missing: it failed or has not been asked yet."))


def _starred(cell: "Cell") -> str:
    return f"{'*' if cell.best else ''}{cell.text}{'' if cell.whole else '†'}"


def failures(found: "Sequence[Failure]") -> None:
    """What gave no number, one a line."""
    for failure in found:
        line(f"failed: {failure.what}, {failure.count} ×: {failure.reason}")


def _length_columns(lengths: Sequence[int], trained: int | None) -> list[str]:
    from ropepatch.plots.canvas import short_length

    return [f">{short_length(n)}{'+' if trained and n > trained else ''}" for n in lengths]


def _beyond(lengths: Sequence[int], trained: int | None) -> None:
    if trained is not None and any(length > trained for length in lengths):
        line(dim(f"+ beyond the trained length, {trained:,} tokens."))


def written(report: "Written", *, as_json: bool) -> None:
    """Everything that a report tells, and where it is."""
    if as_json:
        print_json(
            {
                "page": str(report.page),
                "pictures": [str(path) for path in report.pictures],
                "subjects": [subject.to_dict() for subject in report.subjects],
            }
        )
        return
    if len(report.subjects) == 1:
        (subject,) = report.subjects
        if subject.needle is not None:
            needle(subject.needle, subject.trained_length)
        if subject.perplexity is not None:
            perplexity(subject.perplexity, subject.trained_length)
    else:
        comparison(report.subjects)
    for path in report.pictures:
        line(f"picture: {path}")
    line(f"written: {bold(str(report.page))}")
