"""What all pictures share: the sheet they are drawn on, colours, and how lengths are written."""

import io
import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ropepatch.errors import CheckpointError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B4C9A")
"""Okabe and Ito's, which colour-blind people tell apart; the yellow, too pale for a line, is left
out, and a violet added."""
MARKERS = ("o", "s", "D", "v", "P", "X", "p")
DASHES = ("-", "--", ":", "-.")
_LONGEST_LABEL = 40


def sheet(width: float, height: float) -> "Figure":
    """An empty picture of so many inches, on no window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: "Figure", path: Path) -> None:
    """Write a picture as the suffix of `path` says (png, svg, pdf).

    Raises:
        CheckpointError: the picture cannot be written, or its suffix is unknown.
    """
    try:
        _write(figure, path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"cannot write the picture {path}: {reason}.") from None


def png(figure: "Figure") -> bytes:
    """The picture as the bytes of a PNG."""
    buffer = io.BytesIO()
    _write(figure, buffer)
    return buffer.getvalue()


def _write(figure: "Figure", to: Path | IO[bytes]) -> None:
    with warnings.catch_warnings():  # a name in a script that the font lacks is drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(to, dpi=150)


def colour(i: int) -> str:
    """Of the i-th run, in all pictures."""
    return COLOURS[i % len(COLOURS)]


def marker(i: int) -> str:
    """Of the i-th run."""
    return MARKERS[i % len(MARKERS)]


def dashes(i: int) -> str:
    """Of the i-th run; they change when the colours begin again."""
    return DASHES[i // len(COLOURS) % len(DASHES)]


def plain(text: str) -> str:
    """A name as matplotlib shows it unchanged: no formula, in the legend, on one short line."""
    text = " ".join(text.split())
    if len(text) > _LONGEST_LABEL:
        text = f"{text[: _LONGEST_LABEL // 2 - 1]}…{text[-_LONGEST_LABEL // 2 :]}"
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib hides what begins with "_"


def short_length(tokens: float) -> str:
    """4096 as 4k, as people say it; what is no whole multiple of 1024 with commas."""
    whole = round(tokens)
    for unit, size in (("m", 1024**2), ("k", 1024)):
        if whole >= size and whole % size == 0:
            return f"{whole // size:,}{unit}"
    return f"{whole:,}"
