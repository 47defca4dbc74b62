"""Small measurements while a model is trained: needles and held-out loss, at two lengths."""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.plan import NeedlePlan, PerplexityPlan
from ropepatch.measuring.running import needle, perplexity
from ropepatch.measuring.settings import Settings
from ropepatch.measuring.subject import Subject

_DEPTHS = (0.0, 25.0, 50.0, 75.0, 100.0)


class Checks:
    """Measures the same few things again and again; each measurement is a run on disk."""

    def __init__(
        self,
        tokenizer: Any,
        text: str,
        folder: Path,
        *,
        short: int,
        long: int,
        prompts: int,
        windows: int,
        seed: int,
    ) -> None:
        """Decide what is measured.

        Args:
            tokenizer: Of transformers.
            text: That is not trained on; empty if there is none.
            folder: Gets a folder per measurement, which `ropepatch report` reads.
            short: Tokens within the window of pretraining.
            long: Tokens that are trained for.
            prompts: Needles per length, about.
            windows: Of the text.
            seed: Of needles.
        """
        self.tokenizer, self.text, self.folder = tokenizer, text, folder
        self.lengths: tuple[int, ...] = tuple(sorted({min(short, long), long}))
        self.needles = None
        if prompts:
            depths = _DEPTHS[: min(prompts, len(_DEPTHS))]
            trials = math.ceil(prompts / len(depths))
            self.needles = NeedlePlan(
                self.lengths,
                depths=depths,
                trials=trials,
                seed=seed,
                scoring="likelihood",
                chat="no",
            )
        self.windows = windows if text else 0
        self.notes: list[str] = []

    def measure(self, model: Any, step: int) -> dict[str, float]:
        """Numbers by the names of `healing.goals.METRICS`; what cannot be measured is left out.

        Args:
            model: Of transformers, in training or not; it is left as it was.
            step: After which this is.
        """
        place = self.folder / f"step-{step:06}"
        shutil.rmtree(place, ignore_errors=True)
        training = model.training
        try:
            subject = Subject.of(model, self.tokenizer, f"step {step}")
            settings = Settings(label=f"step {step}")
            found = self._found(subject, place / "needle", settings)
            return found | self._read(subject, place / "perplexity", settings)
        finally:
            model.train(training)

    def _found(self, subject: Subject, place: Path, settings: Settings) -> dict[str, float]:
        if self.needles is None:
            return {}
        try:
            run = needle(subject, self.needles, place, settings)
        except EvaluationError as error:  # a window too short for a needle and its question
            self.needles = None
            self.notes.append(f"needles are not measured: {error}")
            return {}
        by_length = {
            length: _mean(
                [r["exact"] for r in run.records if r["length"] == length and "exact" in r]
            )
            for length in self.lengths
        }
        return {"needle": by_length[self.lengths[-1]], "needle_short": by_length[self.lengths[0]]}

    def _read(self, subject: Subject, place: Path, settings: Settings) -> dict[str, float]:
        if not self.windows:
            return {}
        plan = PerplexityPlan(self.lengths, max_windows=self.windows, final_tokens=None, buckets=1)
        try:
            run = perplexity(subject, plan, [("held out", self.text)], place, settings)
        except EvaluationError as error:  # too short a text, for one
            self.windows = 0
            self.notes.append(f"the held-out loss is not measured: {error}")
            return {}
        losses = {length: loss_at(run.records, length) for length in self.lengths}
        return {"loss": losses[self.lengths[-1]], "loss_short": losses[self.lengths[0]]}


def loss_at(records: Sequence[Mapping[str, Any]], length: int) -> float:
    """Nats per token of a perplexity run, at one length."""
    sums = [r["lengths"][str(length)] for r in records if str(length) in r.get("lengths", {})]
    count = sum(tokens for _, tokens in sums)
    return sum(nats for nats, _ in sums) / count if count else math.nan


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
