"""A needle run on a served model: tokenizer and prompts here, the model elsewhere."""

import dataclasses
import datetime
import platform
from pathlib import Path

from ropepatch._version import __version__
from ropepatch.errors import EvaluationError
from ropepatch.evaluate.plan import NeedlePlan
from ropepatch.evaluate.results import ResultsFolder
from ropepatch.measuring.running import haystack_of, resolved
from ropepatch.measuring.settings import Settings
from ropepatch.measuring.subject import Opening, tokens_of


def served_needle(
    opening: Opening,
    plan: NeedlePlan,
    folder: Path,
    settings: Settings,
    *,
    url: str,
    served_model: str,
    haystack: Path | None = None,
    concurrency: int = 4,
    timeout: float = 120.0,
) -> ResultsFolder:
    """Ask a server a grid of questions; what the folder has already answered is not asked again.

    Args:
        opening: Whose tokenizer the server's model has.
        plan: What to ask; answers are generated, since servers give no likelihoods of a prompt.
        folder: For the results.
        settings: Of these, `say`, `report`, `label` and `command` count.
        url: Of the server, with or without /v1.
        served_model: The model's name there.
        haystack: To hide needles in; None for the package's own.
        concurrency: Requests at a time.
        timeout: Seconds for a request.

    Raises:
        EvaluationError: the plan does not fit, or the folder holds another run.
        EndpointError: the server cannot be reached or is gone.
    """
    from ropepatch.evaluate.cells import cells_of
    from ropepatch.evaluate.endpoint import EndpointRun
    from ropepatch.evaluate.prompts import PromptMaker
    from ropepatch.evaluate.served import Served

    if plan.scoring == "likelihood":
        raise EvaluationError(
            "an endpoint gives no likelihood of a prompt's tokens; leave out --scoring likelihood."
        )
    served = Served(url, served_model, timeout=timeout, concurrency=concurrency)
    served.check()
    tokens = tokens_of(opening.tokenizer or opening.model, remote_code=opening.remote_code)
    end = tokens.end()
    words = resolved(
        dataclasses.replace(plan, scoring="generate"),
        tokens,
        () if end is None else (end,),
        served_model,
    )
    straw, digest = haystack_of(tokens, plan.seed, haystack)
    maker = PromptMaker(plan, tokens, straw, chat=words.chat, scoring="generate")
    cells = cells_of(plan)
    maker.check(cells)
    asked = {
        "kind": "needle",
        "plan": plan.to_dict(),
        "scoring": "generate",
        "chat": words.chat,
        "haystack": digest,
        "model": served_model,
        "tokenizer": tokens.digest(),
        "endpoint": served.url,
    }
    about = {
        "label": settings.label or Path(served_model).name,
        "model": f"{served_model} at {served.url}",
        "command": settings.command,
        "device": "a server",
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"ropepatch": __version__, "python": platform.python_version()},
    }
    with ResultsFolder(folder, asked, about).open() as results:
        EndpointRun(served, maker, tokens, results, words.chat, settings.report).run(cells)
    return results
