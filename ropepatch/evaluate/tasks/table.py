"""The table of tasks."""

import difflib

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.tasks.base import Task
from ropepatch.evaluate.tasks.common_words import CommonWords
from ropepatch.evaluate.tasks.frequent_words import FrequentWords
from ropepatch.evaluate.tasks.niah_multikey import NiahMultikey
from ropepatch.evaluate.tasks.niah_multiquery import NiahMultiquery
from ropepatch.evaluate.tasks.niah_multivalue import NiahMultivalue
from ropepatch.evaluate.tasks.niah_single import NiahSingle
from ropepatch.evaluate.tasks.passkey import Passkey
from ropepatch.evaluate.tasks.variable_tracking import VariableTracking

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Passkey,
        NiahSingle,
        NiahMultikey,
        NiahMultivalue,
        NiahMultiquery,
        VariableTracking,
        CommonWords,
        FrequentWords,
    )
}


def task_named(name: str) -> Task:
    """The task of that name.

    Raises:
        EvaluationError: there is none.
    """
    if name not in TASKS:
        close = difflib.get_close_matches(name, TASKS, 1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise EvaluationError(f"no task is called '{name}'.{hint} Known: {', '.join(TASKS)}.")
    return TASKS[name]()
