"""What is asked of a recovery training, checked before anything is loaded."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropepatch.errors import HealingError, RecipeError
from ropepatch.healing.goals import Goal
from ropepatch.healing.plan_faults import faults_of
from ropepatch.healing.words import Packing, Precision, Schedule
from ropepatch.recipe import parse_length

FULL_RATE, LORA_RATE = 2e-5, 2e-4
"""Learning rates where none is asked for: of PI and YaRN (arXiv:2306.15595, arXiv:2309.00071), and
ten times that for adapters."""
_WARMUP = 20


@dataclass(frozen=True)
class Stage:
    """Some steps in a row that are alike; what is None is as in the plan."""

    steps: int
    seq_len: int | None = None
    """Tokens of a sequence; divides the plan's. Tokens per step stay the same."""
    rate: float = 1.0
    """Multiplies the learning rate."""
    teacher_weight: float | None = None
    hidden_weight: float | None = None
    short_share: float | None = None


@dataclass(frozen=True)
class HealPlan:
    """A recovery training.

    Raises:
        HealingError: values are out of their range; all faults together.
    """

    seq_len: int
    """Tokens of the longest sequence that is trained on."""
    steps: int = 0
    """Of all stages together; 0 where stages say it."""
    stages: tuple[Stage, ...] = ()
    batch: int = 8
    """Sequences per step, over all processes."""
    micro_batch: int = 1
    """Of these, read side by side on one device; the rest follows by accumulation."""
    learning_rate: float | None = None
    """None: 2e-5, and 2e-4 for adapters."""
    schedule: Schedule = "cosine"
    warmup: int | None = None
    """Steps; None: 20, at most a tenth of all."""
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    lora: int | None = None
    """Rank of adapters on the attention; None trains all weights."""
    lora_alpha: int | None = None
    """None: twice the rank."""
    train_norms: bool = True
    train_embeddings: bool = True
    """Beside adapters (LongLoRA, arXiv:2309.12307, section 3.3)."""
    teacher_weight: float = 1.0
    """With a teacher: share of its opinion in the loss of a token inside its window."""
    temperature: float = 1.0
    hidden_weight: float = 0.0
    """Of the distance between hidden states of teacher and student."""
    packing: Packing = "restart"
    min_doc_len: int = 0
    """Tokens of a long document; 0 makes no difference between documents."""
    long_share: float = 1.0
    """Share of tokens from long documents, at least; 1 leaves all others out."""
    short_share: float = 0.0
    """Share of each step's rows that are cut into sequences of `short_len`."""
    short_len: int | None = None
    """None: the length of pretraining."""
    fade: float = 0.0
    """Share of the steps in which the change of the positions comes in, little by little."""
    short_original: bool = False
    """Short sequences under the frequencies from before the patch (LongRoPE2, arXiv:2502.20082)."""
    check_every: int = 0
    """Steps between measurements; 0 measures before and after only."""
    check_prompts: int = 20
    """Needles per length of a measurement; 0 leaves them out."""
    check_windows: int = 4
    """Held-out sequences of a measurement."""
    save_every: int = 0
    """Steps between checkpoints; 0: as `check_every`, else a fifth of the training."""
    until: str | None = None
    """Stop when this is measured: needle>=0.95."""
    best: str | None = None
    """The metric that decides which checkpoint is the result; None: that of `until`, else loss."""
    gradient_checkpointing: bool | None = None
    """None: where activations would take more than a quarter of the memory."""
    precision: Precision = "auto"
    """auto: bfloat16 over float32 weights on a GPU that can, else float32."""
    seed: int = 0
    faults: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        faults = [*self.faults, *faults_of(self)]
        if not faults and not self.stages:
            object.__setattr__(self, "stages", (Stage(self.steps),))
        if not faults and not self.steps:
            object.__setattr__(self, "steps", sum(stage.steps for stage in self.stages))
        if faults:
            head = f"{len(faults)} faults: " if len(faults) > 1 else ""
            raise HealingError(head + "; ".join(faults) + ".")

    @classmethod
    def from_words(cls, words: Mapping[str, Any]) -> "HealPlan":
        """From a YAML file, or from options.

        Raises:
            HealingError: words are unknown or out of range; all faults together.
        """
        if not isinstance(words, Mapping):
            raise HealingError(
                f"a plan is a mapping with at least seq_len and steps, not {type(words).__name__}."
            )
        faults: list[str] = []
        known = _read(cls, words, "", faults)
        stages = words.get("stages") or ()
        if isinstance(stages, list | tuple) and all(isinstance(s, Mapping) for s in stages):
            read = [_read(Stage, s, f"stage {i}: ", faults) for i, s in enumerate(stages, 1)]
            known["stages"] = tuple(Stage(**{"steps": 0, **stage}) for stage in read)
        else:
            faults.append("stages: write a list of mappings, each with steps")
            known.pop("stages", None)
        if "seq_len" not in known:
            if not any(fault.startswith("seq_len ") for fault in faults):
                faults.append("seq_len is missing: tokens of a sequence, as in 8k")
            stages = known.get("stages", ())  # what has to divide it cannot be wrong yet
            known["stages"] = tuple(dataclasses.replace(s, seq_len=None) for s in stages)
            known |= {"seq_len": 2, "short_len": None}
        return cls(**known, faults=tuple(faults))

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON and YAML."""
        words = dataclasses.asdict(self)
        del words["faults"]
        return {**words, "stages": [dict(stage) for stage in words["stages"]]}

    @property
    def goal(self) -> Goal | None:
        """What to stop at."""
        return None if self.until is None else Goal.parse(self.until)

    @property
    def metric(self) -> str:
        """What decides which checkpoint is the best."""
        goal = self.goal
        return self.best or (goal.metric if goal else "loss")

    @property
    def tokens(self) -> int:
        """Of the whole training."""
        return self.steps * self.batch * self.seq_len

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        if self.learning_rate is not None:
            return self.learning_rate
        return FULL_RATE if self.lora is None else LORA_RATE

    @property
    def warmup_steps(self) -> int:
        """In which the rate rises."""
        return min(_WARMUP, self.steps // 10) if self.warmup is None else self.warmup

    def share_of_rate(self, step: int) -> float:
        """The learning rate of a step, as a share of the highest."""
        stage = self.stage_at(min(step, self.steps - 1)).rate
        if step < self.warmup_steps:
            return stage * (step + 1) / (self.warmup_steps + 1)
        if self.schedule == "constant":
            return stage
        done = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        return stage * (
            1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        )

    def stage_at(self, step: int) -> Stage:
        """Of a step, counted from 0."""
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        return self.stages[-1]

    def faded_in(self, step: int) -> float:
        """How much of the change is in force at a step, between 0 and 1."""
        steps = self.fade * self.steps
        return min((step + 1) / (steps + 1), 1.0)

    def short_rows(self, step: int) -> int:
        """Rows of a step that are cut into short sequences; the first ones."""
        share = self.stage_at(step).short_share
        return round((self.short_share if share is None else share) * self.batch)

    def lengths(self) -> Iterator[int]:
        """Every length of a sequence that stages ask for."""
        for stage in self.stages:
            yield stage.seq_len or self.seq_len


def _read(kind: Any, words: Mapping[str, Any], where: str, faults: list[str]) -> dict[str, Any]:
    """The words that a dataclass has, of the right kinds."""
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name not in ("faults", "stages")}
    found = {}
    for key, value in words.items():
        name = str(key).replace("-", "_")
        if name == "stages" and kind is HealPlan:
            continue
        if name not in fields:
            faults.append(f"{where}'{key}' is unknown; these are known: {', '.join(fields)}")
            continue
        if value is None:
            continue
        try:
            found[name] = _value(_kind(fields[name].type), name, value)
        except (ValueError, TypeError, OverflowError, RecipeError) as error:
            faults.append(f"{where}{name} {value!r}: {str(error).rstrip('.')}")
    return found


def _kind(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _value(kind: str, name: str, value: Any) -> Any:
    if name.endswith("_len"):
        return 0 if value == 0 and value is not False else parse_length(value)
    if kind.startswith("bool"):
        if not isinstance(value, bool):
            raise ValueError("write true or false")
        return value
    if kind.startswith("int"):
        number = float(value)
        if isinstance(value, bool) or not number.is_integer():
            raise ValueError("write a whole number")
        return value if isinstance(value, int) else int(number)
    if kind.startswith("float"):
        if isinstance(value, bool) or not math.isfinite(float(value)):
            raise ValueError("write a number")
        return float(value)
    return str(value)
