"""One model under many methods: loaded once, patched in memory, measured alike."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropepatch.errors import (
    AlreadyScaledError,
    EvaluationError,
    PatchConflictError,
    RecipeError,
    RopepatchError,
)
from ropepatch.evaluate.plan import NeedlePlan, PerplexityPlan
from ropepatch.evaluate.results import RUN
from ropepatch.evaluate.windows import Corpus
from ropepatch.measuring.running import needle, perplexity
from ropepatch.measuring.settings import Settings
from ropepatch.measuring.subject import Subject
from ropepatch.methods.table import METHODS, method_class
from ropepatch.recipe import Recipe
from ropepatch.recipe_files import read_value

NONE = "none"
_MULTIPLES = (0.5, 1, 2, 4)


@dataclass(frozen=True)
class Entry:
    """One row of a comparison."""

    label: str
    recipe: Recipe | None
    """None for the model as it is."""

    @property
    def folder(self) -> str:
        """A name for a folder."""
        return "".join(c if c.isalnum() or c in "-_.=" else "_" for c in self.label)


def entries_of(methods: str | Sequence[str], factor: float) -> tuple[Entry, ...]:
    """What to compare, from 'none,yarn,ntk:factor=8,dynamic-ntk:ntk_factor=2'.

    Args:
        methods: Names of methods, each with values of its own after colons if it needs any.
        factor: For methods that take one and name none.

    Raises:
        RecipeError: a method or a value is unknown; all faults together.
        EvaluationError: two of them are the same.
    """
    words = methods.split(",") if isinstance(methods, str) else list(methods)
    entries, faults = [], []
    for word in (word.strip() for word in words if word.strip()):
        try:
            entries.append(Entry(word, None if word == NONE else _recipe(word, factor)))
        except RecipeError as error:
            faults += [f"{word}: {fault}" for fault in error.faults]
    if faults:
        raise RecipeError(faults)
    if not entries:
        raise EvaluationError(f"name methods to compare: {NONE}, {', '.join(METHODS)}.")
    folders = {entry.folder for entry in entries}
    recipes = {repr(entry.recipe.to_dict() if entry.recipe else None) for entry in entries}
    if min(len(folders), len(recipes)) != len(entries):
        raise EvaluationError("each row of a comparison must be another one; some are the same.")
    return tuple(entries)


def _recipe(word: str, factor: float) -> Recipe:
    name, *settings = word.split(":")
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise RecipeError(f"write NAME=VALUE after the colon, not '{setting}'")
        values[key.strip().replace("-", "_")] = read_value(value)
    fields = {field.name for field in dataclasses.fields(method_class(name))}
    if "factor" in fields and not values.keys() & {"factor", "to"}:
        values["factor"] = factor
    if name == "p-rope":
        values.setdefault("keep", "auto")
    if name == "longrope" and not values.keys() & {"long_factor", "factors"}:
        raise RecipeError("needs lists that belong to one model; extend with them and evaluate")
    return Recipe.from_dict({"method": name, **values})


def lengths_of(trained: int, factor: float) -> tuple[int, ...]:
    """Half the trained length, all of it, twice, four times, up to the factor and with it."""
    multiples = [m for m in _MULTIPLES if m <= max(factor, 1)]
    if factor not in multiples and factor > 1:
        multiples.append(factor)
    return tuple(int(trained * m) for m in multiples)


def compare(
    subject: Subject,
    entries: Sequence[Entry],
    folder: Path,
    settings: Settings,
    *,
    needle_plan: NeedlePlan | None,
    perplexity_plan: PerplexityPlan | None,
    texts: list[tuple[str, str]],
    source: str = "",
    haystack: Path | None = None,
) -> tuple[Entry, ...]:
    """Measure a model under each entry; what the folder has already is not measured again.

    Args:
        subject: A loaded model, not patched; it is left as it was.
        entries: In the order of the rows.
        folder: Gets a folder per entry, with one run for each kind of measurement.
        settings: As of a single run; its label is that of each entry.
        needle_plan: What to ask, or None.
        perplexity_plan: What to read, or None.
        texts: For the perplexity.
        source: What those are called.
        haystack: To hide needles in; None for the package's own.

    Raises:
        RopepatchError: a method does not fit the model (before anything is measured), or a run
            is refused.
    """
    _check_folder(folder)
    for entry in entries:  # what cannot be done is refused before hours are spent
        _check(entry, subject)
    if perplexity_plan is not None:
        Corpus(perplexity_plan, subject.tokens, texts, subject.vocabulary)
    for entry in entries:
        with _patched(subject, entry):
            settings.say(f"measuring {entry.label}")
            own = replace(settings, label=entry.label)
            about = {"entry": entry.label}
            if needle_plan is not None:
                place = folder / entry.folder / "needle"
                needle(subject, needle_plan, place, own, haystack=haystack, about=about)
            if perplexity_plan is not None:
                place = folder / entry.folder / "perplexity"
                perplexity(subject, perplexity_plan, texts, place, own, source=source, about=about)
    return tuple(entries)


def _check(entry: Entry, subject: Subject) -> None:
    try:
        with _patched(subject, entry):
            pass
    except (AlreadyScaledError, PatchConflictError):
        raise EvaluationError(
            f"{subject.name} carries a scaling or a patch already, on top of which nothing can be "
            "compared; compare the unscaled checkpoint (`ropepatch restore` gives it back), or "
            "`ropepatch evaluate` this one as it is."
        ) from None
    except RopepatchError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (f"{entry.label}: {error.args[0]}", *error.args[1:])
        raise


def _check_folder(folder: Path) -> None:
    """Nothing but comparisons may be in it."""
    if folder.is_dir() and any(folder.iterdir()) and not any(folder.glob(f"*/*/{RUN}")):
        raise EvaluationError(f"{folder} holds other things than runs; choose a new folder.")


@contextmanager
def _patched(subject: Subject, entry: Entry) -> Iterator[None]:
    from ropepatch.model.patching import patch

    made = None if entry.recipe is None else patch(subject.model, entry.recipe)
    try:
        yield
    finally:
        if made is not None:
            made.revert()
