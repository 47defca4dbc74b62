"""What each method gains at long range and costs at short range, without training.

    python recipes/compare_methods.py FOLDER [--only yarn-x2 ntk-x2] [--json FILE] [--plot FILE]

Extends the checkpoint by each method in turn (hard links, so no space is used), reads one text of
16,384 tokens with each, and prints the mean loss within the trained length and beyond it. About
90 seconds a method for SmolLM2-135M on two idle cores. README's table comes from here.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from far_loss import Curve, Reader, draw, read_through
from transformers.utils import logging

import ropepatch

METHODS: dict[str, dict[str, object]] = {
    "yarn-x2": {"method": "yarn", "factor": 2},
    "ntk-x2": {"method": "ntk", "factor": 2},
    "ntk-by-parts-x2": {"method": "ntk-by-parts", "factor": 2},
    "llama3-x2": {"method": "llama3", "factor": 2},
    "dynamic-ntk-x2": {"method": "dynamic-ntk", "factor": 2},
    "dynamic-ntk-x2-a2": {"method": "dynamic-ntk", "factor": 2, "ntk_factor": 2},
    "dynamic-ntk-x2-a4": {"method": "dynamic-ntk", "factor": 2, "ntk_factor": 4},
    "pi-x2": {"method": "pi", "factor": 2},
    "p-rope-auto": {"method": "p-rope", "keep": "auto"},
    "yarn-x4": {"method": "yarn", "factor": 4},
    "yarn-x4-warm1": {"method": "yarn", "factor": 4, "attention_factor": 1.0},
    "ntk-x4": {"method": "ntk", "factor": 4},
}


def measure(folder: Path, names: list[str], tokens: int) -> dict[str, Curve]:
    """The curve of the plain checkpoint, then of each method."""
    curves = {"plain": read_through(Reader(folder), "plain", tokens, 2048)}
    with tempfile.TemporaryDirectory(prefix=".compare-", dir=folder.resolve().parent) as scratch:
        for name in names:
            started = time.monotonic()
            target = Path(scratch) / name
            ropepatch.extend(folder, ropepatch.Recipe.from_dict(METHODS[name]), target)
            curves[name] = read_through(Reader(target), name, tokens, 2048)
            print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    return curves


def show(curves: dict[str, Curve], trained: int) -> None:
    """Mean loss inside and beyond the trained length, and how far each is from plain."""
    print(f"\n{'method':<20}{'inside':>8}{'cost':>8}{'beyond':>8}{'last':>8}  loss by 2k bucket")
    plain = None
    for name, curve in curves.items():
        inside = [loss for p, loss in zip(curve.places, curve.losses, strict=True) if p < trained]
        beyond = curve.losses[len(inside) :]
        mean = sum(inside) / len(inside)
        plain = mean if plain is None else plain
        buckets = " ".join(f"{loss:.3f}" for loss in curve.losses)
        far = sum(beyond) / len(beyond) if beyond else float("nan")
        print(
            f"{name:<20}{mean:>8.3f}{mean - plain:>+8.3f}{far:>8.3f}{curve.losses[-1]:>8.3f}  "
            f"{buckets}",
            flush=True,
        )


def main() -> None:
    """Read the arguments, then the text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a plain checkpoint")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=[*METHODS], metavar="NAME")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    asked = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    trained = ropepatch.inspect(asked.folder).layout.trained_length
    curves = measure(asked.folder, asked.only, asked.tokens)
    show(curves, trained)
    if asked.json is not None:
        losses = {name: curve.losses for name, curve in curves.items()}
        asked.json.write_text(json.dumps(losses, indent=1) + "\n", encoding="utf-8")
    if asked.plot is not None:
        chosen = [curves[n] for n in ("plain", "yarn-x2", "ntk-x2", "pi-x2") if n in curves]
        draw(asked.plot, chosen, trained, "One long text, by method", "place in the text")


if __name__ == "__main__":
    main()
