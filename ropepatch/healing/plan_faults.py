"""What can be wrong with a plan; all of it is said at once."""

from collections.abc import Iterator
from typing import Any

from ropepatch.errors import HealingError
from ropepatch.healing.goals import METRICS, Goal
from ropepatch.healing.words import Packing, Precision, Schedule


def faults_of(plan: Any) -> Iterator[str]:
    """Everything that is wrong with a `HealPlan`."""
    for name, least in (("seq_len", 2), ("batch", 1), ("micro_batch", 1), ("min_doc_len", 0)):
        if getattr(plan, name) < least:
            yield f"{name} is {getattr(plan, name)}, at least {least} is needed"
    for name in ("check_every", "check_prompts", "check_windows", "save_every", "steps"):
        if getattr(plan, name) < 0:
            yield f"{name} is below zero"
    if not plan.steps and not plan.stages:
        yield "steps are missing: how many to train, or stages that say so"
    if plan.stages and plan.steps and sum(s.steps for s in plan.stages) != plan.steps:
        total = sum(s.steps for s in plan.stages)
        yield f"steps is {plan.steps}, but the stages have {total}; leave one of them out"
    if plan.batch >= 1 and plan.micro_batch >= 1 and plan.batch % plan.micro_batch:
        yield f"micro_batch {plan.micro_batch} does not divide batch {plan.batch}"
    for name in ("learning_rate", "temperature", "max_grad_norm", "lora_alpha"):
        value = getattr(plan, name)
        if value is not None and not value > 0:
            yield f"{name} must be above 0"
    for name in ("teacher_weight", "long_share", "short_share", "fade"):
        if not 0 <= getattr(plan, name) <= 1:
            yield f"{name} must be between 0 and 1"
    for name in ("weight_decay", "hidden_weight"):
        if getattr(plan, name) < 0:
            yield f"{name} is below zero"
    for name, kind in (("packing", Packing), ("schedule", Schedule), ("precision", Precision)):
        if getattr(plan, name) not in kind.__args__:  # type: ignore[attr-defined]
            yield f"{name} '{getattr(plan, name)}' is none of: {', '.join(kind.__args__)}"  # type: ignore[attr-defined]
    if plan.lora is not None and plan.lora < 1:
        yield f"lora {plan.lora}: the rank of adapters is at least 1"
    if plan.lora is None and plan.lora_alpha is not None:
        yield "lora_alpha belongs to lora; give a rank"
    if plan.long_share < 1 and not plan.min_doc_len:
        yield "long_share needs min_doc_len, which says what a long document is"
    if plan.short_original and not _any_short(plan):
        yield "short_original is about short sequences; give short_share"
    if plan.save_every and plan.check_every and plan.save_every != plan.check_every:
        yield (
            f"save_every {plan.save_every} goes by check_every {plan.check_every}, so that the "
            "best checkpoint is there; leave it out"
        )
    if plan.warmup is not None and plan.warmup < 0:
        yield "warmup is below zero"
    if plan.best is not None and plan.best not in METRICS:
        yield f"best '{plan.best}' is none of: {', '.join(METRICS)}"
    if plan.until is not None:
        try:
            Goal.parse(plan.until)
        except HealingError as error:
            yield str(error).rstrip(".")
        if not plan.check_every:
            yield "until is looked at whenever something is measured; give check_every"
    for number, stage in enumerate(plan.stages, 1):
        yield from _stage_faults(plan, number, stage)
    for share in {plan.short_share, *(s.short_share or 0 for s in plan.stages)}:
        if not 0 < share <= 1:
            continue
        rows = round(share * plan.batch)
        uneven = abs(rows - share * plan.batch) > 1e-6
        if uneven or not rows or (plan.micro_batch > 0 and rows % plan.micro_batch):
            yield (
                f"short_share {share:g} of batch {plan.batch} is {share * plan.batch:g} rows; it "
                f"must be a whole multiple of micro_batch {plan.micro_batch}"
            )
    if plan.short_len is not None and (plan.short_len < 2 or plan.seq_len % plan.short_len):
        yield f"short_len {plan.short_len} does not divide seq_len {plan.seq_len}"


def _stage_faults(plan: Any, number: int, stage: Any) -> Iterator[str]:
    if stage.steps < 1:
        yield f"stage {number}: steps are missing"
    if stage.seq_len is not None and (stage.seq_len < 2 or plan.seq_len % stage.seq_len):
        yield f"stage {number}: seq_len {stage.seq_len} does not divide {plan.seq_len}"
    if not stage.rate > 0:
        yield f"stage {number}: rate must be above 0"
    for name in ("teacher_weight", "short_share"):
        value = getattr(stage, name)
        if value is not None and not 0 <= value <= 1:
            yield f"stage {number}: {name} must be between 0 and 1"
    if stage.hidden_weight is not None and stage.hidden_weight < 0:
        yield f"stage {number}: hidden_weight is below zero"


def _any_short(plan: Any) -> bool:
    shares = [plan.short_share, *(stage.short_share or 0 for stage in plan.stages)]
    return any(share > 0 for share in shares)
