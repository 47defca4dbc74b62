"""Heal the tiny retriever after every kind of change, and measure it before and after.

    python recipes/heal_tiny.py --output FOLDER [--cases yarn pi p-rope-0.25 p-rope-0.5 alibi nope]

For each case: extend or convert recipes/models/tiny-retriever (window 256), train it as
recipes/heal/tiny*.yaml says on documents of `tiny_documents.py`, ask for needles and read a text
at one, two, four and eight windows. What FOLDER has already is not done again. Prints the table of
the README.
"""

import argparse
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

import ropepatch
from ropepatch.evaluate.plan import NeedlePlan, PerplexityPlan
from ropepatch.evaluate.sentences import sentences
from ropepatch.measuring.running import needle, perplexity
from ropepatch.measuring.settings import Settings
from ropepatch.measuring.subject import Candidate, Opening
from ropepatch.recovering.case import Way

HERE = Path(__file__).parent
BASE = HERE / "models" / "tiny-retriever"
LENGTHS = (256, 512, 1024, 2048)
CASES: dict[str, tuple[dict[str, Any], str, float]] = {
    "yarn": ({"method": "yarn", "factor": 4}, "tiny-yarn", 0.4),
    "pi": ({"method": "pi", "factor": 4}, "tiny-pi", 0.4),
    "p-rope-0.5": ({"method": "p-rope", "keep": 0.5, "to": 1024}, "tiny", 0.2),
    "p-rope-0.25": ({"method": "p-rope", "keep": 0.25, "to": 1024}, "tiny", 0.2),
    "alibi": ({"to": "alibi", "alibi_bias_max": 12, "slope_scale": 16}, "tiny-convert", 0.06),
    "nope": ({"to": "nope"}, "tiny-convert", 0.06),
}
"""What is done to the model, the recipe that heals it, and the share of long documents."""


def changed(name: str, folder: Path) -> Path:
    """The model extended or converted."""
    target = folder / f"{name}"
    words = CASES[name][0]
    if not target.exists():
        if "method" in words:
            ropepatch.extend(BASE, words, target)
        else:
            ropepatch.convert_checkpoint(BASE, words, target)
    return target


def healed(name: str, folder: Path, data: Path) -> Path:
    """The changed model, trained."""
    target = folder / f"{name}-healed"
    if not target.exists():
        plan = yaml.safe_load((HERE / "heal" / f"{CASES[name][1]}.yaml").read_text())
        way = Way(say=lambda text: print(f"{name}: {text}", file=sys.stderr, flush=True))
        ropepatch.heal(changed(name, folder), data, plan, target, teacher=BASE, way=way)
    return target


def measured(model: Path, place: Path, text: str, trials: int) -> tuple[list[float], list[float]]:
    """Needles found and nats per token, at each length."""
    subject = Candidate(Opening(str(model), device="cpu")).load()
    asked = NeedlePlan(LENGTHS, depths=(0.0, 25.0, 50.0, 75.0, 100.0), trials=trials, seed=1)
    found = needle(subject, asked, place / "needle", Settings()).records
    plan = PerplexityPlan(LENGTHS, max_windows=16, final_tokens=None)
    windows = perplexity(subject, plan, [("text", text)], place / "text", Settings()).records
    scores, losses = [], []
    for length in LENGTHS:
        right = [r["exact"] for r in found if r["length"] == length]
        scores.append(sum(right) / len(right))
        sums = [r["lengths"][str(length)] for r in windows]
        losses.append(sum(n for n, _ in sums) / sum(t for _, t in sums))
    return scores, losses


def main() -> None:
    """All cases, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--trials", type=int, default=20, help="Prompts per length and depth.")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    data = {}
    for share in {CASES[name][2] for name in given.cases}:
        data[share] = given.output / f"documents-{share:g}.jsonl"
        if not data[share].exists():
            command = [sys.executable, HERE / "tiny_documents.py", data[share]]
            subprocess.run([*command, "--documents", "6000", "--long", str(share)], check=True)
    text = " ".join(itertools.islice(sentences(77), 4000))  # by a seed that no text was drawn by
    rows = [("as it was", BASE, given.output / "measured" / "base")]
    for name in given.cases:
        done = healed(name, given.output, data[CASES[name][2]])
        rows.append(
            (f"{name}, zero-shot", changed(name, given.output), given.output / "measured" / name)
        )
        rows.append((f"{name}, healed", done, given.output / "measured" / f"{name}-healed"))
    print(f"| | {' | '.join(f'{length:,}' for length in LENGTHS)} |\n|---|{'---|' * len(LENGTHS)}")
    for label, model, place in rows:
        scores, losses = measured(model, place, text, given.trials)
        cells = (f"{s:.2f} · {loss:.3f}" for s, loss in zip(scores, losses, strict=True))
        print(f"| {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
