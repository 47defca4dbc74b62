"""Losses by length, by place, of last tokens, by a sliding window, of key tokens."""

import gc
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.head import LossReader
from ropepatch.evaluate.key_tokens import KeyJudge
from ropepatch.evaluate.needle import Progress
from ropepatch.evaluate.perplexity import PerplexityRun
from ropepatch.evaluate.plan import PerplexityPlan
from ropepatch.evaluate.results import ResultsFolder
from ropepatch.evaluate.windows import Corpus
from tests.evaluate import parts

TEXT = parts.prose()[:1500]
STATIC = ["llama", "gemma3", "mistral", "patched-yarn", "alibi"]
FOLLOWING = ["dynamic", "longrope", "patched-ntk"]


def run(
    of: Any, plan: PerplexityPlan, folder: Path, texts: Any = None, judge: Any = None, **words: Any
) -> list[dict[str, Any]]:
    tokens = words.pop("tokens", parts.tokens())
    corpus = Corpus(plan, tokens, texts or [("a", TEXT)])
    if plan.key_context is not None and judge is None:
        judge = KeyJudge(plan, tokens)
    with ResultsFolder(folder, plan.to_dict(), {}).open() as results:
        work = PerplexityRun(of, corpus, results, judge, **words)
        jobs = work.jobs()
        ahead = work.outlook(jobs).tokens
        work.run(jobs)
        assert of.forwarded <= ahead
    return list(results.records)


def losses(kind: str, ids: Any) -> np.ndarray[Any, Any]:
    """Of all tokens but the first, by one pass of a model pinned at the text's length."""
    of = parts.reader(kind)
    with of.at_length(len(ids)):
        return parts.whole_losses(of.model, ids)


@pytest.mark.parametrize("kind", [*STATIC, *FOLLOWING])
def test_one_window(kind: str, tmp_path: Path) -> None:
    plan = parts.loss_plan(lengths=(40, 64, 110), max_windows=1)
    (record,) = run(parts.reader(kind, chunk=16), plan, tmp_path)
    (window,) = Corpus(plan, parts.tokens(), [("a", TEXT)]).windows()
    ids = window.ids
    assert (len(ids), ids[0], window.leading) == (110, 1, 1)
    for length in plan.lengths:
        nats, count = record["lengths"][str(length)]
        assert count == length - 1
        assert nats == pytest.approx(losses(kind, ids[:length]).sum(), rel=1e-5)
        # the last 16 tokens, seen with less and less before them
        short = [1, *ids[-length + 1 :]]
        nats, count = record["final"][str(length)]
        assert count == 16
        assert nats == pytest.approx(losses(kind, short)[-16:].sum(), rel=1e-5)
    whole = losses(kind, ids)
    edges = [bucket[:2] for bucket in record["buckets"]]
    assert edges == [[0, 28], [28, 55], [55, 82], [82, 110]]
    for a, b, nats, count in record["buckets"]:
        assert count == b - max(a, 1)
        assert nats == pytest.approx(whole[max(a, 1) - 1 : b - 1].sum(), rel=1e-5)
    assert sum(bucket[2] for bucket in record["buckets"]) == pytest.approx(
        record["lengths"]["110"][0]
    )


@pytest.mark.parametrize("kind", ["llama", "gemma3", "patched-ntk"])
@pytest.mark.parametrize("stride", [13, 32])
def test_the_sliding_window_of_the_textbook(kind: str, stride: int, tmp_path: Path) -> None:
    """The loop of the guide of transformers, "Perplexity of fixed-length models"."""
    tokens = parts.tokens("bpe", bos=False)
    plan = parts.loss_plan(lengths=(32, 100), stride=stride, max_windows=1)
    records = run(parts.reader(kind, chunk=16), plan, tmp_path, tokens=tokens)
    ids = np.asarray(tokens.whole(TEXT)[:100])
    for length in plan.lengths:
        (record,) = [r for r in records if (r["kind"], r["length"]) == ("sliding", length)]
        nats, count, before = 0.0, 0, 0
        for begin in range(0, len(ids), stride):
            end = min(begin + length, len(ids))
            fresh = end - before
            own = losses(kind, ids[begin:end])[-fresh:]  # the first token of all has no loss
            nats, count, before = nats + own.sum(), count + len(own), end
            if end == len(ids):
                break
        lost = 3 if stride == length else 0  # the first token of each further window
        assert record["sliding"][1] == count == 99 - lost
        assert record["sliding"][0] == pytest.approx(nats, rel=1e-5)


def test_windows_of_documents() -> None:
    tokens = parts.tokens()
    texts = [("x", TEXT), ("short", "Too short."), ("y", TEXT[500:1100]), ("x", TEXT[200:800])]
    plan = parts.loss_plan(lengths=(50, 101), max_windows=5)
    corpus = Corpus(plan, tokens, texts)
    windows = list(corpus.windows())
    names = [(w.document, w.number) for w in windows]
    assert names == [("x (1)", 0), ("y", 0), ("x (4)", 0), ("x (1)", 1), ("y", 1)]
    for window in windows:
        own = tokens.whole(
            dict(zip(("x (1)", "-", "y", "x (4)"), (t for _, t in texts), strict=True))[
                window.document
            ]
        )
        assert window.ids.tolist() == [1, *own[100 * window.number : 100 * window.number + 100]]
    joined = Corpus(parts.loss_plan(lengths=(50, 101), join=True), tokens, texts)
    rows = [tokens.whole(text) for _, text in texts]
    assert joined.documents["joined"].tolist() == [
        *rows[0], 2, *rows[1], 2, *rows[2], 2, *rows[3]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bos", "policy", "leading"),
    [
        (True, "auto", 1),
        (True, "yes", 1),
        (True, "no", 0),
        (False, "auto", 0),
        (False, "yes", 1),
        (False, "no", 0),
    ],
)
def test_the_beginning_of_a_window(bos: bool, policy: str, leading: int) -> None:
    tokens = parts.tokens("bpe", bos=bos, eos=True)
    plan = parts.loss_plan(bos=policy)
    for window in Corpus(plan, tokens, [("a", TEXT)]).windows():
        assert len(window.ids) == 96
        assert (window.ids == 1).sum() == window.leading == leading
        assert 2 not in window.ids


