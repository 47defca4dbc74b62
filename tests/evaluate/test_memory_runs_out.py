"""Less at once when memory runs out; what cannot be read is recorded, the rest is done."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from ropepatch.evaluate.needle import Progress
from ropepatch.evaluate.reader import Reader
from tests.evaluate import parts

CPU = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ...")
ERRORS = [CPU, torch.cuda.OutOfMemoryError("CUDA out of memory."), MemoryError()]
PLAN = parts.needle_plan(tasks=("niah_single",), lengths=(150, 300))


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long in a process with so many modules, and frees nothing here."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def tight(kind: str, error: BaseException, *, inputs: int = 10**6, total: int = 10**6) -> Reader:
    """A reader whose model fails beyond so many tokens in a forward, or in its cache too."""
    reader = parts.reader(kind, chunk=256)

    def before(_: Any, __: Any, words: dict[str, Any]) -> None:
        cache = words.get(reader.cache_word)
        held = 0 if cache is None else cache.get_seq_length()
        size = words["input_ids"].numel()
        if size > inputs or held + words["input_ids"].shape[1] > total:
            raise error

    reader.model.register_forward_pre_hook(before, with_kwargs=True)
    return reader


@pytest.mark.parametrize(
    ("error", "scoring"),
    [(ERRORS[0], "likelihood"), (ERRORS[1], "likelihood"), (ERRORS[2], "generate")],
)
def test_smaller_chunks(error: BaseException, scoring: str, tmp_path: Path) -> None:
    wanted = parts.run_needles(parts.reader("llama"), PLAN, tmp_path / "a", scoring=scoring)
    reader, notes = tight("llama", error, inputs=40), []

    def report(progress: Progress) -> None:
        if progress.note:
            notes.append(progress.note)

    found = parts.run_needles(reader, PLAN, tmp_path / "b", scoring=scoring, report=report)
    parts.assert_alike(found, wanted)
    assert reader.chunk == 32
    assert notes == [f"out of memory; going on with chunks of {n}" for n in (128, 64, 32)]


@pytest.mark.parametrize(
    ("error", "kind", "scoring"),
    [
        (ERRORS[0], "llama", "likelihood"),
        (ERRORS[0], "llama", "generate"),
        (ERRORS[1], "dynamic", "likelihood"),
        (ERRORS[2], "dynamic", "generate"),
    ],
)
def test_what_never_fits(error: BaseException, kind: str, scoring: str, tmp_path: Path) -> None:
    wanted = parts.run_needles(parts.reader(kind), PLAN, tmp_path / "a", scoring=scoring)
    seen: list[Progress] = []
    found = parts.run_needles(
        tight(kind, error, total=200), PLAN, tmp_path / "b", scoring=scoring, report=seen.append
    )
    for record, good in zip(found, wanted, strict=True):
        if record["length"] == 150:
            parts.assert_alike([record], [good])
        else:
            assert record["failed"] == "out of memory"
            assert "exact" not in record
            assert record["tokens"] == good["tokens"]
    assert (seen[-1].done, seen[-1].failed) == (6, 3)
    # with more memory, what failed is asked again, and nothing else
    reader = parts.reader(kind)
    again = parts.run_needles(reader, PLAN, tmp_path / "b", scoring=scoring)
    parts.assert_alike(again, wanted)
    assert reader.forwarded <= 3 * 300


def test_nothing_fits(tmp_path: Path) -> None:
    found = parts.run_needles(tight("llama", CPU, inputs=0), PLAN, tmp_path)
    assert [record["failed"] for record in found] == ["out of memory"] * 6


def test_other_errors_are_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes do not match"):
        parts.run_needles(
            tight("llama", RuntimeError("shapes do not match"), inputs=40), PLAN, tmp_path
        )
