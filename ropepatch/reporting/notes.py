"""What a reader must know to read the numbers right."""

from collections.abc import Iterator, Sequence

from ropepatch.reporting.collect import Subject, differences


def notes(subjects: Sequence[Subject]) -> tuple[str, ...]:
    """Sentences under the table; only those that these runs give cause for."""
    found = [*_needle_notes(subjects), *_perplexity_notes(subjects)]
    different = differences(subjects)
    if different:
        found.append(
            "These runs were asked different things, so their numbers are not simply comparable: "
            f"{'. '.join(different)}."
        )
    return tuple(found)


def _needle_notes(subjects: Sequence[Subject]) -> Iterator[str]:
    runs = [run for subject in subjects for run in subject.runs if run.needle is not None]
    if not runs:
        return
    per_cell = sorted({run.plan["trials"] for run in runs if run.plan.get("trials")})
    totals = sorted(
        {score.trials for run in runs if run.needle for score in run.needle.by_length.values()}
    )
    cells = f"{_range(per_cell)} trial{'' if per_cell == [1] else 's'} a cell, " if per_cell else ""
    answers = f"{_range(totals)} answers a length"
    yield (
        f"Needle scores are means over depths: {cells}{answers}. The small numbers under them are "
        "95 % Wilson intervals; where those of two rows overlap widely, the difference is no "
        "finding, whichever is marked as best."
    )
    scorings = {str(run.asked.get("scoring")) for run in runs}
    if "likelihood" in scorings:
        yield (
            "Scored by likelihood: an answer is right when each of its tokens is the likeliest one "
            "after the right tokens before it."
        )
    if any(run.plan.get("protocol") == "shared" for run in runs):
        yield (
            "Protocol 'shared': one text holds the needles of all depths, and each is asked for by "
            "its key; the others distract from it."
        )
    if any(run.needle and len(run.needle.grids) > 1 for run in runs):
        yield "Several tasks were asked; the table takes them together, the pictures apart."
    yield (
        "A needle shows that a far token can be reached, not that a long text is understood. In a "
        "model with sliding-window layers, only the layers that attend globally reach a far "
        "needle, so a single one says little about the others."
    )


def _range(values: Sequence[int]) -> str:
    if not values:
        return "no"
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"


def _perplexity_notes(subjects: Sequence[Subject]) -> Iterator[str]:
    read = [subject.perplexity for subject in subjects if subject.perplexity is not None]
    if not read:
        return
    windows = sorted({found.windows for found in read})
    yield (
        f"Perplexity is exp(all nats / all tokens) over {_range(windows)} "
        f"window{'' if windows == [1] else 's'} of the longest length; each length reads the "
        "beginning of the same windows."
    )
    has_final = any(row.final for found in read for row in found.by_length)
    yield "Perplexity falls with length even where far context is ignored. " + (
        "Look at the loss on the same last tokens to see whether it is used."
        if has_final
        else "The loss on the same last tokens would show whether it is used; it was not measured."
    )
    if any(found.key for found in read):
        yield (
            "LongPPL is the perplexity over key tokens alone: those that the long context makes "
            "likelier. Where a run chooses its own key tokens, runs differ in which they are."
        )
