"""transformers' Trainer with our rows, our loss and our measurements.

Its checkpoints, mixed precision, gradient checkpointing, FSDP, DeepSpeed and several processes
come with it.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerState,
    TrainingArguments,
)

from ropepatch.errors import HealingError
from ropepatch.healing.following import Following, Report, leaving_politely
from ropepatch.healing.plan import HealPlan
from ropepatch.healing.rows import Rows
from ropepatch.healing.student import Student

Measure = Callable[[int], Mapping[str, float]]
"""Measures the model after so many steps; every process gets the same numbers."""
_MANY = 1000
"""Steps of a training whose loss is kept for every tenth only."""


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

    def go_on(self, checkpoint: Path | None) -> None:
        """Train from a checkpoint, or from the beginning; one that met the goal is the end."""
        if checkpoint is not None:
            state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
            if self.following.recall(state.log_history):
                self.args.max_steps = state.global_step
                read: Any = self.train_dataset
                rows = range(state.global_step * self.plan.batch)
                self.train_dataset = torch.utils.data.Subset(read, rows)
        with leaving_politely(self.following):
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def create_accelerator_and_postprocess(self) -> None:
        """Let processes on CPUs be sharded too, which accelerate does for devices only."""
        asked = os.environ.get("ACCELERATE_USE_FSDP") == "true"
        if self.args.use_cpu and self.args.world_size > 1 and asked:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        super().create_accelerator_and_postprocess()
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is not None and self.args.bf16 and plugin.fsdp_version == 2:
            from torch.distributed.fsdp import MixedPrecisionPolicy

            # the usual one sums gradients in bfloat16, and rounds the loss to it
            plugin.mixed_precision_policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
            )

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
