"""Runs: a plan, a loaded model, a folder for the results."""

import datetime
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch._version import __version__
from ropepatch.errors import EvaluationError
from ropepatch.evaluate.plan import NeedlePlan, PerplexityPlan
from ropepatch.evaluate.results import ResultsFolder
from ropepatch.measuring.forecast import forecast
from ropepatch.measuring.room import reader_of
from ropepatch.measuring.settings import Settings
from ropepatch.measuring.subject import Subject

if TYPE_CHECKING:
    from ropepatch.evaluate.haystack import Haystack
    from ropepatch.evaluate.key_tokens import KeyJudge
    from ropepatch.evaluate.tokens import Tokens


_USUAL = Settings()


@dataclass(frozen=True)
class NeedleWords:
    """What of a needle plan the model decides."""

    chat: bool
    scoring: str


def resolved(plan: NeedlePlan, tokens: "Tokens", ends: Sequence[int], name: str) -> NeedleWords:
    """Whether the chat template is used, and how answers are scored.

    Raises:
        EvaluationError: a chat template is asked for and missing, or generation would never end.
    """
    chat = plan.chat == "yes" or (plan.chat == "auto" and tokens.chats(ends, name))
    if chat:
        tokens.chat_frame()  # says what is wrong with it, if anything
    scoring = ("generate" if chat else "likelihood") if plan.scoring == "auto" else plan.scoring
    if scoring == "generate" and not ends:
        raise EvaluationError(
            "neither the tokenizer nor the generation config names an end-of-sequence token, so a "
            "generated answer has no end; use --scoring likelihood."
        )
    return NeedleWords(chat, scoring)


def needle(
    subject: Subject,
    plan: NeedlePlan,
    folder: Path,
    settings: Settings = _USUAL,
    *,
    haystack: Path | None = None,
    about: Mapping[str, Any] | None = None,
) -> ResultsFolder:
    """Ask a grid of questions; what the folder has already answered is not asked again.

    Raises:
        EvaluationError: the plan does not fit the model, or the folder holds another run.
    """
    from ropepatch.evaluate.cells import cells_of
    from ropepatch.evaluate.needle import SHORT, NeedleRun
    from ropepatch.evaluate.prompts import PromptMaker

    words = resolved(plan, subject.tokens, subject.ends(), subject.name)
    straw, digest = haystack_of(subject.tokens, plan.seed, haystack)
    reader = reader_of(subject, max(plan.lengths), settings)
    maker = PromptMaker(plan, subject.tokens, straw, chat=words.chat, scoring=words.scoring)
    cells = cells_of(plan)
    maker.check(cells, subject.vocabulary)
    asked = {
        "kind": "needle",
        "plan": plan.to_dict(),
        "scoring": words.scoring,
        "chat": words.chat,
        "haystack": digest,
        "ends": list(subject.ends()) if words.scoring == "generate" else None,
        **_model_words(subject),
    }
    results = ResultsFolder(folder, asked, {**_about(subject, settings), **(about or {})})
    _opened(results, subject)
    with results:
        run = NeedleRun(
            reader,
            maker,
            subject.tokens,
            results,
            words.scoring,
            ends=subject.ends(),
            reuse=settings.reuse,
            short=SHORT if settings.short is None else settings.short,
            report=settings.report,
        )
        part = subject.ranks.part(cells)
        if subject.ranks.rank == 0:
            ahead = run.outlook(part)
            run.expected = ahead.tokens
            settings.say(forecast(subject, reader, ahead))
        run.run(part)
        _merged(results, subject)
    return results


