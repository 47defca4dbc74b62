"""Records summed up: needle grids and scores, perplexities weighted by tokens.

A cell asked twice counts once, as it was asked last.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ropepatch.evaluate.measures import (
    Failure,
    KeyTokens,
    LengthLoss,
    NeedleGrid,
    NeedleSummary,
    PerplexitySummary,
    Place,
    Score,
    Tally,
    finite,
)
from ropepatch.evaluate.tasks.table import TASKS

Record = Mapping[str, Any]

_Z = 1.959963984540054
"""Standard deviations of a two-sided 95 % interval."""
_NEEDLE_KEY = ("task", "length", "depth", "trial")
_PERPLEXITY_KEY = ("kind", "document", "window", "length")


def wilson(right: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference":
    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n).
    """
    share, z2 = right / trials, _Z**2
    middle = share + z2 / (2 * trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    scale = 1 + z2 / trials
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def needle_summary(
    records: Iterable[Record], plan: Mapping[str, Any] | None = None
) -> NeedleSummary:
    """Sum up answers.

    Args:
        records: Of `results.jsonl`, in its order.
        plan: What was asked; its cells are there even where no answer is yet.
    """
    rows, plan = _latest(records, _NEEDLE_KEY), plan or {}
    tasks = _names([*plan.get("tasks", ()), *(row["task"] for row in rows)])
    lengths = sorted({*plan.get("lengths", ()), *(row["length"] for row in rows)})
    grids = []
    for task in tasks:
        own = [row for row in rows if row["task"] == task]
        depths = _depths(task, own, plan)
        groups: dict[tuple[int, float | None], list[Record]] = {
            (length, depth): [] for length in lengths for depth in depths
        }
        for row in own:
            groups[row["length"], _depth(row["depth"])].append(row)
        cells = {place: _score(group) for place, group in groups.items()}
        grids.append(NeedleGrid(task, tuple(lengths), depths, cells, _by_length(own, lengths)))
    failures = Counter(
        (f"{row['task']} at {row['length']:,} tokens", str(row["failed"]))
        for row in rows
        if row.get("failed")
    )
    return NeedleSummary(
        tuple(grids),
        _by_length(rows, lengths),
        sum(row.get("forwarded") or 0 for row in rows),
        sum(row.get("tokens") or 0 for row in rows),
        tuple(Failure(what, why, count) for (what, why), count in failures.items()),
    )


def _depths(task: str, rows: Sequence[Record], plan: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Of a task; None alone for one that is about the whole text."""
    if task in TASKS and not TASKS[task].has_depth:
        return (None,)
    found = {_depth(depth) for depth in [*plan.get("depths", ()), *(row["depth"] for row in rows)]}
    return tuple(sorted(found, key=lambda depth: -1.0 if depth is None else depth))


def _depth(value: Any) -> float | None:
    return None if value is None else float(value)


def perplexity_summary(records: Iterable[Record]) -> PerplexitySummary:
    """Sum up windows.

    Args:
        records: Of `results.jsonl`, in its order.
    """
    rows = _latest(records, _PERPLEXITY_KEY)
    good = [row for row in rows if not row.get("failed")]
    windows = [row for row in good if row["kind"] == "window"]
    slid = [row for row in good if row["kind"] == "sliding"]
    whole = _tallies((n, pair) for row in windows for n, pair in row["lengths"].items())
    final = _tallies((n, pair) for row in windows for n, pair in row.get("final", {}).items())
    sliding = _tallies((row["length"], row["sliding"]) for row in slid)
    lengths = sorted({*whole, *final, *sliding})
    places = _tallies(
        ((start, stop), (nats, tokens))
        for row in windows
        for start, stop, nats, tokens in row.get("buckets", ())
    )
    keys = [row["key"] for row in windows if row.get("key")]
    key = None
    if keys:
        tally = _tallies((0, (k["nats"], k["tokens"])) for k in keys)[0]
        key = KeyTokens(tally, sum(k["judged"] for k in keys))
    longest = whole[max(whole)].tokens if whole else 0
    return PerplexitySummary(
        tuple(LengthLoss(n, whole.get(n), final.get(n), sliding.get(n)) for n in lengths),
        tuple(Place(a, b, places[a, b]) for a, b in sorted(places)),
        key,
        len(windows),
        longest,
        sum(row.get("forwarded") or 0 for row in rows),
        tuple(_window_failures(rows)),
    )


def _window_failures(rows: Sequence[Record]) -> Iterable[Failure]:
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        what = "whole windows" if row["kind"] == "window" else "sliding windows"
        pairs = [*row.get("lengths", {}).values(), *([row["sliding"]] if "sliding" in row else [])]
        why = row.get("failed")
        if not why and any(finite(nats) is None for nats, _ in pairs):
            why = "the loss is no finite number"
        if why:
            found[f"{what} of {row['length']:,} tokens", str(why)] += 1
    return (Failure(what, why, count) for (what, why), count in found.items())


def _latest(records: Iterable[Record], names: Sequence[str]) -> list[Record]:
    """One record per key: the last, in the place of the first."""
    found: dict[tuple[Any, ...], Record] = {}
    for record in records:
        found[tuple(record[name] for name in names)] = record
    return list(found.values())


def _by_length(rows: Sequence[Record], lengths: Sequence[int]) -> dict[int, Score]:
    groups: dict[int, list[Record]] = {length: [] for length in lengths}
    for row in rows:
        groups[row["length"]].append(row)
    return {length: _score(group) for length, group in groups.items()}


def _score(rows: Sequence[Record]) -> Score:
    good = [row for row in rows if not row.get("failed")]
    trials, right = len(good), sum(int(row["exact"]) for row in good)
    low, high = wilson(right, trials) if trials else (None, None)
    return Score(
        right / trials if trials else None,
        _mean([row.get("recall") for row in good]),
        _mean([row.get("logprob") for row in good]),
        trials,
        len(rows) - trials,
        low,
        high,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """None as soon as one value is missing: a mean over some would flatter."""
    known = [value for value in values if value is not None]
    return finite(math.fsum(known) / len(known)) if known and len(known) == len(values) else None


def _tallies(pairs: Iterable[tuple[Any, Sequence[float]]]) -> dict[Any, Tally]:
    """Sums by key; a length that JSON made a text is a number again."""
    found: dict[Any, list[Sequence[float]]] = {}
    for key, pair in pairs:
        found.setdefault(int(key) if isinstance(key, str) else key, []).append(pair)
    return {
        key: Tally(sum(nats for nats, _ in group), int(sum(n for _, n in group)), len(group))
        for key, group in found.items()
    }


def _names(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
