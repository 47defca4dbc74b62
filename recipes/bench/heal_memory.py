"""What learning from a teacher holds in memory: a few tokens' logits at a time, or all of them.

    python recipes/bench/heal_memory.py [--tokens 4096] [--vocabulary 49152] [--width 576]

Both ways compute the same loss of the same states and its gradients, forward and backward, each in
a process of its own; what is printed is by how much its memory grew at the peak, and its time.
"""

import argparse
import resource
import subprocess
import sys
import time

import torch
from torch.nn import functional as F

from ropepatch.healing.loss import Read, Weights, block_of, summed_loss


def full(states: torch.Tensor, seen: torch.Tensor, heads: list[torch.nn.Linear]) -> torch.Tensor:
    """Logits of both models, as they come."""
    own = heads[0](states).log_softmax(-1)
    with torch.no_grad():
        other = heads[1](seen).log_softmax(-1)
    return F.kl_div(own[0], other[0], log_target=True, reduction="sum")


def blockwise(
    states: torch.Tensor, seen: torch.Tensor, heads: list[torch.nn.Linear]
) -> torch.Tensor:
    """As `heal` does."""
    labels = torch.zeros(states.shape[:2], dtype=torch.long)
    taught = torch.ones_like(labels, dtype=torch.bool)
    block = block_of(heads[0].out_features)
    weights = Weights(teacher=1.0)
    return summed_loss(
        Read(states), heads[0], labels, weights, Read(seen), heads[1], taught, block=block
    )


def measured(way: str, tokens: int, vocabulary: int, width: int) -> None:
    """One way, in this process."""
    torch.manual_seed(0)
    heads = [torch.nn.Linear(width, vocabulary, bias=False) for _ in range(2)]
    states = torch.randn(1, tokens, width, requires_grad=True)
    seen = torch.randn(1, tokens, width)
    for head in heads:  # its gradients are held either way
        head.weight.grad = torch.zeros_like(head.weight)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    loss = {"full": full, "blocks": blockwise}[way](states, seen, heads)
    loss.backward()
    seconds = time.perf_counter() - started
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    norm = 0.0 if states.grad is None else float(states.grad.norm())
    print(grown / 1024, seconds, float(loss.detach()), norm)


def main() -> None:
    """Both, side by side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--way", choices=("full", "blocks"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        measured(given.way, given.tokens, given.vocabulary, given.width)
        return
    found = {}
    for way in ("full", "blocks"):
        command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        memory, seconds, loss, norm = map(float, said.split())
        found[way] = memory, seconds
        print(f"{way:7} {memory:8,.0f} MiB {seconds:6.1f} s   loss {loss:.4f}, gradient {norm:.6f}")
    (a, s), (b, t) = found["full"], found["blocks"]
    print(f"blocks ÷ full: memory 1/{a / b:.1f}, time {t / s:.2f}")


if __name__ == "__main__":
    main()
