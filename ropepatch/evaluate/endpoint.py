"""Needles asked of a served model: vLLM, SGLang, llama.cpp, `transformers serve` and their kin."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Self

from ropepatch.errors import EndpointError
from ropepatch.evaluate.cells import Cell, Prompt
from ropepatch.evaluate.needle import Progress, Report
from ropepatch.evaluate.prompts import PromptMaker
from ropepatch.evaluate.records import generated, key_of, record_of
from ropepatch.evaluate.results import ResultsFolder
from ropepatch.evaluate.served import Served, openai, reason
from ropepatch.evaluate.tokens import Tokens

__all__ = ["EndpointRun", "Served"]

GONE_AFTER = 3
"""Cells in a row that a server may leave unanswered."""
_LONGEST_PAUSE = 60.0
_PASSING = (408, 429)
"""Refusals that a retry may turn; and all from 500."""
_FOR_ALL = (401, 403, 404, 405)
"""A key, a name or an address that is wrong is so for every cell."""


@dataclass
class EndpointRun:
    """Asks a served model what a plan asks and keeps each answer as it comes."""

    served: Served
    maker: PromptMaker
    """For scoring "generate"."""
    tokens: Tokens
    """As the served model has them."""
    results: ResultsFolder
    chat: bool
    """Whether `maker` makes prompts for chat."""
    report: Report = lambda progress: None
    progress: Progress = field(default_factory=lambda: Progress(0))
    _unanswered: int = 0
    _noted: set[str] = field(default_factory=set)
    _began: float = 0.0

    def run(self, cells: Sequence[Cell]) -> None:
        """Ask what has not been answered yet.

        Raises:
            EndpointError: the server is gone; what it answered is kept.
        """
        answered = {key_of(record) for record in self.results.records if not record.get("failed")}
        open_cells = [cell for cell in cells if cell.key not in answered]
        self.progress = Progress(len(cells), len(cells) - len(open_cells))
        self._began, self._unanswered = time.monotonic(), 0
        self.report(self.progress)
        with _Crew(self.served, self.tokens, self.chat) as crew:
            for answer in crew.answers(self.maker.prompts(open_cells)):
                self._keep(answer)

    def _keep(self, answer: "_Answer") -> None:
        if answer.bug is not None:
            raise answer.bug
        prompt, read = answer.prompt, answer.read
        if answer.failed is None:
            score = generated(prompt, answer.text) | {"served_prompt_tokens": read}
            record = record_of(prompt, score, len(prompt.ids) if read is None else read)
        else:
            record = record_of(prompt, {"failed": answer.failed}, 0)
        self.results.add(record)
        self.progress.done += 1
        self.progress.failed += answer.failed is not None
        self.progress.tokens += record["forwarded"]
        self.progress.seconds = time.monotonic() - self._began
        if answer.note is not None and answer.note not in self._noted:
            self._noted.add(answer.note)
            self.progress.note = answer.note
        self.report(self.progress)
        self.progress.note = None
        self._unanswered = self._unanswered + 1 if answer.gone else 0
        if self._unanswered >= GONE_AFTER:
            raise EndpointError(
                f"{self.served.url} left {GONE_AFTER} cells in a row unanswered (the last with "
                f"{answer.failed}); see to the server and run the same again: answers are kept."
            )


@dataclass(frozen=True)
class _Answer:
    """What became of one prompt."""

    prompt: Prompt
    text: str = ""
    read: int | None = None
    """Tokens of the prompt, by the server's count."""
    failed: str | None = None
    gone: bool = False
    """Whether the reason lies with the server, not with the prompt."""
    note: str | None = None
    bug: Exception | None = None


class _UnreadableError(Exception):
    """An answer that is not as the API wants it."""

    def __init__(self, answer: Any) -> None:
        super().__init__(f"an answer that cannot be read: {str(answer)[:150]}")


