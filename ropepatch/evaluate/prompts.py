"""Prompts of an exact number of tokens, with their needles at the ends of sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.cells import Cell, Prompt, cells_of
from ropepatch.evaluate.haystack import Haystack
from ropepatch.evaluate.plan import NeedlePlan
from ropepatch.evaluate.tasks.base import Item, Task
from ropepatch.evaluate.tasks.table import task_named
from ropepatch.evaluate.tokens import Frame, Tokens, check_ids

_SPARE = {"likelihood": 0, "generate": 8, "chat": 32}
"""Tokens that a generated answer may need beyond the answer itself."""
_FEWEST = 8
"""Tokens of haystack without which a depth means nothing."""


class PromptMaker:
    """Makes the prompts of a plan for one tokenizer."""

    def __init__(
        self, plan: NeedlePlan, tokens: Tokens, haystack: Haystack, *, chat: bool, scoring: str
    ) -> None:
        """Prepare.

        Args:
            plan: What is asked.
            tokens: Of the model.
            haystack: Where needles are hidden, unless a task brings its own.
            chat: Whether the chat template stands around the prompt.
            scoring: "likelihood" or "generate".
        """
        self._plan, self._tokens, self._haystack = plan, tokens, haystack
        self._frame: Frame = tokens.chat_frame() if chat else tokens.plain_frame()
        self._chat, self._scoring = chat, scoring
        self._budgets: dict[str, int] = {}

    def prompts(self, cells: Sequence[Cell]) -> Iterator[Prompt]:
        """The prompts of cells; those of one text are made together.

        Raises:
            EvaluationError: a length cannot hold its needles, question and answer.
        """
        try:
            yield from self._prompts(cells)
        except _TooShortError as error:
            raise EvaluationError(
                f"{error.length:,} tokens cannot hold the text, the question and the answer of "
                f"'{error.task}'; the shortest length for it is {self._shortest(error):,}."
            ) from None

    def _prompts(self, cells: Sequence[Cell]) -> Iterator[Prompt]:
        wanted: dict[tuple[str, int, int], list[Cell]] = {}
        for cell in cells:
            wanted.setdefault((cell.task, cell.length, cell.trial), []).append(cell)
        for (name, length, trial), group in wanted.items():
            task = task_named(name)
            if self._plan.protocol == "shared":
                yield from self._text(task, length, trial, self._plan.depths, group)
                continue
            for cell in group:
                yield from self._text(task, length, trial, (cell.depth,), [cell])

    def check(self, cells: Sequence[Cell], vocabulary: int | None = None) -> None:
        """Try one cell of every text, so that none is refused halfway.

        Args:
            cells: All that will be asked.
            vocabulary: Token ids that the model can read, if known.

        Raises:
            EvaluationError: as `prompts`, or the tokenizer is another model's.
        """
        first = {(cell.task, cell.length, cell.trial): cell for cell in reversed(cells)}
        for prompt in self.prompts(list(first.values())):
            check_ids(prompt.ids, vocabulary)

    def _shortest(self, error: "_TooShortError") -> int:
        """A length that holds all trials, while one token less does not.

        Every length draws words of its own, so what one of them needs only says where to look.
        """
        others = tuple(length for length in self._plan.lengths if length != error.length)

        def fits(length: int) -> bool:
            lengths = tuple(dict.fromkeys([length, *others]))
            plan = replace(self._plan, lengths=lengths, tasks=(error.task,))
            maker = PromptMaker(
                plan, self._tokens, self._haystack, chat=self._chat, scoring=self._scoring
            )
            first = {c.trial: c for c in cells_of(plan) if c.length == length}
            try:
                return all(True for _ in maker._prompts(list(first.values())))
            except _TooShortError:
                return False

        found = error.needed
        while found > 1 and fits(found - 1):
            found -= 1
        while not fits(found):
            found += 1
        return found

    def budget(self, task: Task) -> int:
        """Tokens of the longest answer that the plan asks for, or what the user says."""
        if task.name not in self._budgets:
            longest = 0
            for length in self._plan.lengths:
                for trial in range(self._plan.trials):
                    shared = self._plan.protocol == "shared"
                    depths = self._plan.depths if shared else self._plan.depths[:1]
                    items = task.items(self._rng(task, length, trial), depths)
                    longest = max([longest, *(len(self._ending(item).answer) for item in items)])
            kind = "chat" if self._chat and self._scoring == "generate" else self._scoring
            asked = self._plan.answer_tokens
            if asked is not None and asked < longest:
                raise EvaluationError(
                    f"answers of '{task.name}' take up to {longest} tokens; {asked} "
                    "(--answer-tokens) are too few."
                )
            self._budgets[task.name] = longest + _SPARE[kind] if asked is None else asked
        return self._budgets[task.name]

    def _rng(self, task: Task, length: int, trial: int) -> Random:
        """Without the depth: down a column of the grid, nothing else changes."""
        return Random(f"{self._plan.seed}/{task.name}/{length}/{trial}")

    def _ending(self, item: Item) -> "_Ending":
        """A question as token ids, and its answer as the text goes on."""
        after = list(self._frame.after)
        if self._chat and self._scoring == "generate":
            asked, answer = self._tokens.following([f"\n\n{item.question}", item.ending])
            return _Ending(asked, after, answer, ())
        lead = item.opening if self._chat else f"\n\n{item.opening}"
        places, at = [len(lead)], len(lead)
        for word in item.answers:
            at = (lead + item.ending).index(word, at)
            places += [at - 1, at := at + len(word)]  # with the space before it
        whole, counts = self._tokens.split(lead + item.ending, places)
        start, marks = counts[0], counts[1:]
        spans = tuple((a - start, b - start) for a, b in zip(marks[::2], marks[1::2], strict=True))
        answer = whole[start : start + spans[-1][1]]
        if not self._chat:
            return _Ending(whole[:start], [], answer, spans)
        asked = self._tokens.following([f"\n\n{item.question}"])[0]
        return _Ending(asked, after + whole[:start], answer, spans)

    def _text(
        self,
        task: Task,
        length: int,
        trial: int,
        depths: Sequence[float | None],
        cells: Sequence[Cell],
    ) -> Iterator[Prompt]:
        """The prompts of questions about one text."""
        places = [50.0 if depth is None else depth for depth in depths]
        items = task.items(self._rng(task, length, trial), places)
        head = [*self._frame.before, *self._opening_line(task)]
        endings = [self._ending(item) for item in items]
        needles = [needle for item in items for needle in item.needles]
        pieces = self._tokens.following([f" {needle.text}" for needle in needles])
        budget = self.budget(task)
        longest = max(len(ending) for ending in endings)
        fixed = len(head) + sum(map(len, pieces)) + longest + budget
        room, straw, ends = self._straw(task, items[0], length, fixed, longest)
        # Needles of one depth stay in the task's order.
        spots = [(_boundary(ends, needle.depth, room), needle.depth) for needle in needles]
        order = sorted(range(len(spots)), key=spots.__getitem__)
        rows = [(*spots[i], pieces[i]) for i in order]
        by_depth = {cell.depth: cell for cell in cells}
        for depth, place, item, ending in zip(depths, places, items, endings, strict=True):
            if depth not in by_depth:
                continue
            text, starts = _spliced(straw[: room + longest - len(ending)], rows)
            at = starts.get(place) if item.needles else None
            yield Prompt(
                cell=by_depth[depth],
                ids=np.asarray([*head, *text, *ending.asked, *ending.opening], np.int32),
                answer=np.asarray(ending.answer, np.int32),
                spans=ending.spans,
                answers=item.answers,
                budget=budget,
                needle_token=None if at is None else len(head) + at[0],
                actual_depth=None if at is None else round(100 * at[1] / room, 3),
                content=slice(len(self._frame.before), len(head) + len(text) + len(ending.asked)),
            )

    def _straw(
        self, task: Task, item: Item, length: int, fixed: int, spare: int
    ) -> tuple[int, np.ndarray, np.ndarray]:
        """Tokens of haystack that fit, the haystack (`spare` tokens more), its sentences' ends."""
        shortest = fixed + _FEWEST
        haystack = self._haystack
        if item.haystack is not None:
            haystack = Haystack(self._tokens, item.haystack)
        straw = haystack.take(max(length - fixed, 0) + spare)
        if item.fewest:
            if len(haystack.ends) <= item.fewest:
                haystack.take(int(haystack.ends[-1]) + 1)
            shortest = fixed + int(haystack.ends[item.fewest])
        if length < shortest:
            raise _TooShortError(task.name, length, shortest)
        return length - fixed, straw, haystack.ends

    def _opening_line(self, task: Task) -> list[int]:
        line = f"{task.opening_line}\n\n"
        return self._tokens.following([line])[0] if self._chat else self._tokens.whole(line)


