"""Can a model still use what stands far away? Its loss, without and with an extension.

    python recipes/far_loss.py FOLDER [FOLDER ...] [--plot loss.png]
    python recipes/far_loss.py FOLDER [FOLDER ...] --full [--plot loss.png]

The quick check reads a passage twice, the second time with positions further and further away.
(To move all of a text would show nothing: rotary embeddings see only how far apart two tokens
are.) The second reading is easy for a model that attends across the gap, since it need only copy;
a model that cannot is no better than at the first reading, and one whose attention breaks is far
worse. No token stands in the gap. That makes the check cheap, and milder than a text that really
is so long, where everything between competes for attention: a model that fails here fails there.

`--full` is the real thing: one text of 16,384 tokens, its loss by place in the text. For a model of
135M parameters a folder takes half a minute, or two with `--full`, on two idle cores.

The texts are the topics of Python's own `help()`, so nothing is downloaded; they differ a little
between versions of Python, and so do the losses. All is float32 on the CPU.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import ropepatch

_BLOCK = 512
"""Tokens per call of the head; logits of a whole text would fill gigabytes."""

_COLOURS = ("#c44e52", "#4c72b0", "#55a868", "#8172b3", "#937860")


@dataclass(frozen=True)
class Curve:
    """The losses of one folder."""

    label: str
    places: list[int]
    """Position of the last token read, each."""
    losses: list[float]
    """Nats per token."""
    first: float | None = None
    """At the first reading, for comparison."""


class Reader:
    """A checkpoint that reads."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def tokens(self, text: str) -> torch.Tensor:
        """Token ids, (tokens,)."""
        ids = self.tokenizer(text, verbose=False)["input_ids"]
        return torch.tensor(ids)

    @torch.inference_mode()
    def losses(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Loss of each token but the first, (texts, tokens - 1), at the given positions.

        Args:
            ids: Token ids, (texts, tokens).
            positions: Where each token stands, (tokens,).
        """
        hidden = self.model.base_model(
            input_ids=ids,
            position_ids=positions.expand(len(ids), -1),
            # Without a mask, transformers takes a jump in the positions for a new document.
            attention_mask=torch.ones_like(ids),
            use_cache=False,
        ).last_hidden_state
        states, targets = hidden[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        head = self.model.get_output_embeddings()
        parts = [
            torch.nn.functional.cross_entropy(head(block), target, reduction="none")
            for block, target in zip(states.split(_BLOCK), targets.split(_BLOCK), strict=True)
        ]
        return torch.cat(parts).view(len(ids), -1)


def read_again(
    reader: Reader, label: str, passages: int, size: int, places: Sequence[int]
) -> Curve:
    """Read passages twice, the second reading ending at each of `places`."""
    longest = sorted(topics.values(), key=len, reverse=True)[:passages]
    passage = torch.stack([reader.tokens(text)[:size] for text in longest])
    twice = torch.cat([passage, passage], dim=1)
    near, losses, first = torch.arange(size), [], 0.0
    for place in places:
        positions = torch.cat([near, near + place + 1 - size])
        loss = reader.losses(twice, positions)
        first = loss[:, : size - 1].mean().item()
        losses.append(loss[:, size:].mean().item())  # the passage's first token follows nothing
    return Curve(label, list(places), losses, first)


def read_through(reader: Reader, label: str, tokens: int, bucket: int) -> Curve:
    """Read one long text, and average its loss by bucket."""
    text = "\n\n".join(sorted(topics.values(), key=len, reverse=True))
    ids = reader.tokens(text)[:tokens]
    buckets = reader.losses(ids[None], torch.arange(len(ids)))[0].split(bucket)
    places = [min((i + 1) * bucket, len(ids)) - 1 for i in range(len(buckets))]
    return Curve(label, places, [part.mean().item() for part in buckets])


def show(curves: Sequence[Curve], trained: int, heading: str) -> None:
    """Print a row per place, a column per folder, a line where training ended."""
    widths = [max(len(c.label), 8) for c in curves]
    columns = [f"{c.label:>{w}}" for c, w in zip(curves, widths, strict=True)]
    print(f"{heading:>16}  " + "  ".join(columns))
    ruled = False
    for i, place in enumerate(curves[0].places):
        if place >= trained and not ruled:
            print(f"{'trained to':>9} {trained:>6,}  " + "  ".join("-" * w for w in widths))
            ruled = True
        values = [f"{c.losses[i]:>{w}.3f}" for c, w in zip(curves, widths, strict=True)]
        print(f"{place + 1:>16,}  " + "  ".join(values))


def draw(path: Path, curves: Sequence[Curve], trained: int, title: str, xlabel: str) -> None:
    """Draw loss by place, one curve per folder; beyond the trained length the ground is grey."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="tight")
    axes = figure.add_subplot()
    end = max(curves[0].places[-1] + 1, trained)
    axes.axvspan(trained, end * 1.02, color="0.95", zorder=0)
    axes.annotate(
        "beyond the trained length",
        (trained + end * 0.01, 0.95),
        xycoords=axes.get_xaxis_transform(),
        color="0.4",
        fontsize="small",
    )
    for i, curve in enumerate(curves):
        colour = _COLOURS[i % len(_COLOURS)]
        xs = [place + 1 for place in curve.places]
        axes.plot(xs, curve.losses, "o-", color=colour, markersize=4, label=curve.label)
        if curve.first is not None:
            axes.axhline(curve.first, color=colour, linestyle=":", linewidth=1)
    if curves[0].first is not None:
        axes.plot([], [], ":", color="0.4", linewidth=1, label="at the first reading")
    step = trained // 2 if end <= 3 * trained else trained
    axes.set_xticks(range(0, end + 1, step))
    axes.set_xlim(0, end * 1.02)
    axes.set_ylim(0, 1.12 * max(loss for curve in curves for loss in curve.losses))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.set_xlabel(xlabel)
    axes.set_ylabel("loss, nats per token")
    axes.set_title(title)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Read the arguments, then the texts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="checkpoint folders, the plain first")
    parser.add_argument("--full", action="store_true", help="read a long text instead")
    parser.add_argument("--tokens", type=int, default=16384, help="of --full")
    parser.add_argument("--bucket", type=int, default=2048, help="of --full, tokens per row")
    parser.add_argument("--passages", type=int, default=3)
    parser.add_argument("--size", type=int, default=192, help="tokens per passage")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw a picture")
    asked = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    layouts = {folder: ropepatch.inspect(folder).layout for folder in asked.folders}
    trained = min(layout.trained_length for layout in layouts.values())
    reach = max(layout.configured_length for layout in layouts.values())
    quarters = [quarter * trained // 4 for quarter in (1, 2, 3, 4, 5, 6, 8, 12, 16)]
    places = [2 * asked.size - 1, *(q - 1 for q in quarters if 2 * asked.size < q <= reach)]
    curves = []
    for folder in asked.folders:
        started = time.monotonic()
        reader = Reader(folder)
        if asked.full:
            curves.append(read_through(reader, folder.name, asked.tokens, asked.bucket))
        else:
            curve = read_again(reader, folder.name, asked.passages, asked.size, places)
            curves.append(curve)
        print(f"read by {folder.name} in {time.monotonic() - started:.0f} s", flush=True)
    print()
    show(curves, trained, "up to token" if asked.full else "second ends at")
    if not asked.full:
        firsts = ", ".join(f"{curve.first:.3f}" for curve in curves)
        print(f"\nfirst reading: {firsts}; below that the model copies, above it is led astray")
    if asked.plot is not None:
        if asked.full:
            words = (f"One long text, mean of every {asked.bucket:,} tokens", "tokens read")
        else:
            words = ("Reading a passage again, from a distance", "the second reading ends at token")
        draw(asked.plot, curves, trained, *words)
        print(f"picture: {asked.plot}")


if __name__ == "__main__":
    main()
