"""Prompts: exact lengths, needles where they were asked for, answers that stand in the text."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropepatch.evaluate.cells import Prompt, cells_of
from ropepatch.evaluate.plan import NeedlePlan
from ropepatch.evaluate.tasks.table import TASKS
from ropepatch.evaluate.tokens import Tokens
from tests.evaluate import parts

KINDS: dict[str, tuple[str, dict[str, bool]]] = {
    "bpe": ("bpe", {}),
    "bpe-eos": ("bpe", {"bos": False, "eos": True}),
    "bpe-chat": ("bpe", {"chat": True}),
    "unigram": ("unigram", {}),
    "unigram-both": ("unigram", {"eos": True}),
    "unigram-chat": ("unigram", {"bos": False, "chat": True}),
    "bytes": ("bytes", {"bos": False}),
}
DEPTHS = (0.0, 37.0, 50.0, 100.0)
NEEDLES = {
    "passkey": r"The passkey is (?P<value>\d{5}); keep it in mind\.",
    "niah_single": r"The code of (?P<key>\w+) is (?P<value>\d{5})\.",
    "niah_multikey": r"The code of (?P<key>\w+) is (?P<value>\d{5})\.",
    "niah_multivalue": r"One code of (?P<key>\w+) is (?P<value>\d{5})\.",
    "niah_multiquery": r"The code of (?P<key>\w+) is (?P<value>\d{5})\.",
    "variable_tracking": r"VAR (?P<key>[A-Z]{5}) = (?P<value>\d{5}|VAR [A-Z]{5})\.",
}
ASKED = {
    "niah_single": r"code of (\w+)(?: is$|\?)",
    "niah_multikey": r"code of (\w+)(?: is$|\?)",
    "niah_multivalue": r"four codes of (\w+)(?:,|\?)",
    "niah_multiquery": r"codes of (\w+), (\w+), (\w+) and (\w+)(?:,|\?)",
}


def often(kind: str) -> tuple[pytest.MarkDecorator, ...]:
    """One tokenizer of each kind is enough for every day."""
    return () if kind in ("bpe", "unigram", "bpe-chat", "bytes") else (pytest.mark.slow,)


def tokens_named(name: str) -> Tokens:
    kind, words = KINDS[name]
    return parts.tokens(kind, **words)


def text_of(of: Tokens, ids: Any) -> str:
    return of.exactly([int(i) for i in ids])


def check_frame(prompt: Prompt, of: Tokens, *, chat: bool) -> None:
    """Lengths and special tokens."""
    ids, raw = prompt.ids.tolist(), of.tokenizer
    assert len(ids) + prompt.budget == prompt.cell.length
    assert len(prompt.answer) <= prompt.budget
    assert prompt.ids.dtype == np.int32
    assert prompt.answer.dtype == np.int32
    start, end = raw.convert_tokens_to_ids([parts.START, parts.END])
    leads = chat or bool(of.leading())
    if raw.bos_token_id is not None:
        assert [i for i, t in enumerate(ids) if t == raw.bos_token_id] == [0] * leads
    assert raw.eos_token_id not in [*ids, *prompt.answer.tolist()]
    if chat:
        assert (ids.count(start), ids.count(end)) == (2, 1)
        content = text_of(of, prompt.ids[prompt.content])
        rendered = raw.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        assert squeezed(text_of(of, ids)).startswith(squeezed(rendered))
    elif raw.bos_token_id is not None:
        assert start not in ids
        assert end not in ids


def squeezed(text: str) -> str:
    """Without what SentencePiece puts around special tokens."""
    return re.sub(r"\s+", "", text)


def check_needles(prompt: Prompt, of: Tokens) -> None:
    """What is hidden, where, and that it is what is asked for."""
    name, ids = prompt.cell.task, prompt.ids
    text = text_of(of, ids)
    rows = [(m["value"], m.groupdict().get("key")) for m in re.finditer(NEEDLES[name], text)]
    values, keys = [value for value, _ in rows], [key for _, key in rows]
    count = {"passkey": 1, "niah_single": 1, "variable_tracking": 5}.get(name, 4)
    assert len(values) == len(set(values)) == count
    if name == "variable_tracking":
        assert values[0].isdigit()
        assert values[1:] == [f"VAR {key}" for key in keys[:-1]]  # in the order of the chain
        assert tuple(keys) == prompt.answers
    elif name == "niah_multivalue":
        assert tuple(values) == prompt.answers  # in the order of the text
        assert len(set(keys)) == 1
    elif name == "passkey":
        assert tuple(values) == prompt.answers
    else:
        assert len(set(keys)) == count
    if name in ASKED:
        (asked,) = [
            m.groups() for m in re.finditer(ASKED[name], text[text.rindex("\n\n") :], re.MULTILINE)
        ][:1] or [re.findall(ASKED[name], text)[-1]]
        asked = (asked,) if isinstance(asked, str) else asked
        by_key = {key: value for value, key in rows}
        if name != "niah_multivalue":
            assert tuple(by_key[key] for key in asked) == prompt.answers
        else:
            assert set(asked) == set(keys)

    assert prompt.needle_token is not None
    assert prompt.actual_depth is not None
    at = re.match(NEEDLES[name], text_of(of, ids[prompt.needle_token :]).lstrip())
    assert at, text_of(of, ids[prompt.needle_token :])[:80]
    wanted = values[0] if name == "variable_tracking" else prompt.answers[0]
    assert at["value"] in prompt.answers if name == "niah_multivalue" else at["value"] == wanted
    before = text_of(of, ids[: prompt.needle_token]).rstrip()
    assert before[-1] in ".!?", before[-60:]


def check_answer(prompt: Prompt, of: Tokens, *, chat: bool, scoring: str) -> None:
    """The answer as the text goes on, and where its words lie in it."""
    said = text_of(of, prompt.answer).strip()
    assert [said.count(word) for word in prompt.answers] == [1] * len(prompt.answers)
    if chat and scoring == "generate":
        assert prompt.spans == ()
        return
    assert [text_of(of, prompt.answer[a:b]).strip() for a, b in prompt.spans] == [*prompt.answers]
    assert prompt.spans[-1][1] == len(prompt.answer)
    if not chat:  # the text goes on: question and answer together tokenise to the same
        whole = text_of(of, [*prompt.ids, *prompt.answer])
        tail = whole[whole.rindex("\n\n") :]
        assert (
            of.following([tail])[0]
            == [*prompt.ids, *prompt.answer][-len(of.following([tail])[0]) :]
        )
        assert tail.endswith(said)


@pytest.mark.parametrize(
    ("kind", "scoring"),
    [
        *(pytest.param(kind, "likelihood", marks=often(kind)) for kind in KINDS),
        ("bpe", "generate"),
        pytest.param("bpe-chat", "generate", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("task", TASKS)
def test_every_prompt(task: str, kind: str, scoring: str) -> None:
    of, chat = tokens_named(kind), kind.endswith("chat")
    words: dict[str, Any] = {"chat": chat, "scoring": scoring}
    least = parts.shortest(NeedlePlan(lengths=(1,), tasks=(task,)), of, **words)
    lengths = (least + 40, least + 151)
    plan = NeedlePlan(lengths=lengths, tasks=(task,), depths=DEPTHS, trials=2, seed=5)
    cells = cells_of(plan)
    prompts = list(parts.maker(plan, of, **words).prompts(cells))
    assert [prompt.cell for prompt in prompts] == cells
    straw = parts.haystack(of)
    straw.take(lengths[-1])
    longest = np.diff(straw.ends[straw.ends <= lengths[-1] + 100]).max()
    for prompt in prompts:
        check_frame(prompt, of, chat=chat)
        check_answer(prompt, of, chat=chat, scoring=scoring)
        depth = prompt.cell.depth
        if depth is None:
            assert prompt.needle_token is None
            assert prompt.actual_depth is None
            continue
        check_needles(prompt, of)
        assert prompt.actual_depth is not None
        room = prompt.cell.length - least - 15  # tokens of haystack, at least
        assert abs(prompt.actual_depth - depth) / 100 * room <= longest
        assert depth != 0 or prompt.actual_depth == 0


@pytest.mark.parametrize("kind", ["bpe", "unigram", "bytes"])
@settings(deadline=None, max_examples=25)
@given(
    extra=st.integers(60, 500), depth=st.floats(0, 100), seed=st.integers(0, 10**6), other=st.data()
)
def test_the_needle_lies_at_the_nearest_sentence_end(
    kind: str, extra: int, depth: float, seed: int, other: Any
) -> None:
    of = tokens_named(kind)
    words: dict[str, Any] = {"lengths": (extra + 150,), "seed": seed}
    plan = NeedlePlan(**words, depths=(depth,))
    (prompt,) = parts.maker(plan, of).prompts(cells_of(plan))
    check_frame(prompt, of, chat=False)
    check_needles(prompt, of)
    (again,) = parts.maker(plan, of).prompts(cells_of(plan))
    assert again.ids.tolist() == prompt.ids.tolist()
    assert again.answer.tolist() == prompt.answer.tolist()

    text = text_of(of, prompt.ids)
    needle = re.search(NEEDLES["niah_single"], text)
    assert needle
    head = [*of.leading(), *of.whole("Remember the codes that are hidden in this text.\n\n")]
    piece = of.following([f" {needle[0]}"])[0]
    ending = of.following([f"\n\nThe code of {needle['key']} is"])[0]
    room = plan.lengths[0] - prompt.budget - len(head) - len(piece) - len(ending)
    straw = parts.haystack(of)
    hay = straw.take(room).tolist()
    ends = [end for end in straw.ends.tolist() if end <= room]
    best = min(abs(end - depth / 100 * room) for end in ends)
    at = (prompt.needle_token or 0) - len(head)
    assert at in ends
    assert abs(at - depth / 100 * room) == pytest.approx(best)
    assert prompt.actual_depth == pytest.approx(100 * at / room, abs=1e-3)
    assert prompt.ids.tolist() == [*head, *hay[:at], *piece, *hay[at:], *ending]


def test_what_is_drawn() -> None:
    of = parts.tokens()

    def drawn(seed: int, trials: int, depths: tuple[float, ...] = (50.0,)) -> list[tuple[str, ...]]:
        plan = parts.needle_plan(seed=seed, trials=trials, depths=depths)
        return [prompt.answers for prompt in parts.maker(plan, of).prompts(cells_of(plan))]

    assert drawn(0, 1) == drawn(0, 1)
    assert not set(drawn(0, 1)) & set(drawn(1, 1))
    assert len(set(drawn(0, 3))) == 6  # lengths and trials differ
    assert len(set(drawn(0, 1, (0.0, 50.0, 100.0)))) == 2  # depths do not


@pytest.mark.parametrize("kind", ["bpe", "bpe-chat", "unigram", "bytes"])
@pytest.mark.parametrize("task", ["niah_single", "niah_multikey"])
def test_one_text_for_all_depths(task: str, kind: str) -> None:
    of, chat = tokens_named(kind), kind.endswith("chat")
    depths = (0.0, 25.0, 50.0, 75.0, 100.0)
    plan = NeedlePlan(lengths=(1500,), tasks=(task,), depths=depths, protocol="shared", seed=2)
    prompts = list(parts.maker(plan, of, chat=chat).prompts(cells_of(plan)))
    assert len(prompts) == 5
    texts = [text_of(of, prompt.ids[prompt.content]) for prompt in prompts]
    rows = re.findall(NEEDLES[task], texts[0])
    assert len(rows) == len(set(rows)) == 5 + 3 * (task == "niah_multikey")
    answers = [prompt.answers[0] for prompt in prompts]
    assert len(set(answers)) == 5
    assert {value for _, value in rows} >= set(answers)
    shortest_straw = min(len(prompt.ids) for prompt in prompts) - 120
    for prompt, text in zip(prompts, texts, strict=True):
        check_frame(prompt, of, chat=chat)
        check_answer(prompt, of, chat=chat, scoring="likelihood")
        assert re.findall(NEEDLES[task], text)[: len(rows)] == rows
        assert prompt.ids[:shortest_straw].tolist() == prompts[0].ids[:shortest_straw].tolist()
        assert prompt.needle_token is not None
        at = re.match(NEEDLES[task], text_of(of, prompt.ids[prompt.needle_token :]).lstrip())
        assert at
        assert at["value"] == prompt.answers[0]
        assert f"code of {at['key']}" in text[text.rindex("\n\n") :]
    places = [prompt.needle_token for prompt in prompts]
    assert places == sorted(places, key=lambda place: place or 0)
    assert len(set(places)) == 5
    # a part of the cells gets the same prompts as all of them
    some = list(parts.maker(plan, of, chat=chat).prompts(cells_of(plan)[3:4]))
    assert some[0].ids.tolist() == prompts[3].ids.tolist()
