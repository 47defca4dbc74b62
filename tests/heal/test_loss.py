"""What a token costs, against losses of whole logits in float64."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ropepatch.healing.loss import BLOCK_BYTES, Read, Weights, block_of, summed_loss
from tests.heal import parts

ROWS, TOKENS, HIDDEN, WORDS = 2, 9, 6, 11


@dataclass
class Case:
    """Random states of two models, the teacher's perhaps of fewer tokens."""

    states: torch.Tensor
    head: torch.Tensor
    labels: torch.Tensor
    theirs: torch.Tensor
    their_head: torch.Tensor
    taught: torch.Tensor
    layers: list[torch.Tensor]
    their_layers: list[torch.Tensor]

    @property
    def trained(self) -> list[torch.Tensor]:
        return [self.states, self.head, *self.layers]


def case(seed: int = 0, window: int = 6, ignored: float = 0.3) -> Case:
    chance = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=chance, dtype=torch.float64)

    labels = torch.randint(0, WORDS, (ROWS, TOKENS), generator=chance)
    labels[torch.rand(ROWS, TOKENS, generator=chance) < ignored] = -100
    return Case(
        states=some(ROWS, TOKENS, HIDDEN).requires_grad_(),
        head=some(WORDS, HIDDEN).requires_grad_(),
        labels=labels,
        theirs=some(ROWS, window, HIDDEN + 1),
        their_head=some(WORDS, HIDDEN + 1),
        taught=torch.rand(ROWS, window, generator=chance) < 0.7,
        layers=[some(ROWS, TOKENS, HIDDEN).requires_grad_() for _ in range(3)],
        their_layers=[some(ROWS, window, HIDDEN) for _ in range(3)],
    )


def ours(c: Case, weights: Weights, block: int, *, teacher: bool = True) -> torch.Tensor:
    words: tuple[Any, ...] = ()
    if teacher:
        read = Read(c.theirs, c.their_layers)
        words = (read, lambda states: states @ c.their_head.T, c.taught)
    student = Read(c.states, c.layers)
    head = lambda states: states @ c.head.T  # noqa: E731 (as short as it reads)
    return summed_loss(student, head, c.labels, weights, *words, block=block)


def slow(c: Case, weights: Weights, *, teacher: bool = True) -> torch.Tensor:
    """Token by token, word by word."""
    total = c.states.sum() * 0
    heat = weights.temperature
    for i in range(ROWS):
        for j in range(TOKENS):
            label = int(c.labels[i, j])
            if label < 0:
                continue
            logits = c.head @ c.states[i, j]
            entropy = torch.logsumexp(logits, 0) - logits[label]
            if not teacher or j >= c.taught.shape[1] or not bool(c.taught[i, j]):
                total = total + entropy
                continue
            p = torch.softmax(c.their_head @ c.theirs[i, j] / heat, 0)
            q = torch.softmax(logits / heat, 0)
            divergence = sum(p[v] * (torch.log(p[v]) - torch.log(q[v])) for v in range(WORDS))
            total = total + (1 - weights.teacher) * entropy
            total = total + weights.teacher * heat**2 * divergence
            for mine, other in zip(c.layers, c.their_layers, strict=True):
                apart = ((mine[i, j] - other[i, j]) ** 2).sum() / (other[i, j] ** 2).sum()
                total = total + weights.hidden * apart / len(c.layers)
    return total


