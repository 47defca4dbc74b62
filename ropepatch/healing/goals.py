"""What a training is measured by, and when that is good enough."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ropepatch.errors import HealingError

METRICS = {
    "needle": True,
    "needle_short": True,
    "loss": False,
    "loss_short": False,
}
"""By name, whether more is better: needles found and nats per held-out token, at the length that is
trained for and within the length of pretraining."""
_GOAL = re.compile(r"\s*([a-z_]+)\s*(>=|<=|>|<)\s*([0-9.eE+-]+)\s*")


@dataclass(frozen=True)
class Goal:
    """One number to reach, as in `needle>=0.95`."""

    metric: str
    above: bool
    """Whether it is to be reached from below."""
    value: float

    @classmethod
    def parse(cls, text: str) -> "Goal":
        """From the words of `--until`.

        Raises:
            HealingError: it is no comparison, or of nothing that is measured.
        """
        match = _GOAL.fullmatch(text)
        try:
            value = float(match[3]) if match else None
        except ValueError:
            value = None
        if match is None or value is None:
            raise HealingError(f"until '{text}': write METRIC>=NUMBER, as in needle>=0.95.")
        if match[1] not in METRICS:
            raise HealingError(
                f"until '{text}': {match[1]} is not measured; these are: {', '.join(METRICS)}."
            )
        above = match[2].startswith(">")
        if above is not METRICS[match[1]]:
            better = "more" if METRICS[match[1]] else "less"
            raise HealingError(f"until '{text}': of {match[1]}, {better} is better.")
        return cls(match[1], above, value)

    def reached(self, measured: Mapping[str, float]) -> bool:
        """Whether these numbers are good enough; NaN never is."""
        found = measured.get(self.metric, float("nan"))
        return found >= self.value if self.above else found <= self.value

    def __str__(self) -> str:
        return f"{self.metric}{'>=' if self.above else '<='}{self.value:g}"
