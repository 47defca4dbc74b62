"""One recovery training, from a patched checkpoint to a healed one."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch.checkpoint.staging import check_target
from ropepatch.errors import HealingError
from ropepatch.healing.documents import Sources
from ropepatch.healing.plan import HealPlan
from ropepatch.healing.run_folder import RunFolder
from ropepatch.measuring.ranks import ranks
from ropepatch.recovering.case import Case, Way
from ropepatch.recovering.outlook import Outlook, outlook
from ropepatch.recovering.patient import (
    Patient,
    check_changed,
    check_lengths,
    check_method,
    check_teacher,
)
from ropepatch.recovering.processes import check_processes

if TYPE_CHECKING:
    from ropepatch.healing.store import Store


@dataclass(frozen=True)
class Healed:
    """What `heal` did."""

    target: Path
    plan: HealPlan
    outlook: Outlook | None
    """What it was expected to need."""
    training: Mapping[str, Any] | None
    """As in the record of the result; None after a dry run, and in all processes but the first."""


def heal(
    model: str | Path,
    data: str | Path | Sequence[str | Path],
    plan: HealPlan | Mapping[str, Any],
    output: str | Path | None = None,
    *,
    teacher: str | Path | None = None,
    text_column: str | None = None,
    adapter: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
    way: Way | None = None,
) -> Healed:
    """Train a patched or converted checkpoint shortly, and write what came out as a whole one.

    Args:
        model: What `extend` or `convert` wrote, or any scaled checkpoint.
        data: Text, JSONL or parquet files, folders of them, or datasets of the hub.
        plan: Of the training, or its words.
        output: A folder that does not exist; by default `NAME-healed` beside the model. While
            the training runs, its own folder `OUTPUT.run` holds checkpoints; the same call goes
            on from them.
        teacher: The model from before the patch, whose opinion is learned inside its window.
        text_column: Where rows keep their text.
        adapter: Write the adapter alone, for `merge`, where adapters are trained.
        revision: Of the model on the hub.
        dry_run: Stop before anything is loaded or written.
        way: Device, progress and the like.

    Raises:
        HealingStoppedError: SIGTERM or Ctrl-C; what was done is saved.
        RopepatchError: refused, by name; nothing was written.

    Example:
        >>> import ropepatch
        >>> ropepatch.heal("model-64k", "books.jsonl", {"seq_len": "64k", "steps": 400})
        ... # doctest: +SKIP
    """
    asked = plan if isinstance(plan, HealPlan) else HealPlan.from_words(plan)
    way = way or Way()
    if adapter and asked.lora is None:
        raise HealingError("an adapter is written where adapters are trained; give lora a rank.")
    names = [data] if isinstance(data, str | Path) else list(data)
    sources = Sources([str(name) for name in names], text_column)
    patient = Patient.find(str(model), revision, way.say)
    check_changed(patient)
    short = check_lengths(patient, asked)
    master = None if teacher is None else Patient.find(str(teacher), None, way.say)
    if master is not None:
        check_teacher(patient, master)
    check_method(patient, asked)
    patient.tokenizer()  # that there is one is known before anything is begun
    target = Path(output) if output else patient.beside("healed")
    check_target(target, patient.folder)
    mine = ranks(way.device)
    check_processes(asked, patient, mine.world, taught=master is not None)
    ahead = outlook(patient, asked, master, way.device, mine.world)
    if dry_run:
        return Healed(target, asked, ahead, None)
    case = Case(asked, patient, master, sources, target, mine, way, short, adapter)
    return Healed(target, asked, ahead, _run(case, ahead))


def _run(case: Case, ahead: Outlook) -> Mapping[str, Any] | None:
    """Train, prove, write."""
    from ropepatch.model.skeleton import quiet

    first = case.ranks.rank == 0
    folder = RunFolder(case.target.with_name(f"{case.target.name}.run"))
    folder.open(_decisive(case), first=first)
    with contextlib.closing(folder), _tidy(folder), quiet():
        store = _store(case, folder)
        from ropepatch.recovering.training import Training

        found = Training(case, folder, store, ahead).run()
        if not first:
            return None
        from ropepatch.recovering.finishing import finish

        written = finish(case, folder, store, found)
        folder.remove()
        return written


@contextlib.contextmanager
def _tidy(folder: RunFolder) -> Iterator[None]:
    """What is refused before anything was trained leaves no folder behind."""
    try:
        yield
    except BaseException:
        if folder.is_ours and folder.checkpoint() is None:
            folder.remove()
        raise


def _decisive(case: Case) -> dict[str, Any]:
    """What decides the result."""
    files = case.sources.local()
    return {
        "plan": case.plan.to_dict(),
        "model": case.patient.fingerprint(),
        "teacher": case.master.fingerprint() if case.master else None,
        "data": list(case.sources.names),
        "files": [[path.name, path.stat().st_size] for path in files],
        "text_column": case.sources.column,
        "adapter": case.adapter,
    }


def _store(case: Case, folder: RunFolder) -> "Store":
    """The data as token ids, written by the first process."""
    from ropepatch.healing.store import Encoder, Store, write_store

    plan = case.plan
    if case.ranks.rank == 0:
        vocabulary = case.patient.vocabulary or 2**31
        case.way.say("tokenising the data")
        write_store(
            folder.store,
            case.sources,
            Encoder(case.patient.tokenizer(), vocabulary),
            wanted=plan.tokens + 1,
            held_out=(plan.check_windows + 1) * plan.seq_len + 1,
            seq_len=plan.seq_len,
            min_doc_len=plan.min_doc_len,
            long_share=plan.long_share,
            seed=plan.seed,
            report=case.way.store_report,
        )
    case.ranks.wait()
    return Store.open(folder.store)