def gradients(loss: torch.Tensor, of: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    found = torch.autograd.grad(loss, of, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(of, found, strict=True)]


def assert_same(mine: torch.Tensor, wanted: torch.Tensor, of: Sequence[torch.Tensor]) -> None:
    """Logits are rounded to float32 before they are summed."""
    assert float(mine.detach()) == pytest.approx(float(wanted.detach()), rel=1e-6, abs=1e-9)
    for found, right in zip(gradients(mine, of), gradients(wanted, of), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_without_a_teacher(block: int) -> None:
    c = case()
    mine = ours(c, Weights(), block, teacher=False)
    logits = c.states @ c.head.T
    wanted = F.cross_entropy(logits.flatten(0, 1), c.labels.flatten(), reduction="sum")
    assert float(wanted.detach()) > 10
    assert_same(mine, wanted, c.trained)
    again = ours(c, Weights(), block, teacher=False)
    assert_same(again, slow(c, Weights(), teacher=False), c.trained)


@pytest.mark.parametrize("block", [1, 3, 1000])
@pytest.mark.parametrize("heat", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_with_a_teacher(share: float, heat: float, block: int) -> None:
    c = case()
    weights = Weights(share, heat)
    assert_same(ours(c, weights, block), slow(c, weights), c.trained)


@pytest.mark.parametrize("window", [1, 5, TOKENS])
@pytest.mark.parametrize("hidden", [0.0, 2.5])
def test_hidden_states_are_compared_where_the_teacher_may_teach(hidden: float, window: int) -> None:
    c = case(1, window)
    weights = Weights(0.4, 2.0, hidden)
    mine = ours(c, weights, 4)
    assert_same(mine, slow(c, weights), c.trained)
    reached = gradients(ours(c, weights, 4), c.layers)[0].abs().sum(-1) > 0
    inside = F.pad(c.taught, (0, TOKENS - window)) & (c.labels >= 0)
    assert torch.equal(reached, inside & (hidden > 0))


@given(
    seed=st.integers(0, 1000),
    window=st.integers(1, TOKENS),
    block=st.integers(1, 20),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    hidden=st.sampled_from([0.0, 1.0]),
    ignored=st.sampled_from([0.0, 0.5, 0.95, 1.1]),
)
@settings(deadline=None, max_examples=25)
def test_any_mix(
    seed: int, window: int, block: int, share: float, hidden: float, ignored: float
) -> None:
    c = case(seed, window, ignored)
    weights = Weights(share, 1.5, hidden)
    assert_same(ours(c, weights, block), slow(c, weights), c.trained)


def test_a_student_that_is_its_teacher_costs_nothing_under_its_opinion_alone() -> None:
    c = case(ignored=0.0, window=TOKENS)
    with torch.no_grad():
        c.theirs, c.their_head = c.states.detach().clone(), c.head.detach().clone()
        c.taught[:] = True
    loss = ours(c, Weights(1.0, 2.0), 4)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-5)
    assert all(g.abs().max() < 1e-5 for g in gradients(loss, c.trained[:2]))


@pytest.mark.parametrize("teacher", [False, True])
@pytest.mark.parametrize("hidden", [0.0, 1.0])
def test_nothing_to_foretell_costs_nothing_and_can_go_back(teacher: bool, hidden: float) -> None:
    """A process whose rows are all padding takes part in the step."""
    c = case(ignored=1.1)
    assert (c.labels == -100).all()
    loss = ours(c, Weights(0.5, 1.0, hidden), 4, teacher=teacher)
    assert loss.requires_grad
    loss.backward()
    assert float(loss.detach()) == 0
    assert c.states.grad is not None
    assert not c.states.grad.any()


def test_the_teacher_gets_no_gradients() -> None:
    c = case()
    c.their_head.requires_grad_()
    ours(c, Weights(0.5), 4).backward()
    assert c.their_head.grad is None


def test_no_more_tokens_than_a_block_are_read_at_once() -> None:
    c = case(ignored=0.0)
    seen: list[int] = []

    def head(states: torch.Tensor) -> torch.Tensor:
        seen.append(len(states))
        return states @ c.head.T

    summed_loss(Read(c.states), head, c.labels, Weights(), block=4).backward()
    assert max(seen) == 4
    assert sum(seen) == 2 * ROWS * TOKENS  # and once more on the way back


@pytest.mark.parametrize("vocabulary", [3, 2048, 49_152, 262_144])
def test_tokens_of_a_block(vocabulary: int) -> None:
    block = block_of(vocabulary)
    assert block * vocabulary * 4 <= BLOCK_BYTES < (block + 1) * vocabulary * 4
    assert block_of(10**10) == 1


def test_half_precision_is_summed_in_float32() -> None:
    torch.manual_seed(0)
    states, head = torch.randn(1, 500, 16), torch.randn(300, 16)
    labels = torch.randint(0, 300, (1, 500))
    low, weight = states.bfloat16(), head.bfloat16()
    mine = summed_loss(Read(low), lambda s: s @ weight.T, labels, Weights(), block=7)
    logits = (low @ weight.T).double()
    wanted = F.cross_entropy(logits[0], labels[0], reduction="sum")
    assert mine.dtype == torch.float32
    assert float(mine) == pytest.approx(float(wanted), rel=1e-5)


MEASURE = """
import resource, sys
import torch
from torch.nn import functional as F
from ropepatch.healing.loss import Read, Weights, block_of, summed_loss

torch.manual_seed(0)
tokens, words, hidden = 4096, 49152, 64
states = torch.randn(1, tokens, hidden).mul_(0.1).requires_grad_()
theirs = torch.randn(1, tokens, hidden)
head = torch.randn(words, hidden).requires_grad_()
their_head = torch.randn(words, hidden)
labels = torch.randint(0, words, (1, tokens))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def once(count):
    s, t, l = states[:, :count], theirs[:, :count], labels[:, :count]
    if sys.argv[1] == "ours":
        taught = torch.ones(1, count, dtype=torch.bool)
        loss = summed_loss(
            Read(s), lambda x: x @ head.T, l, Weights(0.5, 2.0),
            Read(t), lambda x: x @ their_head.T, taught, block=block_of(words),
        )
    else:
        logits = (s @ head.T)[0]
        with torch.no_grad():
            other = ((t @ their_head.T)[0] / 2).log_softmax(-1)
        own = (logits / 2).log_softmax(-1)
        loss = 0.5 * F.cross_entropy(logits, l[0], reduction="sum")
        loss = loss + 0.5 * 4 * F.kl_div(own, other, log_target=True, reduction="sum")
    loss.backward()
    return float(loss.detach())

once(2)  # libraries and buffers that any size needs
states.grad = head.grad = None
before = peak()
loss = once(tokens)
print(peak() - before, loss, float(states.grad.norm()), float(head.grad.norm()))
"""


@pytest.mark.slow
def test_distilling_needs_a_quarter_of_the_memory_of_whole_logits() -> None:
    """Of 4,096 tokens and 49,152 words: 800 MB of float32 for each logits."""
    found = {}
    for way in ("ours", "whole"):
        command = [sys.executable, "-c", MEASURE, way]
        run = subprocess.run(command, cwd=parts.REPOSITORY, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        found[way] = [float(number) for number in run.stdout.split()]
    assert found["ours"][1:] == pytest.approx(found["whole"][1:], rel=1e-4)
    assert found["whole"][0] > 3 * 800e6
    assert found["ours"][0] * 4 < found["whole"][0]