class _TooShortError(Exception):
    """A text does not fit."""

    def __init__(self, task: str, length: int, needed: int) -> None:
        super().__init__(task)
        self.task, self.length = task, length
        self.needed = needed
        """Tokens that this very text needs."""


@dataclass(frozen=True)
class _Ending:
    """What stands after the haystack."""

    asked: list[int]
    """Token ids that a user would write."""
    opening: list[int]
    """From there to the answer: a chat template, words put into the model's mouth."""
    answer: list[int]
    spans: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.asked) + len(self.opening)


def _boundary(ends: np.ndarray, depth: float, room: int) -> int:
    """The end of a sentence that is nearest to a depth, in tokens."""
    inside = ends[: int(np.searchsorted(ends, room, side="right"))]
    return int(inside[np.argmin(np.abs(inside - depth / 100 * room))])


def _spliced(
    straw: np.ndarray, rows: Sequence[tuple[int, float, list[int]]]
) -> tuple[np.ndarray, dict[float, tuple[int, int]]]:
    """Needles put into the haystack.

    Returns:
        The text, and by depth where a needle begins in it and how much haystack is before that.
    """
    parts: list[np.ndarray] = []
    starts: dict[float, tuple[int, int]] = {}
    done, put = 0, 0
    for boundary, depth, piece in rows:
        parts += [straw[done:boundary], np.asarray(piece, np.int32)]
        starts.setdefault(depth, (boundary + put, boundary))
        done, put = boundary, put + len(piece)
    return np.concatenate([*parts, straw[done:]]).astype(np.int32), starts
