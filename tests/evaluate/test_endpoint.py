import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropepatch.errors import EndpointError
from ropepatch.evaluate import endpoint
from ropepatch.evaluate.cells import Prompt, cells_of
from ropepatch.evaluate.endpoint import EndpointRun, Served
from ropepatch.evaluate.haystack import Haystack, own_sentences
from ropepatch.evaluate.needle import NeedleRun, Progress
from ropepatch.evaluate.plan import NeedlePlan
from ropepatch.evaluate.prompts import PromptMaker
from ropepatch.evaluate.reader import Reader
from ropepatch.evaluate.records import key_of
from ropepatch.evaluate.results import ResultsFolder, read_results
from ropepatch.evaluate.tokens import Tokens
from tests.evaluate.served import (
    HANG,
    Reply,
    Scripted,
    byte_llama,
    byte_tokenizer,
    completion,
    free_port,
    transformers_serve,
)

PLAN = NeedlePlan(lengths=(256,), depths=(0.0, 50.0, 100.0), trials=2, scoring="generate")
LONGER = NeedlePlan(lengths=(256, 512), depths=(0.0, 50.0, 100.0), scoring="generate")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(byte_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def results(tmp_path: Path) -> Iterator[ResultsFolder]:
    with ResultsFolder(tmp_path / "run", {}, {}).open() as folder:
        yield folder


def maker(tokens: Tokens, plan: NeedlePlan, chat: bool = False) -> PromptMaker:
    haystack = Haystack(tokens, own_sentences(plan.seed))
    return PromptMaker(plan, tokens, haystack, chat=chat, scoring="generate")


def served(url: str, **words: Any) -> Served:
    return Served(
        url, "m", **{"pause": 0.01, "retries": 1, "concurrency": 1, "timeout": 5, **words}
    )


def ask(
    url: str, tokens: Tokens, results: ResultsFolder, *, chat: bool = False, **words: Any
) -> EndpointRun:
    """Run the plan."""
    run = EndpointRun(served(url, **words), maker(tokens, PLAN, chat), tokens, results, chat)
    run.run(cells_of(PLAN))
    return run


def prompts(tokens: Tokens, chat: bool = False) -> list[Prompt]:
    return list(maker(tokens, PLAN, chat).prompts(cells_of(PLAN)))


def right(path: str, body: Any) -> Reply:
    """The code, wherever it stands in a text."""
    text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    word = text.rsplit(" of ", 1)[1].split()[0].strip("?.")
    found = text.split(f"of {word} is ", 1)[1][:5]
    return 200, completion(f" {found}.", 99)


# --- what is asked, and what is kept ---


def test_token_ids_are_sent_as_they_are(tokens: Tokens, results: ResultsFolder) -> None:
    with Scripted(lambda path, body: (200, completion(" no"))) as server:
        run = ask(server.url, tokens, results)
    made = prompts(tokens)
    assert [path for path, _ in server.asked] == ["/v1/completions"] * 6
    assert [body for _, body in server.asked] == [
        {"model": "m", "temperature": 0, "max_tokens": p.budget, "prompt": p.ids.tolist()}
        for p in made
    ]
    assert (run.progress.done, run.progress.failed, run.progress.total) == (6, 0, 6)
    for record, prompt in zip(results.records, made, strict=True):
        assert record["said"] == "no"
        assert record["exact"] == 0
        assert record["served_prompt_tokens"] is None
        assert record["forwarded"] == len(prompt.ids)


def test_a_server_that_takes_no_ids_is_sent_text_from_then_on(
    tokens: Tokens, results: ResultsFolder
) -> None:
    def answer(path: str, body: Any) -> Reply:
        if not isinstance(body["prompt"], str):
            return 422, {"detail": "prompt must be a string."}
        return right(path, body)

    notes: list[str | None] = []
    with Scripted(answer) as server:
        run = EndpointRun(served(server.url), maker(tokens, PLAN), tokens, results, chat=False)
        run.report = lambda progress: notes.append(progress.note)
        run.run(cells_of(PLAN))
    kinds = [type(body["prompt"]) for _, body in server.asked]
    assert kinds == [list] + [str] * 6
    assert all("<s>" not in body["prompt"] for _, body in server.asked[1:])
    assert [note for note in notes if note] == ["the server takes no token ids; sending text"]
    assert [record["exact"] for record in results.records] == [1] * 6
    assert {record["served_prompt_tokens"] for record in results.records} == {99}
    assert run.progress.tokens == 6 * 99


def test_a_prompt_refused_both_ways_decides_nothing(tokens: Tokens, results: ResultsFolder) -> None:
    count = Counter[str]()

    def answer(path: str, body: Any) -> Reply:
        count["asked"] += 1
        if count["asked"] <= 2:
            return 400, {"error": {"message": "the context is too long"}}
        return 200, completion(" no")

    with Scripted(answer) as server:
        ask(server.url, tokens, results)
    assert [type(body["prompt"]) for _, body in server.asked] == [list, str] + [list] * 5
    assert results.records[0]["failed"] == "400: the context is too long"


def test_where_ids_are_taken_a_refusal_is_no_reason_for_text(
    tokens: Tokens, results: ResultsFolder
) -> None:
    def answer(path: str, body: Any) -> Reply:
        late = len(server.asked) > 2
        return (400, {"error": "too long"}) if late else (200, completion(" no"))

    with Scripted(answer) as server:
        run = ask(server.url, tokens, results)
    assert [type(body["prompt"]) for _, body in server.asked] == [list] * 6
    assert (run.progress.done, run.progress.failed) == (6, 4)


def test_chat_sends_one_message_of_the_user(tokens: Tokens, results: ResultsFolder) -> None:
    with Scripted(right) as server:
        ask(server.url, tokens, results, chat=True)
    assert {path for path, _ in server.asked} == {"/v1/chat/completions"}
    for (_, body), prompt in zip(server.asked, prompts(tokens, chat=True), strict=True):
        (message,) = body["messages"]
        assert message["role"] == "user"
        rendered = tokens.tokenizer.apply_chat_template([message], add_generation_prompt=True)
        assert rendered["input_ids"] == prompt.ids.tolist()
    assert [record["exact"] for record in results.records] == [1] * 6


def test_reasoning_is_not_scored(tokens: Tokens, results: ResultsFolder) -> None:
    message = {"content": None, "reasoning_content": "it may be 12345"}
    notes: list[str] = []

    def note(progress: Progress) -> None:
        notes.extend([progress.note] if progress.note else [])

    with Scripted(lambda path, body: (200, {"choices": [{"message": message}]})) as server:
        run = EndpointRun(
            served(server.url), maker(tokens, PLAN, True), tokens, results, True, note
        )
        run.run(cells_of(PLAN))
    assert {record["said"] for record in results.records} == {""}
    assert len(notes) == 1
    assert "reasons instead of answering" in notes[0]


def test_no_more_is_asked_at_a_time_than_allowed(tokens: Tokens, results: ResultsFolder) -> None:
    def slowly(path: str, body: Any) -> Reply:
        time.sleep(0.1)
        return 200, completion(" no")

    with Scripted(slowly) as server:
        ask(server.url, tokens, results, concurrency=3)
    assert server.at_once == 3
    assert {tuple(record[k] for k in ("depth", "trial")) for record in results.records} == {
        (depth, trial) for depth in PLAN.depths for trial in (0, 1)
    }


def test_prompts_are_made_as_they_are_asked(tokens: Tokens, results: ResultsFolder) -> None:
    made: list[Prompt] = []
    ahead: list[int] = []

    class Noting(PromptMaker):
        def prompts(self, cells: Any) -> Iterator[Prompt]:
            for prompt in super().prompts(cells):
                made.append(prompt)
                yield prompt

    plan = NeedlePlan(lengths=(256,), trials=2, scoring="generate")
    haystack = Haystack(tokens, own_sentences(0))
    noting = Noting(plan, tokens, haystack, chat=False, scoring="generate")
    with Scripted(lambda path, body: (200, completion(" no"))) as server:
        run = EndpointRun(served(server.url, concurrency=2), noting, tokens, results, chat=False)
        run.report = lambda progress: ahead.append(len(made) - progress.done)
        run.run(cells_of(plan))
    assert len(made) == 22
    assert max(ahead) <= 4


def test_only_what_is_open_is_asked(tokens: Tokens, tmp_path: Path) -> None:
    failing = {"0"}

    def answer(path: str, body: Any) -> Reply:
        if failing and len(server.asked) == 2:
            return 413, {"error": "too large"}
        return 200, completion(" no")

    with Scripted(answer) as server:
        with ResultsFolder(tmp_path / "run", {}, {}).open() as results:
            ask(server.url, tokens, results)
        assert [bool(record.get("failed")) for record in results.records] == [0, 1, 0, 0, 0, 0]
        failing.clear()
        before = len(server.asked)
        with ResultsFolder(tmp_path / "run", {}, {}).open() as results:
            run = ask(server.url, tokens, results)
        assert (run.progress.total, run.progress.done) == (6, 6)
        (_, again), *more = server.asked[before:]
        assert not more
        assert again["prompt"] == prompts(tokens)[1].ids.tolist()
    assert len(list(read_results(tmp_path / "run"))) == 7


# --- when the server fails ---


@pytest.mark.parametrize(("asked", "pause"), [("2.5", 2.5), ("0", 1), ("900", 60), ("soon", 1)])
def test_a_server_may_ask_for_a_longer_pause(asked: str, pause: float) -> None:
    error = SimpleNamespace(response=SimpleNamespace(headers={"retry-after": asked}))
    assert endpoint._pause(error, 1) == pause


def test_what_passes_is_asked_again(tokens: Tokens, results: ResultsFolder) -> None:
    def answer(path: str, body: Any) -> Reply:
        if len(server.asked) % 2:
            return 429, {"error": {"message": "slow down"}}, {"retry-after": "0"}
        return 200, completion(" no")

    with Scripted(answer) as server:
        run = ask(server.url, tokens, results)
    assert len(server.asked) == 12
    assert run.progress.failed == 0


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((500, {"error": {"message": "out of\nmemory"}}), "500: out of memory"),
        ((503, b"<html>"), "503: <html>"),
        ((200, b"<html>hello"), "an answer that cannot be read: <html>hello"),
        ((200, {"error": "no"}), "an answer that cannot be read: {'error': 'no'}"),
        ((200, {"choices": [{"text": 5}]}), "an answer that cannot be read"),
        ((401, {"error": {"message": "no such key"}}), "401: no such key"),
        ((HANG, None), "Request timed out"),
    ],
)
def test_a_server_that_is_gone_stops_the_run(
    tokens: Tokens, results: ResultsFolder, reply: Reply, reason: str
) -> None:
    timeout = 0.3 if reply[0] == HANG else 5
    with Scripted(lambda path, body: reply) as server, pytest.raises(EndpointError) as caught:
        ask(server.url, tokens, results, timeout=timeout)
    assert f"{server.url}/v1 left 3 cells in a row unanswered" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [record["failed"].startswith(reason) for record in results.records] == [True] * 3
    # One may have been under way when the run stopped.
    tries = 2 if reply[0] >= 500 or reply[0] == HANG else 1
    assert 3 * tries <= len(server.asked) <= 4 * tries


