"""What sharing and the head in blocks save, against the loops that evaluation scripts usually are.

    python recipes/bench/evaluate_speed.py FOLDER [--length 2048] [--memory-length 16384] [--json F]

Every row is a process of its own, so that peaks of memory do not mix; rows that belong together run
one after the other on the same machine. The plain loops read every prompt whole, make the logits
of all its tokens, and decode the answer greedily; for perplexity they read the text once for each
length and make all logits.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from ropepatch.evaluate.plan import NeedlePlan, PerplexityPlan
from ropepatch.measuring.running import haystack_of, needle, perplexity
from ropepatch.measuring.settings import Settings
from ropepatch.measuring.subject import Candidate, Opening, Subject
from ropepatch.measuring.texts import texts_of

DEPTHS = tuple(float(depth) for depth in range(0, 101, 10))


def grid(length: int, protocol: str) -> NeedlePlan:
    """Eleven depths at one length."""
    words: dict[str, Any] = {"protocol": protocol, "scoring": "likelihood", "chat": "no"}
    return NeedlePlan((length,), depths=DEPTHS, **words)


def our_needles(subject: Subject, length: int, protocol: str) -> dict[str, Any]:
    """The grid by `ropepatch evaluate needle`."""
    with tempfile.TemporaryDirectory() as folder:
        found = needle(subject, grid(length, protocol), Path(folder) / "run", Settings())
    records = found.records
    return {
        "tokens": sum(r["forwarded"] for r in records),
        "exact": sum(r["exact"] for r in records) / len(records),
    }


def plain_needles(subject: Subject, length: int, _: str) -> dict[str, Any]:
    """The grid by a loop: each prompt whole, all logits, a greedy answer."""
    from ropepatch.evaluate.cells import cells_of
    from ropepatch.evaluate.prompts import PromptMaker

    plan = grid(length, "independent")
    straw, _digest = haystack_of(subject.tokens, plan.seed, None)
    maker = PromptMaker(plan, subject.tokens, straw, chat=False, scoring="likelihood")
    tokens, exact, cells = 0, 0, cells_of(plan)
    for prompt in maker.prompts(cells):
        ids = torch.from_numpy(prompt.ids.astype("int64"))[None]
        with torch.inference_mode():
            output = subject.model(input_ids=ids, use_cache=True)
            said = [int(output.logits[0, -1].argmax())]
            for _step in range(prompt.budget - 1):
                output = subject.model(
                    input_ids=torch.tensor([said[-1:]]),
                    past_key_values=output.past_key_values,
                    use_cache=True,
                )
                said.append(int(output.logits[0, -1].argmax()))
        tokens += ids.shape[1] + prompt.budget - 1
        exact += said == prompt.answer.tolist()
    return {"tokens": tokens, "exact": exact / len(cells)}


def _lengths(longest: int) -> tuple[int, ...]:
    return tuple(longest // 2**i for i in range(4, -1, -1))


def our_perplexity(subject: Subject, longest: int, final: str) -> dict[str, Any]:
    """Five lengths by `ropepatch evaluate perplexity`, with or without the same final tokens."""
    texts, _ = texts_of(None, longest, 1)
    tail = min(256, longest // 32) if final == "final" else None
    plan = PerplexityPlan(_lengths(longest), max_windows=1, final_tokens=tail)
    with tempfile.TemporaryDirectory() as folder:
        found = perplexity(subject, plan, texts, Path(folder) / "run", Settings())
    (record,) = found.records
    nats, count = record["lengths"][str(longest)]
    return {"tokens": record["forwarded"], "loss": nats / count}


def plain_perplexity(subject: Subject, longest: int, lengths: str) -> dict[str, Any]:
    """Five lengths (or the longest alone) by a loop: windows of each length, all their logits."""
    texts, _ = texts_of(None, longest, 1)
    ids = torch.tensor(subject.tokens.whole(texts[0][1])[:longest])[None]
    tokens, loss = 0, 0.0
    for length in _lengths(longest) if lengths == "all" else (longest,):
        for window in ids.split(length, dim=1):
            with torch.inference_mode():
                logits = subject.model(input_ids=window, use_cache=False).logits
                loss = float(
                    torch.nn.functional.cross_entropy(logits[0, :-1].float(), window[0, 1:])
                )
            tokens += window.shape[1]
    return {"tokens": tokens, "loss": loss}


ROWS: dict[str, tuple[Callable[[Subject, int, str], dict[str, Any]], str]] = {
    "needle, plain loop": (plain_needles, ""),
    "needle, independent": (our_needles, "independent"),
    "needle, shared": (our_needles, "shared"),
    "perplexity, plain loop, 5 lengths": (plain_perplexity, "all"),
    "perplexity, ours, 5 lengths": (our_perplexity, ""),
    "perplexity, ours, and the same final tokens": (our_perplexity, "final"),
    "perplexity, plain loop, longest": (plain_perplexity, "one"),
}


def measure(folder: str, row: str, length: int) -> dict[str, Any]:
    """One row, in this process."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    subject = Candidate(Opening(folder, dtype="float32", device="cpu")).load()
    work, word = ROWS[row]
    with torch.inference_mode():
        subject.model(input_ids=torch.ones((1, 16), dtype=torch.long), use_cache=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    found = work(subject, length, word)
    found["seconds"] = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found["MiB beyond the weights"] = (peak - before) / 1024
    return found


def main() -> None:
    """Run the rows and print each beside the plain loop of its kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", help="a checkpoint")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a prompt")
    parser.add_argument("--memory-length", type=int, default=16384, help="tokens of a text")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        length = asked.length if asked.row.startswith("needle") else asked.memory_length
        print(json.dumps(measure(asked.folder, asked.row, length)))
        return
    results: dict[str, dict[str, Any]] = {}
    print(f"{'':<46}{'tokens':>10}{'ratio':>7}{'seconds':>9}{'ratio':>7}{'MiB':>8}{'ratio':>7}")
    for row in ROWS:
        words = [sys.executable, __file__, asked.folder, "--row", row]
        words += ["--length", str(asked.length), "--memory-length", str(asked.memory_length)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        found = results[row] = json.loads(done.stdout.splitlines()[-1])
        plain = results[next(name for name in results if name.split(",")[0] == row.split(",")[0])]
        cells = ""
        for key, width in (("tokens", 10), ("seconds", 9), ("MiB beyond the weights", 8)):
            cells += f"{found[key]:>{width},.0f}{found[key] / plain[key]:>7.2f}"
        print(f"{row:<46}{cells}", flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
