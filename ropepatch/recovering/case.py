"""What is asked of one recovery training, joined; plain data."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ropepatch.healing.documents import Sources
from ropepatch.healing.plan import HealPlan
from ropepatch.measuring.ranks import Ranks
from ropepatch.recovering.patient import Patient, Say

if TYPE_CHECKING:
    from ropepatch.healing.following import Progress

Report = Callable[["Progress"], None]


@dataclass(frozen=True)
class Way:
    """How a training is done, apart from what is asked."""

    device: str = "auto"
    attention: str | None = None
    remote_code: bool = False
    command: str = ""
    say: Say = lambda text: None
    report: Report = lambda progress: None
    store_report: Callable[[int, int], None] = lambda done, wanted: None


@dataclass(frozen=True)
class Case:
    """Everything that a training needs."""

    plan: HealPlan
    patient: Patient
    master: Patient | None
    sources: Sources
    target: Path
    ranks: Ranks
    way: Way
    short_len: int
    adapter: bool
