"""Runs found in folders, and put together by what they measured."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropepatch.errors import EvaluationError, GeometryError
from ropepatch.evaluate.measures import NeedleSummary, PerplexitySummary
from ropepatch.evaluate.results import RESULTS, RUN, read_results, read_run
from ropepatch.evaluate.summaries import needle_summary, perplexity_summary
from ropepatch.evaluate.tasks.table import TASKS
from ropepatch.geometry import Frequencies, RotaryGeometry

DEEPEST = 3
"""Folders between one that is named and a run in it."""
KINDS = ("needle", "perplexity")
_SUBJECT = ("model", "recipe", "conversion")
"""What of a run is the very thing that is compared."""


@dataclass(frozen=True)
class Schedule:
    """Frequencies of a group of layers, before and after."""

    geometry: RotaryGeometry
    base: Frequencies
    now: Frequencies


@dataclass(frozen=True)
class Run:
    """One folder with a `run.json`."""

    folder: Path
    kind: str
    label: str
    asked: Mapping[str, Any]
    about: Mapping[str, Any]
    needle: NeedleSummary | None
    perplexity: PerplexitySummary | None
    schedules: Mapping[str, Schedule]
    """By the label of the layers; empty where nothing was noted."""

    @property
    def plan(self) -> Mapping[str, Any]:
        """The words of the plan."""
        return self.asked.get("plan") or {}

    @property
    def answers_per_length(self) -> int:
        """Needles that the plan asks at each length; 0 where it does not say."""
        plan = self.plan
        depths = len(plan.get("depths") or ())
        whole = [task in TASKS and not TASKS[task].has_depth for task in plan.get("tasks") or ()]
        cells = sum(1 if alone else depths for alone in whole)
        return cells * int(plan.get("trials") or 0)


@dataclass(frozen=True)
class Subject:
    """What is compared: a model under one method, measured by one run or one of each kind."""

    label: str
    runs: tuple[Run, ...]

    @property
    def needle(self) -> NeedleSummary | None:
        """Of its needle run."""
        return next((run.needle for run in self.runs if run.needle is not None), None)

    @property
    def perplexity(self) -> PerplexitySummary | None:
        """Of its perplexity run."""
        return next((run.perplexity for run in self.runs if run.perplexity is not None), None)

    @property
    def answers_per_length(self) -> int:
        """Of its needle run, as planned."""
        return max((run.answers_per_length for run in self.runs), default=0)

    @property
    def trained_length(self) -> int | None:
        """Tokens."""
        return self._noted("trained_length")

    @property
    def target_length(self) -> int | None:
        """Tokens that the change is meant for."""
        return self._noted("target_length")

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """Of the first run that noted any."""
        return next((run.schedules for run in self.runs if run.schedules), {})

    def _noted(self, name: str) -> int | None:
        values = (run.about.get(name) for run in self.runs)
        return next((value for value in values if isinstance(value, int)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        return {
            "label": self.label,
            "folders": [str(run.folder) for run in self.runs],
            "trained_length": self.trained_length,
            "target_length": self.target_length,
            "needle": self.needle.to_dict() if self.needle else None,
            "perplexity": self.perplexity.to_dict() if self.perplexity else None,
        }


def collect(folders: Sequence[Path]) -> tuple[Subject, ...]:
    """All runs in folders, in the order in which they were named, then started.

    Raises:
        EvaluationError: a folder holds no run, or a run is damaged.
    """
    found: dict[Path, Run] = {}
    for folder in folders:
        try:
            places = list(_runs_in(folder, DEEPEST))
        except OSError as error:
            raise EvaluationError(f"cannot read {folder}: {error.strerror}.") from None
        if not places:
            raise EvaluationError(
                f"{folder} holds no run: there is no {RUN} in it or in folders up to {DEEPEST} "
                "deep; name a folder that `ropepatch evaluate` or `ropepatch compare` wrote."
            )
        runs = [read(place) for place in places]
        for run in sorted(runs, key=lambda run: str(run.about.get("started") or "")):
            found.setdefault(run.folder.resolve(), run)
    return _distinct(_together(found.values()))


def _runs_in(folder: Path, deeper: int) -> Iterator[Path]:
    if (folder / RUN).is_file() and (deeper == DEEPEST or not _is_foreign(folder / RUN)):
        yield folder
        return
    if deeper == 0 or not folder.is_dir():
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and not inner.name.startswith("."):
            yield from _runs_in(inner, deeper - 1)


def _is_foreign(path: Path) -> bool:
    """Whether somebody else's program has named a file like ours; a damaged one is ours."""
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
        return words["asked"]["kind"] not in KINDS
    except (KeyError, TypeError):
        return True
    except (OSError, ValueError):
        return False


