"""The part of a recovery training in which weights change."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ropepatch.errors import HealingError, HealingStoppedError, RopepatchError, VerificationError
from ropepatch.healing.adapters import with_adapters
from ropepatch.healing.following import Progress
from ropepatch.healing.held_out import HeldOut
from ropepatch.healing.plan import HealPlan
from ropepatch.healing.rows import Collate, Rows
from ropepatch.healing.run_folder import RunFolder
from ropepatch.healing.store import Store
from ropepatch.healing.student import Student, Teacher, attach, head_of
from ropepatch.healing.trainable import freeze_others
from ropepatch.healing.trainer import HealTrainer, arguments_of
from ropepatch.loading import load
from ropepatch.measuring.checks import Checks
from ropepatch.model.length_pins import length_pin
from ropepatch.recovering.case import Case
from ropepatch.recovering.outlook import Outlook
from ropepatch.recovering.processes import readers
from ropepatch.recovering.trained import Trained, checks_of, logits_of, losses_of

_PROBE = 256
"""Tokens on which the saved model must give the logits of the trained one."""


class Training:
    """Loads, joins and trains; every process does."""

    def __init__(self, case: Case, folder: RunFolder, store: Store, ahead: Outlook) -> None:
        """Look whether the patch is in effect, then load.

        Args:
            case: What was asked.
            folder: Where checkpoints go.
            store: The data.
            ahead: What was expected.
        """
        self.case, self.folder, self.store, self.ahead = case, folder, store, ahead
        self.plan: HealPlan = case.plan
        self.notes: list[str] = []
        self._check_effect()
        case.way.say("loading the model")
        frozen = ahead.bfloat16 and self.plan.lora is not None  # only adapters need the precision
        words: dict[str, Any] = {"dtype": torch.bfloat16 if frozen else torch.float32}
        if case.way.attention is not None:
            words["attn_implementation"] = case.way.attention
        self.device = ahead.device
        self.words = words
        self.model: Any = _loaded(case.patient.folder, case.way.remote_code, words)
        freeze_others(self.model)
        self.tokenizer = case.patient.tokenizer()
        self.checks = Checks(
            self.tokenizer,
            folder.checks,
            short=case.short_len if self.plan.short_len else case.patient.trained_length,
            long=self.plan.seq_len,
            prompts=self.plan.check_prompts,
            seed=self.plan.seed,
        )
        self.held_out = HeldOut.of(self.plan, store, self.checks.lengths[0])
        if not self.held_out.rows and self.plan.check_windows:
            self.notes.append("the data are too few to hold anything out, so no loss is measured")

    def run(self) -> Trained:
        """From the last checkpoint, if there is one, to the end.

        Raises:
            HealingStoppedError: it was told to leave; what was done is saved.
            HealingError: the loss is no longer a number, or nothing can be measured that the
                plan looks at.
        """
        plan, way, first = self.plan, self.case.way, self.case.ranks.rank == 0
        place = (
            torch.device("cuda", torch.cuda.current_device())
            if self.device == "cuda"
            else self.device
        )
        self.model.to(place)
        teacher = self._teacher(place)
        pin = length_pin(self.model)
        head, block = head_of(self.model)
        student = Student(head, block, _weights(plan, teacher), teacher, pin, self._pinned_to())
        before: Mapping[str, float] = {}
        original: Mapping[str, float] = {}
        if first:
            way.say("measuring it before the training")
            if teacher is not None:
                original = self.measured(teacher.model, 0)
            before = self.measured(self.model, 0)
            self._check_measured(before)
            way.report(Progress(0, plan.steps, measured=before))
        fade = self._fading()
        attach(self.model, student)
        torch.manual_seed(plan.seed)  # of adapters, which every process must draw alike
        wrapped = self.model if plan.lora is None else with_adapters(self.model, plan)
        rows = Rows(plan, self.store, self.case.short_len)
        trainer = self._trainer(wrapped, rows, student, fade)
        if rows.passes > 1:
            self.notes.append(f"the data were read {rows.passes:.1f} times")
            way.say(self.notes[-1].replace("were", "will be"))
        way.say(f"training {plan.steps:,} steps")
        trainer.go_on(self.folder.checkpoint())
        if trainer.following.stopped:
            raise HealingStoppedError(
                f"stopped at step {trainer.state.global_step} of {plan.steps}; the same command "
                f"goes on from there ({self.folder.path})."
            )
        fade(1.0)
        trainer.save_model(str(self.folder.trained))
        probe, logits = self._probe(trainer.model)
        best = trainer.state.best_global_step
        return Trained(
            trainer.state.global_step,
            trainer.following.reached,
            before,
            original,
            losses_of(trainer.state.log_history),
            checks_of(trainer.state.log_history),
            int(best) if best and plan.check_every else None,
            probe,
            logits,
            self.measured,
            self.checks.lengths,
            rows.passes * trainer.state.global_step / plan.steps,
            self.ahead.bfloat16,
            (*self.notes, *self.checks.notes),
        )

    def _trainer(self, model: Any, rows: Rows, student: Student, fade: Any) -> HealTrainer:
        plan, report = self.plan, self.case.way.report
        arguments = arguments_of(
            plan,
            self.folder.trainer,
            cpu=self.device == "cpu",
            world=readers(self.case.ranks.world),
            checkpointing=self.ahead.estimate.checkpointing,
            bfloat16=self.ahead.bfloat16,
        )
        return HealTrainer(
            model,
            arguments,
            plan,
            rows,
            Collate(restart=plan.packing == "restart"),
            student,
            measure=self._measure,
            report=report if self.case.ranks.rank == 0 else lambda progress: None,
            fade=fade,
        )

    def _check_effect(self) -> None:
        """Frequencies, and logits of a real forward, before and after the patch."""
        from ropepatch.verifying import verify

        if self.case.ranks.rank != 0:
            return
        self.case.way.say("looking whether the patch is in effect")
        roomy = 12 * self.ahead.estimate.parameters < self.ahead.free or self.device != "cpu"
        try:
            verify(self.case.patient.folder, logits=roomy, remote_code=self.case.way.remote_code)
        except VerificationError as error:
            raise HealingError(
                f"the patch of {self.case.patient.name} is not in effect: {error}"
            ) from error

    def _teacher(self, place: Any) -> Teacher | None:
        master = self.case.master
        if master is None:
            return None
        self.case.way.say("loading the teacher")
        words = dict(self.words)
        if self.ahead.bfloat16:
            words["dtype"] = torch.bfloat16
        model: Any = _loaded(master.folder, self.case.way.remote_code, words)
        window = master.window if master.is_changed else master.trained_length
        return Teacher(model.to(place), window or self.plan.seq_len, length_pin(model))

    def _pinned_to(self) -> Any:
        """Whose frequencies short sequences are read under, where they follow the length."""
        plan = self.plan
        if plan.short_original:
            if length_pin(self.model) is None:
                raise HealingError(
                    "short_original reads short sequences under the frequencies from before the "
                    "patch, which this one does not keep; patch with short_exact, or longrope."
                )
            return lambda length: length
        # without it, all sequences are read as the longest are
        return lambda length: plan.seq_len

    def _fading(self) -> Any:
        if not self.plan.fade:
            return lambda share: None
        from ropepatch.model.fading import fading

        return fading(self.model)

    def _check_measured(self, found: Mapping[str, float]) -> None:
        plan = self.plan
        if plan.check_every and plan.metric not in found:
            raise HealingError(
                f"{plan.metric} decides which checkpoint is the best, but cannot be measured: "
                f"{'; '.join((*self.notes, *self.checks.notes)) or 'nothing is measured'}."
            )

    def measured(self, model: Any, step: int) -> dict[str, float]:
        """Needles and held-out loss of a model, after so many steps."""
        pin = length_pin(model)
        return self.checks.measure(model, step) | self.held_out.losses(model, pin)

    def _precision(self) -> Any:
        """What the model is read under where its parts differ in precision."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.ahead.bfloat16)

    def _measure(self, step: int) -> Mapping[str, float]:
        """By the first process, told to all."""
        found: list[Any] = [None]
        if self.case.ranks.rank == 0:
            with self._precision():
                found = [self.measured(self.model, step)]
        if self.case.ranks.world > 1:
            from accelerate.utils import broadcast_object_list

            broadcast_object_list(found)
        measured: Mapping[str, float] = found[0]
        return measured

    def _probe(self, model: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the last tokens of a few random ones."""
        length = min(_PROBE, self.plan.seq_len)
        weight = self.model.get_output_embeddings().weight
        generator = torch.Generator().manual_seed(0)
        size = self.case.patient.vocabulary or int(weight.shape[0])
        ids = torch.randint(size, (1, length), generator=generator)
        with self._precision():
            return ids[0], logits_of(model, ids.to(weight.device))


def _loaded(folder: Path, remote_code: bool, words: dict[str, Any]) -> Any:
    """A model with its patch on it.

    Raises:
        RopepatchError: it cannot be read, or not computed as asked.
    """
    try:
        return load(folder, remote_code=remote_code, **words)
    except (ValueError, ImportError) as error:  # an attention that is not there
        if isinstance(error, RopepatchError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise HealingError(f"{folder} cannot be loaded: {reason}") from error


def _weights(plan: HealPlan, teacher: Teacher | None) -> Any:
    from ropepatch.healing.loss import Weights

    if teacher is None:
        return Weights()
    return Weights(plan.teacher_weight, plan.temperature, plan.hidden_weight)