def test_a_server_that_comes_back_is_not_gone(tokens: Tokens, results: ResultsFolder) -> None:
    def answer(path: str, body: Any) -> Reply:
        return (200, completion(" no")) if len(server.asked) % 3 == 0 else (500, {})

    with Scripted(answer) as server:
        run = ask(server.url, tokens, results, retries=0)
    assert [bool(record.get("failed")) for record in results.records] == [1, 1, 0, 1, 1, 0]
    assert run.progress.failed == 4


def test_nobody_there(tokens: Tokens, results: ResultsFolder) -> None:
    with pytest.raises(EndpointError, match=r"3 cells in a row .*Connection refused"):
        ask(f"http://127.0.0.1:{free_port()}", tokens, results, concurrency=2)
    assert len(results.records) == 3


def test_an_interrupted_run_ends_at_once(tokens: Tokens, results: ResultsFolder) -> None:
    order = itertools.count()
    interrupted: list[float] = []

    def interrupt(progress: Progress) -> None:
        if progress.done:
            interrupted.append(time.monotonic())
            raise KeyboardInterrupt

    def answer(path: str, body: Any) -> Reply:
        return (200, completion(" no")) if next(order) == 0 else (HANG, None)

    with Scripted(answer) as server:
        there = served(server.url, concurrency=3, timeout=2, retries=5)
        run = EndpointRun(there, maker(tokens, PLAN), tokens, results, False, interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.run(cells_of(PLAN))
        assert time.monotonic() - interrupted[0] < 1
        left = [t for t in threading.enumerate() if t.name.startswith("ropepatch-asks")]
        assert all(thread.daemon for thread in left)
        for thread in left:
            thread.join(10)  # their requests run out of time, and none is asked again
            assert not thread.is_alive()
    assert len(server.asked) <= 4


def test_a_bug_is_raised_where_it_is_seen(
    tokens: Tokens, results: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokens, "exactly", lambda self, ids: 1 / 0)
    with Scripted(right) as server, pytest.raises(ZeroDivisionError):
        ask(server.url, tokens, results, chat=True)


# --- a real server ---


def in_process(folder: Path, tokens: Tokens, chat: bool, results: ResultsFolder) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    end = tokens.end()
    ends = () if end is None else (end,)
    made = maker(tokens, LONGER, chat)
    NeedleRun(Reader(model), made, tokens, results, "generate", ends).run(cells_of(LONGER))


def by_cell(results: ResultsFolder) -> dict[Any, tuple[str, float]]:
    return {key_of(record): (record["said"], record["recall"]) for record in results.records}


@pytest.mark.slow
def test_transformers_serve_answers_as_the_model_in_process(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = byte_llama(tmp_path / "model")
    tokens = Tokens(AutoTokenizer.from_pretrained(folder))
    with transformers_serve(str(folder)) as url:
        there = Served(url, str(folder), timeout=60, concurrency=2)
        there.check()
        for chat in (False, True):
            with ResultsFolder(tmp_path / f"served-{chat}", {}, {}).open() as answers:
                made = maker(tokens, LONGER, chat)
                EndpointRun(there, made, tokens, answers, chat).run(cells_of(LONGER))
            with ResultsFolder(tmp_path / f"own-{chat}", {}, {}).open() as own:
                in_process(folder, tokens, chat, own)
            found, wanted = by_cell(answers), by_cell(own)
            assert len(found) == len(cells_of(LONGER))
            assert found == wanted
            assert len({said for said, _ in found.values()}) == len(found)
            sizes = {p.cell.key: len(p.ids) for p in made.prompts(cells_of(LONGER))}
            for record in answers.records:
                assert record["served_prompt_tokens"] == sizes[key_of(record)]
