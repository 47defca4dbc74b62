"""Several processes that share one run, as `accelerate launch` or torchrun start them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ropepatch.errors import EvaluationError

Work = TypeVar("Work")


@dataclass(frozen=True)
class Ranks:
    """This process among all."""

    rank: int = 0
    world: int = 1
    state: Any = None
    """accelerate's `PartialState`, if there are several."""

    def part(self, work: Sequence[Work]) -> list[Work]:
        """What this process does; neighbours go to different processes, so each gets a mix."""
        return list(work[self.rank :: self.world])

    def wait(self) -> None:
        """Until all are here."""
        if self.state is not None:
            self.state.wait_for_everyone()


def ranks(device: str) -> Ranks:
    """As the environment says; a process of its own is the only one.

    Args:
        device: As asked; "auto" is the CPU where there is nothing else.

    Raises:
        EvaluationError: the processes do not find each other, so each would do all of the work.
    """
    asked = int(os.environ.get("WORLD_SIZE", "1"))
    if asked <= 1:
        return Ranks()
    import torch
    from accelerate import PartialState

    gpus = torch.cuda.is_available() or torch.backends.mps.is_available()
    state = PartialState(cpu=device == "cpu" or (device == "auto" and not gpus))
    if state.num_processes != asked:
        raise EvaluationError(
            f"{asked} processes were started, but accelerate sees {state.num_processes} on device "
            f"'{device}'; start them with torchrun or accelerate launch, one for each device."
        )
    return Ranks(state.process_index, state.num_processes, state)
