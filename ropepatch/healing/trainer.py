"""transformers' Trainer with our rows, our loss and our measurements.

Its checkpoints, mixed precision, gradient checkpointing, FSDP, DeepSpeed and several processes
come with it.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from ropepatch.errors import HealingError
from ropepatch.healing.plan import HealPlan
from ropepatch.healing.rows import Rows
from ropepatch.healing.student import Student

Measure = Callable[[int], Mapping[str, float]]
"""Measures the model after so many steps; every process gets the same numbers."""
_MANY = 1000
"""Steps of a training whose loss is kept for every tenth only."""


@dataclass(frozen=True)
class Progress:
    """How far a training is."""

    step: int
    steps: int
    loss: float | None = None
    """Nats per token, of the last step."""
    rate: float = 0.0
    """Learning rate."""
    steps_here: int = 0
    """Taken since this process began."""
    tokens: int = 0
    """Read since this process began."""
    seconds: float = 0.0
    measured: Mapping[str, float] | None = None
    """What was measured just now."""


Report = Callable[[Progress], None]


def arguments_of(
    plan: HealPlan,
    folder: Path,
    *,
    cpu: bool,
    world: int,
    checkpointing: bool,
    bfloat16: bool,
) -> TrainingArguments:
    """What the Trainer is told.

    Args:
        plan: Of the training.
        folder: For checkpoints.
        cpu: Whether it runs on CPUs.
        world: Processes that share a step.
        checkpointing: Whether activations are computed again on the way back.
        bfloat16: Whether the model is read in bfloat16, its weights kept in float32.

    Raises:
        HealingError: the processes cannot share a step evenly.
    """
    share = plan.micro_batch * world
    if plan.batch % share:
        raise HealingError(
            f"batch {plan.batch} cannot be shared by {world} processes of micro_batch "
            f"{plan.micro_batch}; take a multiple of {share}."
        )
    every = plan.save_every or plan.check_every or max(plan.steps // 5, 1)
    words: dict[str, Any] = {}
    if plan.check_every:
        every = math.ceil(every / plan.check_every) * plan.check_every
        if plan.save_every % plan.check_every or not plan.save_every:
            every = plan.check_every  # the best checkpoint must be there to be taken
        words = {
            "eval_strategy": "steps",
            "eval_steps": plan.check_every,
            "load_best_model_at_end": True,
            "metric_for_best_model": f"eval_{plan.metric}",
            "greater_is_better": plan.metric.startswith("needle"),
        }
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=plan.micro_batch,
        gradient_accumulation_steps=plan.batch // share,
        max_steps=plan.steps,
        learning_rate=plan.rate,
        weight_decay=plan.weight_decay,
        adam_beta1=0.9,
        adam_beta2=0.95,
        max_grad_norm=plan.max_grad_norm,
        bf16=bfloat16,
        gradient_checkpointing=checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if checkpointing else None,
        logging_steps=1 if plan.steps <= _MANY else 10,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
        dataloader_num_workers=0,
        dataloader_pin_memory=not cpu,
        ddp_find_unused_parameters=False,
        seed=plan.seed,
        data_seed=plan.seed,
        use_cpu=cpu,
        **words,
    )


class HealTrainer(Trainer):
    """One training, from its first step or from where a checkpoint left it."""

    def __init__(
        self,
        model: Any,
        arguments: TrainingArguments,
        plan: HealPlan,
        rows: Rows,
        collate: Callable[[list[dict[str, Any]]], dict[str, Any]],
        student: Student,
        *,
        measure: Measure,
        report: Report,
        fade: Callable[[float], None] = lambda share: None,
    ) -> None:
        """Join the parts.

        Args:
            model: With `student` attached, adapters around it if they are trained.
            arguments: Of `arguments_of`.
            plan: Of the training.
            rows: To read.
            collate: Rows side by side.
            student: The loss; its weights follow the stages.
            measure: Called every `check_every` steps.
            report: Called after each step, and after measuring.
            fade: Brings the change of the positions in, from 0 to 1.
        """
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=rows,
            eval_dataset=[{}],  # asked for where something is to be evaluated, and never read
            data_collator=collate,
        )
        self.plan, self.student = plan, student
        self.measure, self.report = measure, report
        self.model_accepts_loss_kwargs = True  # its forward divides by the tokens of a step
        self.fade = fade
        self.remove_callback(PrinterCallback)
        self.following = Following(self)
        self.add_callback(self.following)

    def create_accelerator_and_postprocess(self) -> None:
        """Let processes on CPUs be sharded too, which accelerate does for devices only."""
        asked = os.environ.get("ACCELERATE_USE_FSDP") == "true"
        if self.args.use_cpu and self.args.world_size > 1 and asked:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        super().create_accelerator_and_postprocess()

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The plan's, with its stages."""
        if self.lr_scheduler is None:
            chosen: Any = optimizer or self.optimizer
            schedule = torch.optim.lr_scheduler.LambdaLR(chosen, self.plan.share_of_rate)
            self.lr_scheduler = schedule
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **words: Any) -> Any:
        """Under what the stage weighs, and as far as the change has come in."""
        self.fade(self.plan.faded_in(self.state.global_step))
        stage = self.plan.stage_at(self.state.global_step)
        weights = self.student.weights
        teacher, hidden = stage.teacher_weight, stage.hidden_weight
        self.student.weights = replace(
            weights,
            teacher=self.plan.teacher_weight if teacher is None else teacher,
            hidden=self.plan.hidden_weight if hidden is None else hidden,
        )
        return super().compute_loss(model, inputs, *args, **words)

    def evaluate(self, *args: Any, **words: Any) -> dict[str, float]:
        """What our own evaluation says; the Trainer chooses its best checkpoint by it."""
        self.fade(1.0)  # as it will be
        found = dict(self.measure(self.state.global_step))
        metrics = {f"eval_{name}": value for name, value in found.items()}
        self.log(metrics)
        self.following.told(found)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