def test_what_cannot_be_read() -> None:
    tokens, short = parts.tokens(), TEXT[:150]
    with pytest.raises(EvaluationError, match=r"longest document has .* asks for 95; give"):
        Corpus(parts.loss_plan(), tokens, [("a", short)])
    with pytest.raises(EvaluationError, match=r"asks for 95; join the documents \(--join\), or"):
        Corpus(parts.loss_plan(), tokens, [("a", short), ("b", short)])
    Corpus(parts.loss_plan(join=True), tokens, [("a", short), ("b", short)])
    with pytest.raises(EvaluationError, match="no beginning-of-sequence token"):
        Corpus(parts.loss_plan(bos="yes"), parts.tokens("bytes", bos=False), [("a", TEXT)])


def brute_key(kind: str, ids: Any, plan: PerplexityPlan) -> np.ndarray[Any, Any]:
    """By the definition: long and short losses in float64, token by token."""
    context = plan.key_context or 0
    step, long = context // 4, losses(kind, ids)
    key = np.zeros(len(ids), bool)
    for t in range(1 + context, len(ids)):
        begin = 1 + context + (t - 1 - context) // step * step - context
        assert context <= t - begin < context + step
        short = losses(kind, [1, *ids[begin : t + 1]])[-1]
        key[t] = short - long[t - 1] > plan.key_gain and long[t - 1] < plan.key_loss
    return key


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_key_tokens(kind: str, tmp_path: Path) -> None:
    plan = parts.loss_plan(max_windows=1, key_context=16, key_gain=0.05, key_loss=6.0)
    (window,) = Corpus(plan, parts.tokens(), [("a", TEXT)]).windows()
    key, long = brute_key(kind, window.ids, plan), losses(kind, window.ids)
    assert 0 < key.sum() < 79
    (record,) = run(parts.reader(kind, chunk=16), plan, tmp_path / "own")
    assert record["key"]["tokens"] == key.sum()
    assert record["key"]["nats"] == pytest.approx(long[key[1:]].sum(), rel=1e-5)
    assert record["key"]["judged"] == 95 - 16
    # the same model as judge of its own, with the same or with another tokenizer of one kind
    other = LossReader(parts.reader(kind))
    judge = KeyJudge(plan, parts.tokens(), other, parts.tokens("bpe", eos=True))
    (judged,) = run(parts.reader(kind), plan, tmp_path / "judged", judge=judge)
    assert judged["key"]["tokens"] == record["key"]["tokens"]
    assert judged["key"]["nats"] == pytest.approx(record["key"]["nats"], rel=1e-6)


def test_a_judge_with_another_vocabulary(tmp_path: Path) -> None:
    plan = parts.loss_plan(max_windows=1, key_context=16, key_gain=0.0, key_loss=1e9)
    judge = KeyJudge(
        plan, parts.tokens(), LossReader(parts.reader("llama", seed=1)), parts.tokens("unigram")
    )
    (record,) = run(parts.reader("llama"), plan, tmp_path, judge=judge)
    assert 0 < record["key"]["tokens"] < 95
    plan = parts.loss_plan(max_windows=1, key_context=16, key_gain=-1e9, key_loss=1e9)
    judge = KeyJudge(
        plan, parts.tokens(), LossReader(parts.reader("llama", seed=1)), parts.tokens("unigram")
    )
    (record,) = run(parts.reader("llama"), plan, tmp_path / "all", judge=judge)
    assert 60 < record["key"]["tokens"] < 95  # all beyond the judge's first context


class Stopped(Exception):
    pass


def test_going_on(tmp_path: Path) -> None:
    plan = parts.loss_plan(max_windows=3, stride=24)
    wanted = run(parts.reader("llama"), plan, tmp_path / "whole")
    assert len(wanted) == 3 + 3 * 2

    def report(progress: Progress) -> None:
        if progress.done == 4:
            raise Stopped

    with pytest.raises(Stopped):
        run(parts.reader("llama"), plan, tmp_path / "part", report=report)
    reader = parts.reader("llama")
    assert run(reader, plan, tmp_path / "part") == wanted
    assert reader.forwarded == sum(record["forwarded"] for record in wanted[4:])


def test_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow among so many modules
    plan = parts.loss_plan(max_windows=2)
    wanted = run(parts.reader("llama"), plan, tmp_path / "a")
    for most, fits in ((40, True), (10, False)):
        reader = parts.reader("llama", chunk=256)

        def before(_: Any, __: Any, words: dict[str, Any], most: int = most) -> None:
            if words["input_ids"].numel() > most:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

        reader.model.base_model.register_forward_pre_hook(before, with_kwargs=True)
        found = run(reader, plan, tmp_path / str(most))
        for record, good in zip(found, wanted, strict=True):
            if fits:
                assert record["lengths"]["96"][0] == pytest.approx(good["lengths"]["96"][0])
            else:
                assert record["failed"] == "out of memory"
    assert math.isfinite(wanted[0]["lengths"]["48"][0])
