"""What the evaluating commands do: from words to a plan, a model, a run and its report."""

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch_cli.evaluating_bar import Bar, bar

if TYPE_CHECKING:
    from ropepatch.measuring.settings import Settings
    from ropepatch.measuring.subject import Candidate, Opening, Subject

__all__ = ["bar"]


@dataclass(frozen=True)
class Server:
    """A served model, if one is asked."""

    url: str | None
    model: str | None
    concurrency: int
    timeout: float


def opening(model: str, **words: Any) -> "Opening":
    """How a model is to be loaded, checked."""
    from ropepatch.errors import EvaluationError
    from ropepatch.measuring.subject import Opening

    if not model:
        raise EvaluationError("--model is missing: a folder, an id of the hub, or a GGUF file.")
    return Opening(model, **words)


def settings(shown: Bar, *, reuse: bool, chunk: int | None) -> "Settings":
    """How the run is done."""
    from ropepatch.measuring.settings import Settings

    return Settings(
        reuse=reuse,
        chunk=chunk,
        command=shlex.join(["ropepatch", *sys.argv[1:]]),
        say=shown.say,
        report=shown.report,
    )


def needle_words(
    task: str,
    depths: str,
    *,
    trials: int,
    seed: int,
    protocol: str,
    scoring: str,
    chat: bool | None,
) -> dict[str, Any]:
    """The words of a needle plan, but for its lengths."""
    from ropepatch.evaluate.plan import parse_depths

    return {
        "tasks": tuple(name.strip() for name in task.split(",") if name.strip()),
        "depths": parse_depths(depths),
        "trials": trials,
        "seed": seed,
        "protocol": protocol,
        "scoring": scoring,
        "chat": "auto" if chat is None else "yes" if chat else "no",
    }


def needle(
    opening: "Opening",
    lengths: str,
    words: dict[str, Any],
    folder: Path,
    settings: "Settings",
    *,
    haystack: Path | None,
    server: Server,
    memory_check: bool,
) -> bool:
    """Run a grid; whether this process tells of it."""
    from ropepatch.errors import EvaluationError
    from ropepatch.evaluate.plan import NeedlePlan
    from ropepatch.measuring.running import needle
    from ropepatch.measuring.served import served_needle
    from ropepatch.measuring.subject import Candidate

    _check_haystack(haystack)
    if lengths:  # what is wrong with them is said before anything is read
        NeedlePlan(_lengths(lengths, None), **words)
    if server.url is not None:
        served_needle(
            opening,
            NeedlePlan(_lengths(lengths, None), **words),
            folder,
            settings,
            haystack=haystack,
            url=server.url,
            served_model=server.model or opening.model,
            concurrency=server.concurrency,
            timeout=server.timeout,
        )
        return True
    if server.model is not None:
        raise EvaluationError("--served-model belongs to --endpoint; give that too.")
    candidate = Candidate(opening, settings.say)
    plan = NeedlePlan(_lengths(lengths, candidate), **words)
    subject = _loaded(
        candidate,
        max(plan.lengths),
        settings,
        memory_check=memory_check,
        copies=2 if settings.reuse else 1,
    )
    needle(subject, plan, folder, settings, haystack=haystack)
    return subject.ranks.rank == 0


