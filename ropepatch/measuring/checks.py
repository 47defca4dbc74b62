"""Small needle tests while a model is trained, at two lengths."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.plan import NeedlePlan
from ropepatch.measuring.running import needle
from ropepatch.measuring.settings import Settings
from ropepatch.measuring.subject import Subject

_DEPTHS = (0.0, 25.0, 50.0, 75.0, 100.0)


class Checks:
    """Measures the same few things again and again; each measurement is a run on disk."""

    def __init__(
        self,
        tokenizer: Any,
        folder: Path,
        *,
        short: int,
        long: int,
        prompts: int,
        seed: int,
    ) -> None:
        """Decide what is measured.

        Args:
            tokenizer: Of transformers.
            folder: Gets a folder per measurement, which `ropepatch report` reads.
            short: Tokens within the window of pretraining.
            long: Tokens that are trained for.
            prompts: Needles per length, about.
            seed: Of needles.
        """
        self.tokenizer, self.folder = tokenizer, folder
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
            return self._found(subject, place / "needle", settings)
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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
