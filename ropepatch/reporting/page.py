"""One page that stands alone: tables, pictures, how each number was made."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ropepatch._version import __version__
from ropepatch.errors import EvaluationError
from ropepatch.reporting import numbers
from ropepatch.reporting.collect import Subject, collect
from ropepatch.reporting.details import details
from ropepatch.reporting.headline import headline, shared_trained_length
from ropepatch.reporting.notes import notes
from ropepatch.reporting.pictures import Picture, draw_all

_TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class Written:
    """A report on the disk."""

    page: Path
    pictures: tuple[Path, ...]
    """PNGs beside it, if they were asked for."""
    subjects: tuple[Subject, ...]
    """What it tells of."""


def write_report(folders: Sequence[Path], output: Path, pictures: Path | None = None) -> Written:
    """Write one self-contained page about all runs in folders.

    Args:
        folders: Of runs, or with runs in them up to three folders deep.
        output: The page; it is replaced in one go.
        pictures: A folder for the pictures as files of their own.

    Raises:
        EvaluationError: a folder holds no run, a run is damaged, or the page cannot be written.
    """
    if output.is_dir():
        raise EvaluationError(f"{output} is a folder; name a file, as in {output / 'report.html'}.")
    subjects = collect(folders)
    drawn = draw_all(subjects)
    _write(output, page(subjects, drawn).encode("utf-8"))
    files: list[Path] = []
    if pictures is not None:
        for picture in drawn:
            files.append(pictures / f"{picture.name}.png")
            _write(files[-1], picture.wide)
    return Written(output, tuple(files), subjects)


def page(subjects: Sequence[Subject], drawn: Sequence[Picture]) -> str:
    """The page as text.

    Args:
        subjects: What it tells of.
        drawn: The pictures, as `draw_all` makes them.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    table, trained = headline(subjects), shared_trained_length(subjects)
    return environment.get_template(_TEMPLATE).render(
        version=__version__,
        write=numbers,
        table=table,
        not_whole=any(not cell.whole for _, cells in table.rows for cell in cells),
        trained=trained,
        notes=notes(subjects),
        pictures=drawn,
        subjects=[(subject, [details(run) for run in subject.runs]) for subject in subjects],
        failures=[
            (subject.label, run.kind, failure)
            for subject in subjects
            for run in subject.runs
            for found in (run.needle, run.perplexity)
            if found is not None
            for failure in found.failures
        ],
        key_rows=[
            (subject.label, subject.perplexity.key)
            for subject in subjects
            if subject.perplexity is not None and subject.perplexity.key is not None
        ],
    )


def _write(path: Path, data: bytes) -> None:
    """All or nothing."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_bytes(data)
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise EvaluationError(f"cannot write {path}: {error.strerror}.") from None
