"""Needles in a haystack: every cell of the grid asked, as little as possible read twice."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ropepatch.evaluate.cells import Cell, Prompt
from ropepatch.evaluate.outlook import Outlook, outlook_of
from ropepatch.evaluate.prompts import PromptMaker
from ropepatch.evaluate.reader import LEAST_CHUNK, Reader, fork, is_out_of_memory
from ropepatch.evaluate.records import generated, key_of, record_of
from ropepatch.evaluate.results import ResultsFolder
from ropepatch.evaluate.sharing import LEAST_SHARE, Sharing
from ropepatch.evaluate.tokens import Tokens

SHORT = 512
"""Tokens up to which whole prompts are read side by side instead of sharing their beginnings."""
_NEVER = 1 << 60
_ROWS = 2
"""Tokens in the caches of a batch, in chunks."""


@dataclass
class Progress:
    """How far a run is."""

    total: int
    done: int = 0
    failed: int = 0
    tokens: int = 0
    """Read in this run."""
    expected: int | None = None
    """Tokens that this run will read in all, if that was counted."""
    seconds: float = 0.0
    note: str | None = None
    """What has just happened that is worth a line."""


Report = Callable[[Progress], None]


@dataclass
class NeedleRun:
    """Reads what a plan asks and keeps each answer as it comes."""

    reader: Reader
    maker: PromptMaker
    tokens: Tokens
    results: ResultsFolder
    scoring: str
    """"likelihood" or "generate"."""
    ends: Sequence[int] = ()
    """Token ids that end a generated answer."""
    reuse: bool = True
    short: int = SHORT
    report: Report = lambda progress: None
    expected: int | None = None
    """Tokens to be read, for the time left."""
    progress: Progress = field(default_factory=lambda: Progress(0))
    _flying: list[Prompt] = field(default_factory=list)
    _kept: int = 0
    _began: float = 0.0

    def run(self, cells: Sequence[Cell]) -> None:
        """Ask what has not been answered yet."""
        left = self._open(cells)
        self.progress = Progress(len(cells), len(cells) - len(left), expected=self.expected)
        self._began, self._kept = time.monotonic(), self.reader.forwarded
        self.report(self.progress)
        for group in self._groups(left):
            self._finish(list(self.maker.prompts(group)))

    def outlook(self, cells: Sequence[Cell]) -> Outlook:
        """What `run` will read."""
        found = Outlook()
        for group in self._groups(self._open(cells)):
            prompts = list(self.maker.prompts(group))
            generating = self.scoring == "generate"
            # The last token of an answer is never read.
            extra = max(p.budget if generating else len(p.answer) for p in prompts) - 1
            found += outlook_of(prompts, self._least(prompts), extra)
        return found

    def _open(self, cells: Sequence[Cell]) -> list[Cell]:
        answered = {key_of(record) for record in self.results.records if not record.get("failed")}
        return [cell for cell in cells if cell.key not in answered]

    def _least(self, prompts: Sequence[Prompt]) -> int:
        """Tokens from which on a common beginning is read on its own."""
        long = max(prompt.cell.length for prompt in prompts) > self.short
        return LEAST_SHARE if self.reuse and long else _NEVER

    def _groups(self, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
        """Cells that may share what is read: under one set of frequencies, short ones apart."""
        groups: dict[int, list[Cell]] = {}
        for cell in cells:
            apart = self.reader.follows_length or cell.length <= self.short
            groups.setdefault(cell.length if apart else 0, []).append(cell)
        return (groups[key] for key in sorted(groups))

    def _finish(self, prompts: list[Prompt]) -> None:
        """Ask all of a group; when memory runs out, less at once, in the end one less."""
        while prompts:
            ran_out = False
            try:
                with torch.inference_mode():
                    self._ask(prompts)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                ran_out = True
            if not ran_out:
                return
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if not self._shrink():
                for prompt in self._flying:
                    self._keep(prompt, {"failed": "out of memory"})
            done = {key_of(record) for record in self.results.records}
            prompts = [prompt for prompt in prompts if prompt.cell.key not in done]

    def _shrink(self) -> bool:
        """Smaller chunks, then nothing shared; False when there is nothing left to try."""
        if self.reader.chunk > LEAST_CHUNK:
            self.reader.chunk = max(self.reader.chunk // 2, LEAST_CHUNK)
            self.progress.note = f"out of memory; going on with chunks of {self.reader.chunk}"
        elif self.reuse:
            self.reuse = False
            self.progress.note = "out of memory; going on without sharing what was read"
        else:
            return False
        self.report(self.progress)
        self.progress.note = None
        return True

    def _ask(self, prompts: Sequence[Prompt]) -> None:
        length = max(prompt.cell.length for prompt in prompts)
        tree = Sharing([prompt.ids for prompt in prompts], self._least(prompts))
        with self.reader.at_length(length):
            stack: list[tuple[Any, Any]] = [(tree.root(), None)]
            while stack:
                branch, cache = stack.pop()
                step = tree.step(branch)
                self._flying = [prompts[i] for i in step.prompts]
                if step.stop > step.start:
                    shared = prompts[step.prompts[0]].ids[step.start : step.stop]
                    cache = self.reader.extend(cache, self.reader.tensor([shared]))
                for batch in self._batches(prompts, step.leaves, step.stop):
                    self._flying = batch
                    self._answer(batch, cache, step.stop)
                for i, further in enumerate(step.branches):
                    last = i == len(step.branches) - 1
                    stack.append((further, cache if last else fork(cache)))
                cache = None  # the last branch has it, and grows it in place

    def _batches(
        self, prompts: Sequence[Prompt], leaves: Sequence[int], start: int
    ) -> Iterator[list[Prompt]]:
        """Prompts of equal size together, as many as a few chunks hold."""
        sizes: dict[tuple[int, int], list[Prompt]] = {}
        for i in leaves:
            prompt = prompts[i]
            sizes.setdefault((len(prompt.ids), len(prompt.answer)), []).append(prompt)
        for (size, _), alike in sizes.items():
            chunk = self.reader.chunk
            rows = max(min(_ROWS * chunk // size, chunk // (size - start)), 1)
            for i in range(0, len(alike), rows):
                yield alike[i : i + rows]

    def _answer(self, batch: list[Prompt], cache: Any, start: int) -> None:
        own = fork(cache, len(batch))
        if self.scoring == "generate":
            ids = self.reader.tensor([prompt.ids[start:] for prompt in batch])
            made = self.reader.greedy(own, ids, batch[0].budget, self.ends)
            for prompt, row in zip(batch, made, strict=True):
                self._keep(prompt, generated(prompt, self.tokens.decode(row)))
            return
        rows = [np.concatenate([prompt.ids[start:], prompt.answer[:-1]]) for prompt in batch]
        first = len(batch[0].ids) - start - 1
        places = range(first, first + len(batch[0].answer))
        logits = self.reader.logits(own, self.reader.tensor(rows), places)
        logprobs = logits.log_softmax(-1)
        best = logprobs.argmax(-1).cpu().numpy()
        for prompt, guess, row in zip(batch, best, logprobs, strict=True):
            truth = torch.from_numpy(prompt.answer.astype(np.int64)).to(row.device)
            own_logprobs = row.gather(-1, truth[:, None])[:, 0].double().cpu().numpy()
            self._keep(prompt, self._likely(prompt, guess, own_logprobs))

    def _likely(self, prompt: Prompt, guess: np.ndarray, logprobs: np.ndarray) -> dict[str, Any]:
        right = guess == prompt.answer
        asked = np.concatenate([np.arange(a, b) for a, b in prompt.spans])
        found = [bool(right[a:b].all()) for a, b in prompt.spans]
        return {
            "exact": int(all(found)),
            "recall": sum(found) / len(found),
            "tokens_right": float(right[asked].mean()),
            "logprob": float(logprobs[asked].mean()),
            "said": self.tokens.decode(guess.tolist()).strip(),
        }

    def _keep(self, prompt: Prompt, score: dict[str, Any]) -> None:
        record = record_of(prompt, score, self.reader.forwarded - self._kept)
        self._kept = self.reader.forwarded
        self.results.add(record)
        self.progress.done += 1
        self.progress.failed += "failed" in score
        self.progress.tokens += record["forwarded"]
        self.progress.seconds = time.monotonic() - self._began
        self.report(self.progress)
