"""What linear biases cost: attention with them against attention without, in one run.

    python recipes/bench/alibi_speed.py [--lengths 2k,4k,8k,16k,32k] [--heads 8] [--head-dim 64]

One attention layer, float32, prefill and one decode step. In the prefill each way runs in a
process of its own, so that peak memory is its own too; times are medians. The full mask is left
out where it would not fit.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from ropepatch.recipe import parse_length
from ropepatch.runtime.attention import STATE, Alibi, attention

WAYS = ("plain", "channels", "mask", "made mask")
"""mask: a full float mask, made and used; made mask: only used, as in all layers but the first."""
MOST_MASK = 4 * 2**30
"""Bytes of a full float mask."""


class Layer(torch.nn.Module):
    """As much of an attention as the function looks at."""

    def __init__(self, heads: int, key_heads: int, kernel: str) -> None:
        super().__init__()
        self.num_key_value_groups = heads // key_heads
        self.is_causal = True
        state = Alibi([heads], 8.0, 1.0)
        state.kernel = kernel
        self.add_module(STATE, state)


def inputs(heads: int, key_heads: int, head_dim: int, queries: int, keys: int) -> list[Any]:
    """Queries, keys and values, laid out as models have them: (batch, heads, tokens, features)."""
    chance = torch.Generator().manual_seed(0)
    shapes = ((queries, heads), (keys, key_heads), (keys, key_heads))
    return [
        torch.randn(1, count, n, head_dim, generator=chance).transpose(1, 2) for count, n in shapes
    ]


def run_of(way: str, heads: int, key_heads: int, head_dim: int, queries: int, keys: int) -> Any:
    """What computes one attention in this way."""
    query, key, value = inputs(heads, key_heads, head_dim, queries, keys)
    layer = Layer(heads, key_heads, "channels").eval()
    words: dict[str, Any] = {"scaling": head_dim**-0.5}
    if way == "channels":
        return lambda: attention(layer, query, key, value, None, **words)
    if way == "plain":
        layer._modules.pop(STATE)
        layer.config = type("Config", (), {"_attn_implementation": "ropepatch_alibi"})()
        return lambda: attention(layer, query, key, value, None, **words)
    slopes = Alibi([heads], 8.0, 1.0).of(query)[:, None, None]
    places = torch.arange(keys)
    distance = places - torch.arange(keys - queries, keys)[:, None]

    def mask() -> torch.Tensor:
        bias = slopes * distance
        return bias.masked_fill_(distance > 0, -torch.inf)[None]

    groups = heads // key_heads

    def masked(full: torch.Tensor) -> torch.Tensor:
        wide = (part.repeat_interleave(groups, 1) for part in (key, value))
        return F.scaled_dot_product_attention(query, *wide, attn_mask=full, scale=words["scaling"])

    if way == "mask":
        return lambda: masked(mask())
    full = mask()
    return lambda: masked(full)


def measure(way: str, sizes: list[int], repeats: int) -> tuple[float, float]:
    """Median seconds, and MB above what the inputs take."""
    run: Callable[[], Any] = run_of(way, *sizes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    with torch.no_grad():
        run()
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return statistics.median(times), (peak - before) / 1024


def asked(way: str, sizes: list[int], repeats: int, threads: int) -> tuple[float, float]:
    """The same in a process of its own."""
    words = [sys.executable, __file__, "--one", way, "--sizes", ",".join(map(str, sizes))]
    words += ["--repeats", str(repeats), "--threads", str(threads)]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return float(found[-2]), float(found[-1])


Found = dict[str, list[tuple[int, float, float]]]
"""By way: tokens, seconds, MB."""


def table(title: str, rows: list[tuple[int, list[int]]], repeats: int, threads: int) -> Found:
    """One line per length."""
    found: Found = {way: [] for way in WAYS}
    print(f"\n{title}\n{'tokens':>8}" + "".join(f"{way:>26}" for way in WAYS))
    for length, sizes in rows:
        heads, _, _, queries, keys = sizes
        cells, base = [], 0.0
        for way in WAYS:
            if "mask" in way and 4 * heads * queries * keys > MOST_MASK:
                cells.append(f"{'-':>26}")
                continue
            tries = [asked(way, sizes, repeats, threads) for _ in range(2)]
            seconds, memory = min(t[0] for t in tries), max(t[1] for t in tries)
            base = base or seconds
            found[way].append((length, seconds, memory))
            cells.append(f"{1000 * seconds:>9.1f} ms {seconds / base:>4.2f}x {memory:>6.0f} MB")
        print(f"{length:>8,}" + "".join(cells), flush=True)
    return found


def one_token(lengths: list[int], shape: list[int], repeats: int) -> None:
    """A step of decoding, in turns within one process: it is too short for anything else."""
    print(f"\none token\n{'tokens':>8}" + "".join(f"{way:>26}" for way in WAYS))
    for length in lengths:
        runs = [run_of(way, *shape, 1, length) for way in WAYS]
        times: list[list[float]] = [[] for _ in WAYS]
        with torch.no_grad():
            for _ in range(repeats + 2):
                for run, taken in zip(runs, times, strict=True):
                    start = time.perf_counter()
                    run()
                    taken.append(time.perf_counter() - start)
        medians = [statistics.median(taken[2:]) for taken in times]
        cells = [f"{1000 * m:>15.2f} ms {m / medians[0]:>6.2f}x" for m in medians]
        print(f"{length:>8,}" + "".join(cells), flush=True)


def draw(path: str, found: Found) -> None:
    """Prefill time and memory by length."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for place, (panel, unit) in enumerate(zip(panels, ("seconds", "MB"), strict=True), 1):
        for way, points in found.items():
            if way != "made mask":
                panel.plot([p[0] for p in points], [p[place] for p in points], "o-", label=way)
        panel.set(xscale="log", yscale="log", xlabel="tokens", ylabel=unit)
        ticks = [point[0] for point in found["plain"]]
        panel.set_xticks(ticks, [f"{tick // 1024}k" for tick in ticks])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_title("one attention layer, prefill")
    panels[1].set_title("peak memory beyond its inputs")
    panels[0].legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="2k,4k,8k,16k,32k")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--key-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--plot", help="Draw the prefill to this file.")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        sizes = [int(number) for number in given.sizes.split(",")]
        print(*measure(given.one, sizes, given.repeats))
        return
    lengths = [parse_length(word) for word in given.lengths.split(",")]
    shape = [given.heads, given.key_heads, given.head_dim]
    print(f"{shape[0]} heads of {shape[2]}, {shape[1]} of keys, float32, {given.threads} threads")
    rows = [(n, [*shape, n, n]) for n in lengths]
    found = table("prefill", rows, given.repeats, given.threads)
    if given.plot:
        draw(given.plot, found)
    one_token(lengths, shape, 20 * given.repeats)


if __name__ == "__main__":
    main()