class Following(TrainerCallback):
    """Tells how far it is, stops at the goal, and saves when it is told to leave."""

    def __init__(self, trainer: HealTrainer) -> None:
        self._trainer = trainer
        self._started = time.monotonic()
        self._first: int | None = None
        self.asked_to_stop = False
        self.stopped = False
        """Whether it left before its end because it was told to."""
        self.reached = False
        """Whether the goal was reached."""

    def told(self, measured: Mapping[str, float]) -> None:
        """Something was measured."""
        goal = self._trainer.plan.goal
        self.reached = goal is not None and goal.reached(measured)
        self._trainer.report(self._progress(measured=measured))

    def _progress(self, **words: Any) -> Progress:
        plan, step = self._trainer.plan, self._trainer.state.global_step
        since = step - (self._first or 0)
        return Progress(
            step,
            plan.steps,
            rate=plan.rate * plan.share_of_rate(max(step - 1, 0)),
            steps_here=since,
            tokens=since * plan.batch * plan.seq_len,
            seconds=time.monotonic() - self._started,
            **words,
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **words: Any) -> Any:
        """Where this process began."""
        if self._first is None:
            self._first, self._started = state.global_step, time.monotonic()
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **words: Any) -> Any:
        """Measure and save at the end; leave where any process was told to."""
        if state.global_step >= state.max_steps and self._trainer.plan.check_every:
            control.should_evaluate = True
        if self._any_asked():
            self.stopped = state.global_step < state.max_steps
            control.should_save = control.should_training_stop = True
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, **words: Any) -> Any:
        """Stop at the goal."""
        if self.reached:
            control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **words: Any) -> Any:
        """A step was taken."""
        loss = (logs or {}).get("loss")
        if loss is None:
            return control
        if not math.isfinite(loss):
            raise HealingError(
                f"the loss is {loss} at step {state.global_step}; take a lower --learning-rate "
                f"than {self._trainer.plan.rate:g}, and a longer warmup."
            )
        self._trainer.report(self._progress(loss=float(loss)))
        return control

    def _any_asked(self) -> bool:
        if self._trainer.args.world_size == 1:
            return self.asked_to_stop
        mine = torch.tensor(float(self.asked_to_stop), device=self._trainer.args.device)
        return bool(self._trainer.accelerator.reduce(mine, "sum") > 0)


@contextmanager
def leaving_politely(following: Following) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the training after the step, saved; a second one ends it at once."""

    def ask(number: int, frame: Any) -> None:
        following.asked_to_stop = True
        signal.signal(number, before[signal.Signals(number)])

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                before[number] = signal.signal(number, ask)
            except ValueError:  # not the main thread: whoever runs us decides
                break
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
