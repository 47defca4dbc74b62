"""Perplexity by length: one pass gives every shorter length, sums are weighted by tokens.

A mean of window means would weight a short window like a long one, so windows are kept as sums
of nats and counts of tokens, and divided once, at the end.
"""

import gc
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ropepatch.evaluate.head import LossReader
from ropepatch.evaluate.key_tokens import KeyJudge
from ropepatch.evaluate.needle import Progress, Report
from ropepatch.evaluate.outlook import Outlook
from ropepatch.evaluate.plan import PerplexityPlan
from ropepatch.evaluate.reader import LEAST_CHUNK, Reader, is_out_of_memory
from ropepatch.evaluate.results import ResultsFolder
from ropepatch.evaluate.windows import Corpus, Window


@dataclass(frozen=True)
class Job:
    """One piece of work: the window once, or the same text by a sliding window."""

    kind: str
    """"window" or "sliding"."""
    window: Window
    length: int
    """Tokens of the window that slides; of the whole window otherwise."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from the others."""
        return (self.kind, self.window.document, self.window.number, self.length)


@dataclass
class PerplexityRun:
    """Reads what a plan asks and keeps each window as it is done."""

    reader: Reader
    corpus: Corpus
    results: ResultsFolder
    judge: KeyJudge | None = None
    report: Report = lambda progress: None
    expected: int | None = None
    """Tokens to be read, for the time left."""
    progress: Progress = field(default_factory=lambda: Progress(0))

    @property
    def plan(self) -> PerplexityPlan:
        """What is asked."""
        return self.corpus.plan

    def jobs(self) -> list[Job]:
        """All pieces of work."""
        windows = list(self.corpus.windows())
        jobs = [Job("window", window, len(window.ids)) for window in windows]
        if self.plan.stride is not None:
            lengths = self.plan.lengths
            jobs += [Job("sliding", window, length) for window in windows for length in lengths]
        return jobs

    def outlook(self, jobs: list[Job]) -> Outlook:
        """What `run` will read."""
        found = Outlook()
        for job in self._open(jobs):
            size, plan = len(job.window.ids), self.plan
            shorter = [length for length in plan.lengths if length < size]
            if job.kind == "sliding":
                assert plan.stride is not None
                steps = max(-(-(size - job.length) // plan.stride), 0) + 1
                shorter = [job.length] * steps
            else:
                found.add(0, size)
                if not self.reader.follows_length:
                    shorter = shorter if plan.final_tokens is not None else []
                elif plan.final_tokens is not None:
                    shorter *= 2
                if self.judge is not None and self.judge.other is None:
                    shorter += [self.judge.row] * self.judge.rows(size)
            for length in shorter:
                found.add(0, length)
        return found

    def _open(self, jobs: list[Job]) -> list[Job]:
        done = {_key(record) for record in self.results.records if not record.get("failed")}
        return [job for job in jobs if job.key not in done]

    def run(self, jobs: list[Job]) -> None:
        """Read what has not been read yet."""
        left = self._open(jobs)
        self.progress = Progress(len(jobs), len(jobs) - len(left), expected=self.expected)
        self.report(self.progress)
        began = time.monotonic()
        loss = LossReader(self.reader)
        for job in left:
            before = self.reader.forwarded
            record = self._measured(loss, job)
            record["forwarded"] = self.reader.forwarded - before
            self.results.add(record)
            self.progress.done += 1
            self.progress.failed += "failed" in record
            self.progress.tokens += record["forwarded"]
            self.progress.seconds = time.monotonic() - began
            self.report(self.progress)

    def _measured(self, loss: LossReader, job: Job) -> dict[str, Any]:
        """The record of a job; when memory runs out, in smaller chunks, in the end as failed."""
        record: dict[str, Any] = {
            "kind": job.kind,
            "document": job.window.document,
            "window": job.window.number,
            "length": job.length,
        }
        while True:
            try:
                with torch.inference_mode():
                    work = self._window if job.kind == "window" else self._sliding
                    return record | work(loss, job)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if self.reader.chunk <= LEAST_CHUNK:
                return record | {"failed": "out of memory"}
            self.reader.chunk = max(self.reader.chunk // 2, LEAST_CHUNK)
            self.progress.note = f"out of memory; going on with chunks of {self.reader.chunk}"
            self.report(self.progress)
            self.progress.note = None

    def _pass(self, loss: LossReader, ids: np.ndarray, first: int) -> np.ndarray:
        """Losses of the tokens from `first` on, under the frequencies of the text's own length."""
        with self.reader.at_length(len(ids)):
            return loss.losses(self.reader.tensor([ids]), first)[0].numpy()

    def _window(self, loss: LossReader, job: Job) -> dict[str, Any]:
        window, plan = job.window, self.plan
        ids, first = window.ids, max(window.leading, 1)
        whole = self._pass(loss, ids, first)
        by_place = np.full(len(ids), np.nan)
        by_place[first:] = whole
        sums: dict[str, list[float]] = {}
        for length in plan.lengths:
            part = whole[: length - first]
            if length < len(ids) and self.reader.follows_length:
                part = self._pass(loss, ids[:length], first)
            sums[str(length)] = [float(part.sum()), len(part)]
        record: dict[str, Any] = {
            "lengths": sums,
            "buckets": [
                [int(a), int(b), float(np.nansum(part)), int(np.isfinite(part).sum())]
                for a, b in _edges(len(ids), plan.buckets)
                for part in [by_place[a:b]]
            ],
        }
        if plan.final_tokens is not None:
            record["final"] = dict(self._final(loss, window, whole[-plan.final_tokens :]))
        if self.judge is not None:
            record["key"] = self._key_tokens(loss, window, by_place)
        return record

    def _final(
        self, loss: LossReader, window: Window, longest: np.ndarray
    ) -> Iterator[tuple[str, list[float]]]:
        """The same last tokens under each length: only the context before them grows."""
        count, lead = len(longest), window.ids[: window.leading]
        for length in self.plan.lengths:
            part = longest
            if length < len(window.ids):
                ids = np.concatenate([lead, window.ids[len(window.ids) - length + len(lead) :]])
                part = self._pass(loss, ids, length - count)
            yield str(length), [float(part.sum()), count]

    def _key_tokens(self, loss: LossReader, window: Window, by_place: np.ndarray) -> dict[str, Any]:
        assert self.judge is not None
        chosen = self.judge.chosen(loss, window, by_place)
        places = np.flatnonzero(chosen & np.isfinite(by_place))
        judged = int(np.isfinite(by_place).sum()) - self.judge.context
        return {
            "tokens": len(places),
            "judged": max(judged, 0),
            "nats": float(by_place[places].sum()),
        }

    def _sliding(self, loss: LossReader, job: Job) -> dict[str, Any]:
        """Windows of `length` tokens that move by the stride; only what is new is scored."""
        window, stride = job.window, self.plan.stride
        assert stride is not None
        lead, text = window.ids[: window.leading], window.ids[window.leading :]
        room = job.length - len(lead)
        nats, count, scored = 0.0, 0, 0
        for start in range(0, len(text), stride):
            stop = min(start + room, len(text))
            ids = np.concatenate([lead, text[start:stop]])
            first = max(scored - start + len(lead), 1)
            losses = self._pass(loss, ids, first)
            nats, count, scored = nats + float(losses.sum()), count + len(losses), stop
            if stop == len(text):
                break
        return {"sliding": [nats, count]}


def _edges(length: int, buckets: int) -> Iterator[tuple[int, int]]:
    """Equal parts of a window, as token places."""
    edges = np.linspace(0, length, min(buckets, length) + 1).round().astype(int)
    return itertools.pairwise(edges)


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("kind", "document", "window", "length"))