def read(folder: Path) -> Run:
    """One run.

    Raises:
        EvaluationError: it is damaged.
    """
    words = read_run(folder)
    asked, about = words["asked"], words.get("about") or {}
    kind, plan = asked.get("kind"), asked.get("plan") or {}
    trials = plan.get("trials", 1) if isinstance(plan, dict) else None
    if kind not in KINDS or not isinstance(trials, int) or not isinstance(about, dict):
        raise EvaluationError(
            f"{folder / RUN} describes neither a needle nor a perplexity run; take the folder "
            "out, or measure again."
        )
    records = list(read_results(folder))
    try:
        needle = needle_summary(records, plan) if kind == "needle" else None
        perplexity = perplexity_summary(records) if kind == "perplexity" else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvaluationError(
            f"{folder / RESULTS} does not read as results of a {kind} run "
            f"({type(error).__name__}: {error}); measure again in a new folder."
        ) from None
    try:
        schedules = {k: _schedule(v) for k, v in (about.get("frequencies") or {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError, GeometryError) as error:
        raise EvaluationError(
            f"{folder / RUN} notes frequencies that cannot be read "
            f"({type(error).__name__}: {error}); measure again in a new folder."
        ) from None
    label = str(about.get("label") or about.get("model") or folder.resolve().name)
    return Run(folder, kind, label, asked, about, needle, perplexity, schedules)


def _schedule(words: Mapping[str, Any]) -> Schedule:
    geometry = words["geometry"]
    turning = geometry.get("turning_pairs")
    return Schedule(
        RotaryGeometry(
            int(geometry["head_dim"]),
            int(geometry["rotary_dim"]),
            float(geometry["theta"]),
            int(geometry["trained_length"]),
            None if turning is None else int(turning),
        ),
        Frequencies(tuple(map(float, words["base"]))),
        Frequencies(tuple(map(float, words["now"])), float(words.get("attention_factor") or 1)),
    )


def _together(runs: Iterable[Run]) -> list[Subject]:
    """A needle and a perplexity run of the same label and model become one subject."""
    subjects: list[Subject] = []
    for run in runs:
        for i, subject in enumerate(subjects):
            first = subject.runs[0]
            alike = (first.label, first.about.get("model")) == (run.label, run.about.get("model"))
            if alike and all(other.kind != run.kind for other in subject.runs):
                subjects[i] = replace(subject, runs=(*subject.runs, run))
                break
        else:
            subjects.append(Subject(run.label, (run,)))
    return subjects


def _distinct(subjects: Sequence[Subject]) -> tuple[Subject, ...]:
    """Equal labels get as much of their folders' paths as tells them apart."""
    labels = [subject.label for subject in subjects]
    named = []
    for subject in subjects:
        if labels.count(subject.label) == 1:
            named.append(subject)
            continue
        alike = [_home(other) for other in subjects if other.label == subject.label]
        own, depth = _home(subject), 1
        while sum(path.parts[-depth:] == own.parts[-depth:] for path in alike) > 1:
            depth += 1
            if depth > len(own.parts):
                break
        where = "/".join(own.parts[-depth:])
        named.append(replace(subject, label=f"{subject.label} ({where})"))
    return tuple(named)


def _home(subject: Subject) -> Path:
    """The folder that tells a subject from others: not the one called after its kind."""
    folder = subject.runs[0].folder.resolve()
    return folder.parent if folder.name in KINDS else folder


def differences(subjects: Sequence[Subject]) -> tuple[str, ...]:
    """What was asked differently of the subjects, the model aside: one sentence each."""
    found = []
    for kind in KINDS:
        runs = [(s.label, r) for s in subjects for r in s.runs if r.kind == kind]
        flat = [(label, dict(_flat(run.asked))) for label, run in runs]
        names = dict.fromkeys(name for _, words in flat for name in words)
        for name in names:
            values: dict[str, list[str]] = {}
            for label, words in flat:
                said = json.dumps(words.get(name), ensure_ascii=False)
                values.setdefault(said, []).append(label)
            if len(values) > 1:
                parts = (f"{_short(said)} ({', '.join(who)})" for said, who in values.items())
                found.append(f"{kind}: {name} is {'; '.join(parts)}")
    return tuple(found)


def _flat(words: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in words.items():
        if not path and name in _SUBJECT:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
