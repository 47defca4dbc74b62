"""Several processes that share one run, as `accelerate launch` or torchrun start them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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
    """As the environment says; a process of its own is the only one."""
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return Ranks()
    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu")
    return Ranks(state.process_index, state.num_processes, state)
