"""The shortest lengths that hold a task, and what must stand in the shortest texts."""

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.cells import cells_of
from ropepatch.evaluate.plan import NeedlePlan
from ropepatch.evaluate.tasks.table import TASKS
from tests.evaluate import parts

DEPTHS = (0.0, 37.0, 100.0)


@pytest.mark.parametrize("task", ["common_words", "frequent_words"])
@settings(deadline=None, max_examples=25)
@given(length=st.integers(420, 2500), seed=st.integers(0, 10**6))
def test_counting_gives_the_claimed_words(task: str, length: int, seed: int) -> None:
    of = parts.tokens()
    plan = NeedlePlan(lengths=(length,), tasks=(task,), seed=seed)
    (prompt,) = parts.maker(plan, of).prompts(cells_of(plan))
    assert len(prompt.ids) + prompt.budget == length
    _, lines, _ = of.exactly(prompt.ids.tolist()).split("\n\n")
    counts = Counter(re.findall(r"\w+", lines))
    ranked = counts.most_common(6)
    if task == "common_words":
        assert {word for word, _ in ranked[:5]} == set(prompt.answers)
        assert tuple(re.findall(r"\w+", lines)[:5]) == prompt.answers
        assert ranked[4][1] > ranked[5][1]
        assert len(lines.split(".")) >= 3
    else:
        assert tuple(word for word, _ in ranked[:3]) == prompt.answers
        assert ranked[0][1] > ranked[1][1] > ranked[2][1] > ranked[3][1]


@pytest.mark.parametrize(("kind", "scoring"), [("bpe", "likelihood"), ("bpe-chat", "generate")])
@pytest.mark.parametrize("task", TASKS)
def test_the_shortest_length(task: str, kind: str, scoring: str) -> None:
    of = parts.tokens(chat=kind == "bpe-chat")
    words: dict[str, Any] = {"chat": kind.endswith("chat"), "scoring": scoring}
    asked: dict[str, Any] = {"tasks": (task,), "depths": DEPTHS, "seed": 1}
    least = parts.shortest(NeedlePlan(lengths=(1,), **asked), of, **words)
    plan = NeedlePlan(lengths=(least,), **asked)
    prompts = list(parts.maker(plan, of, **words).prompts(cells_of(plan)))
    assert [len(prompt.ids) + prompt.budget for prompt in prompts] == [least] * len(prompts)
    parts.shortest(NeedlePlan(lengths=(least - 1,), **asked), of, **words)  # is refused


def test_no_trial_is_refused_halfway() -> None:
    of, refused = parts.tokens(), 0
    for length in range(60, 110):
        plan = NeedlePlan(lengths=(length,), depths=(0.0, 100.0), trials=4)
        made = parts.maker(plan, of)
        try:
            made.check(cells_of(plan))
        except EvaluationError:
            refused += 1
            continue
        assert len(list(made.prompts(cells_of(plan)))) == 8
    assert 0 < refused < 50