def perplexity(
    opening: "Opening",
    lengths: str,
    words: dict[str, Any],
    folder: Path,
    settings: "Settings",
    *,
    final_tokens: int | None,
    longppl: bool,
    short_context: str | None,
    text: str | None,
    judge: str | None,
    memory_check: bool,
) -> bool:
    """Read texts; whether this process tells of it."""
    from ropepatch.errors import EvaluationError
    from ropepatch.evaluate.plan import PerplexityPlan
    from ropepatch.measuring.running import perplexity
    from ropepatch.measuring.subject import Candidate
    from ropepatch.measuring.texts import texts_of

    if judge is not None and not longppl:
        raise EvaluationError("--judge chooses key tokens for LongPPL; add --longppl.")

    def planned(sizes: tuple[int, ...]) -> PerplexityPlan:
        usual = min(256, max(min(sizes, default=2) // 2, 1))
        return PerplexityPlan(
            sizes,
            final_tokens=usual if final_tokens is None else final_tokens or None,
            key_context=_short_context(short_context, max(sizes, default=4)) if longppl else None,
            **words,
        )

    if lengths:  # what is wrong with them is said before anything is read
        planned(_lengths(lengths, None))
    candidate = Candidate(opening, settings.say)
    plan = planned(_lengths(lengths, candidate))
    texts, source = texts_of(text, plan.lengths[-1], plan.max_windows)
    other = None
    if judge is not None:
        other = Candidate(replace(opening, model=judge, revision=None, tokenizer=None))
    subject = _loaded(candidate, plan.lengths[-1], settings, memory_check=memory_check, copies=1)
    judging = other.load() if other else None
    perplexity(subject, plan, texts, folder, settings, source=source, judge=judging)
    return subject.ranks.rank == 0


def compare(
    opening: "Opening",
    methods: str,
    factor: float,
    lengths: str,
    folder: Path,
    settings: "Settings",
    *,
    needles: dict[str, Any] | None,
    windows: int | None,
    haystack: Path | None,
    text: str | None,
    memory_check: bool,
) -> bool:
    """Measure a model under each method; whether this process tells of it."""
    from ropepatch import comparing
    from ropepatch.errors import EvaluationError
    from ropepatch.evaluate.plan import NeedlePlan, PerplexityPlan
    from ropepatch.measuring.subject import Candidate
    from ropepatch.measuring.texts import texts_of

    _check_haystack(haystack)
    entries = comparing.entries_of(methods, factor)
    candidate = Candidate(opening, settings.say)
    if candidate.layout is None:
        raise EvaluationError(f"{opening.model} turns nothing, so there is no method to compare.")
    sizes = comparing.lengths_of(candidate.layout.trained_length, factor)
    if lengths:
        sizes = _lengths(lengths, None)
    asked = None if needles is None else NeedlePlan(sizes, **needles)
    read, texts, source = None, None, ""
    if windows is not None:
        final = min(256, max(min(sizes) // 2, 1))
        read = PerplexityPlan(sizes, max_windows=windows, final_tokens=final)
        texts, source = texts_of(text, max(sizes), windows)
    subject = _loaded(candidate, max(sizes), settings, memory_check=memory_check, copies=2)
    comparing.compare(
        subject,
        entries,
        folder,
        settings,
        needle_plan=asked,
        perplexity_plan=read,
        texts=texts or [],
        source=source,
        haystack=haystack,
    )
    return subject.ranks.rank == 0


def _short_context(words: str | None, longest: int) -> int:
    """Tokens of LongPPL's short context."""
    from ropepatch.errors import EvaluationError, RecipeError
    from ropepatch.recipe import parse_length

    if words is None:
        return max(min(4096, longest // 4), 1)
    try:
        return parse_length(words)
    except RecipeError as error:
        raise EvaluationError(f"--short-context: {error}") from None


def output_of(output: Path | None, model: str, what: str) -> Path:
    """Where results go."""
    name = Path(model).absolute().name.removesuffix(".gguf")
    return output if output is not None else Path(f"{name or 'model'}-{what}")


def finished(folder: Path, *, as_json: bool) -> None:
    """Write the report of a folder and show its tables."""
    from ropepatch.reporting.page import write_report
    from ropepatch_cli import measuring

    written = write_report([folder], folder / "report.html", folder)
    measuring.written(written, as_json=as_json)


def _lengths(words: str, candidate: "Candidate | None") -> tuple[int, ...]:
    """As asked, or half, all and twice of the trained length."""
    from ropepatch.errors import EvaluationError
    from ropepatch.evaluate.plan import parse_lengths

    if words:
        return parse_lengths(words)
    if candidate is None or candidate.layout is None:
        raise EvaluationError("nothing here names a trained length; give --lengths.")
    trained = candidate.layout.trained_length
    return (trained // 2, trained, 2 * trained)


def _loaded(
    candidate: "Candidate", longest: int, settings: "Settings", *, memory_check: bool, copies: int
) -> "Subject":
    """The model, after its memory was weighed."""
    from ropepatch.measuring.room import check_memory

    if memory_check:
        settings.say(check_memory(candidate, longest, settings, copies))
    settings.say(f"loading {candidate.opening.model}")
    return candidate.load()


def _check_haystack(haystack: Path | None) -> None:
    if haystack is not None and not haystack.exists():
        from ropepatch.errors import EvaluationError

        raise EvaluationError(f"the haystack {haystack} does not exist.")