class _Crew:
    """Threads that ask, each for one prompt at a time.

    Those of a ThreadPoolExecutor would hold up the end of the program, after Ctrl-C too, until
    their last requests have run out of time.
    """

    def __init__(self, served: Served, tokens: Tokens, chat: bool) -> None:
        self._served, self._tokens, self._chat = served, tokens, chat
        self._lib, self._client = openai(), served.client()
        self._todo: SimpleQueue[Prompt | None] = SimpleQueue()
        self._done: SimpleQueue[_Answer] = SimpleQueue()
        self._stop = Event()
        self._takes_ids: bool | None = None
        """Whether the server takes prompts as token ids; None before the first answer."""
        self._threads = [
            Thread(target=self._work, daemon=True, name=f"ropepatch-asks-{i}")
            for i in range(served.concurrency)
        ]
        self._left = len(self._threads)
        self._lock = Lock()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        for _thread in self._threads:
            self._todo.put(None)
        if kind is None:
            for thread in self._threads:
                thread.join()

    def answers(self, prompts: Iterator[Prompt]) -> Iterator[_Answer]:
        """As they come; as many prompts as are asked at a time lie ready, no more."""
        flying, most = 0, 2 * self._served.concurrency
        for prompt in prompts:
            self._todo.put(prompt)
            flying += 1
            while flying == most or not self._done.empty():
                yield self._done.get()
                flying -= 1
        for _ in range(flying):
            yield self._done.get()

    def _work(self) -> None:
        while (prompt := self._todo.get()) is not None and not self._stop.is_set():
            self._done.put(self._answer(prompt))
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._client.close()

    def _answer(self, prompt: Prompt) -> _Answer:
        lib = self._lib
        try:
            return self._chatted(prompt) if self._chat else self._completed(prompt)
        except lib.APIStatusError as error:
            status = error.status_code
            gone = status >= 500 or status in _PASSING or status in _FOR_ALL
            return _Answer(prompt, failed=reason(error), gone=gone)
        except (lib.APIConnectionError, _UnreadableError) as error:
            return _Answer(prompt, failed=reason(error), gone=True)
        except Exception as error:  # raised where it is seen, in the main thread
            return _Answer(prompt, bug=error)

    def _chatted(self, prompt: Prompt) -> _Answer:
        message = {"role": "user", "content": self._text(prompt)}
        words = self._ask(self._client.chat.completions, prompt, {"messages": [message]})
        said = _choice(words).get("message")
        text = said.get("content") if isinstance(said, dict) else words
        if not isinstance(said, dict) or not isinstance(text, str | None):
            raise _UnreadableError(words)
        note = None
        if not text and (said.get("reasoning_content") or said.get("reasoning")):
            note = "the model reasons instead of answering; turn that off or allow a longer answer"
        return _Answer(prompt, text or "", _prompt_tokens(words), note=note)

    def _completed(self, prompt: Prompt) -> _Answer:
        if self._takes_ids is False:
            return self._as_text(prompt)
        lib = self._lib
        try:
            answer = self._plain(prompt, prompt.ids.tolist())
        except (lib.BadRequestError, lib.UnprocessableEntityError):
            if self._takes_ids:
                raise
            # What is refused both ways is refused for another reason, and decides nothing.
            answer = self._as_text(prompt, "the server takes no token ids; sending text")
            self._takes_ids = bool(self._takes_ids)
            return answer
        self._takes_ids = True
        return answer

    def _as_text(self, prompt: Prompt, note: str | None = None) -> _Answer:
        # Without the beginning-of-sequence token: servers put it before a text themselves.
        return self._plain(prompt, self._text(prompt), note)

    def _text(self, prompt: Prompt) -> str:
        return self._tokens.exactly(prompt.ids[prompt.content].tolist())

    def _plain(self, prompt: Prompt, asked: str | list[int], note: str | None = None) -> _Answer:
        words = self._ask(self._client.completions, prompt, {"prompt": asked})
        text = _choice(words).get("text")
        if not isinstance(text, str):
            raise _UnreadableError(words)
        return _Answer(prompt, text, _prompt_tokens(words), note=note)

    def _ask(self, route: Any, prompt: Prompt, asked: dict[str, Any]) -> Any:
        """One answer, after as many tries as are allowed."""
        lib, served = self._lib, self._served
        words = {"model": served.model, "temperature": 0, "max_tokens": prompt.budget, **asked}
        left, pause = served.retries, served.pause
        while not self._stop.is_set():
            try:
                return _parsed(route.with_raw_response.create(**words).content)
            except (lib.APIStatusError, lib.APIConnectionError) as error:
                status = getattr(error, "status_code", 500)
                if left == 0 or not (status >= 500 or status in _PASSING):
                    raise
                self._stop.wait(_pause(error, pause))
            left, pause = left - 1, 2 * pause
        raise _UnreadableError("none, the run was stopped")


def _pause(error: Any, pause: float) -> float:
    """Seconds before a retry: what the server asks for, if it is more."""
    response = getattr(error, "response", None)
    try:
        asked = float(response.headers["retry-after"]) if response is not None else 0.0
    except (KeyError, ValueError):
        asked = 0.0  # or a date, which no server of models sends
    return min(max(pause, asked), _LONGEST_PAUSE)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        raise _UnreadableError(raw.decode("utf-8", "replace")) from None


def _choice(words: Any) -> dict[str, Any]:
    """The first answer of a response."""
    choices = words.get("choices") if isinstance(words, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        raise _UnreadableError(words)
    return first


def _prompt_tokens(words: dict[str, Any]) -> int | None:
    usage = words.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None