def perplexity(
    subject: Subject,
    plan: PerplexityPlan,
    texts: list[tuple[str, str]],
    folder: Path,
    settings: Settings = _USUAL,
    *,
    source: str = "",
    judge: Subject | None = None,
    about: Mapping[str, Any] | None = None,
) -> ResultsFolder:
    """Read texts; windows that the folder already has are not read again.

    Raises:
        EvaluationError: the texts are too short, or the folder holds another run.
    """
    import hashlib

    from ropepatch.evaluate.perplexity import PerplexityRun
    from ropepatch.evaluate.windows import Corpus

    corpus = Corpus(plan, subject.tokens, texts, subject.vocabulary)
    reader = reader_of(subject, max(plan.lengths), settings, whole=True)
    digest = hashlib.sha256("\0".join(text for _, text in texts).encode()).hexdigest()[:16]
    asked = {
        "kind": "perplexity",
        "plan": plan.to_dict(),
        "text": digest,
        "bos": bool(corpus.leading),
        "judge": judge.fingerprint if judge else None,
        **_model_words(subject),
    }
    words = {
        **_about(subject, settings),
        "text": source,
        "documents": len(corpus.documents),
        "text_tokens": corpus.tokens,
        **(about or {}),
    }
    results = ResultsFolder(folder, asked, words)
    _opened(results, subject)
    with results:
        judging = _judge(plan, subject, judge, settings)
        run = PerplexityRun(reader, corpus, results, judging, settings.report)
        part = subject.ranks.part(run.jobs())
        if subject.ranks.rank == 0:
            ahead = run.outlook(part)
            run.expected = ahead.tokens
            settings.say(forecast(subject, reader, ahead))
        run.run(part)
        _merged(results, subject)
    return results


def haystack_of(tokens: "Tokens", seed: int, path: Path | None) -> tuple["Haystack", str]:
    """The text to hide needles in, and what tells it from others.

    Raises:
        EvaluationError: the user's cannot be read, or is empty.
    """
    from ropepatch.evaluate.haystack import Haystack, given_sentences, own_sentences

    if path is None:
        return Haystack(tokens, own_sentences(seed)), "own"
    sentences, digest = given_sentences(path)
    return Haystack(tokens, sentences), digest


def _judge(
    plan: PerplexityPlan, subject: Subject, judge: Subject | None, settings: Settings
) -> "KeyJudge | None":
    if plan.key_context is None:
        return None
    from ropepatch.evaluate.head import LossReader
    from ropepatch.evaluate.key_tokens import KeyJudge

    if judge is None:
        return KeyJudge(plan, subject.tokens)
    other = LossReader(reader_of(judge, max(plan.lengths), settings, whole=True))
    return KeyJudge(plan, subject.tokens, other, judge.tokens)


def _opened(results: ResultsFolder, subject: Subject) -> None:
    """The first process makes the folder, or refuses it; the others follow."""
    if subject.ranks.rank == 0:
        results.open()
    subject.ranks.wait()
    if subject.ranks.rank != 0:
        results.open(subject.ranks.rank)


def _merged(results: ResultsFolder, subject: Subject) -> None:
    subject.ranks.wait()
    if subject.ranks.rank == 0:
        results.merge()
    subject.ranks.wait()


def _model_words(subject: Subject) -> dict[str, Any]:
    """What of the model decides the results."""
    from ropepatch.config_json.converted import read_conversion
    from ropepatch.model.patching import patch_of

    patch = patch_of(subject.model)
    converted = read_conversion(subject.model.config.to_dict())
    return {
        "model": subject.fingerprint,
        "tokenizer": subject.tokens.digest(),
        "recipe": None if patch is None else patch.recipe.to_dict(),
        "conversion": None if converted is None else converted["conversion"],
        "dtype": subject.dtype,
        "attention": subject.attention,
    }


def _about(subject: Subject, settings: Settings) -> dict[str, Any]:
    import torch
    import transformers

    from ropepatch.measuring.frequencies import frequencies_of

    return {
        "label": settings.label or Path(subject.name).name,
        "model": subject.name,
        "trained_length": subject.trained_length,
        **frequencies_of(subject),
        "command": settings.command,
        "device": subject.device,
        "processes": subject.ranks.world,
        "reuse": settings.reuse,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "ropepatch": __version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
