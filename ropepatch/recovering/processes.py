"""What processes that share a training cannot do together, refused before anything is loaded."""

import os

from ropepatch.errors import HealingError
from ropepatch.healing.plan import HealPlan
from ropepatch.recovering.patient import Patient


def readers(world: int) -> int:
    """Processes that read rows of their own; under context parallelism some share one.

    Args:
        world: All processes.
    """
    return max(world // _context_size(), 1)


def check_processes(plan: HealPlan, patient: Patient, world: int, *, taught: bool) -> None:
    """Look at how this process was started, beside others.

    Args:
        plan: Of the training.
        patient: That is trained.
        world: Processes.
        taught: Whether there is a teacher.

    Raises:
        HealingError: they cannot share a step evenly, or would train something else.
    """
    share = plan.micro_batch * readers(world)
    if plan.batch % share:
        raise HealingError(
            f"batch {plan.batch} cannot be shared by {readers(world)} processes of micro_batch "
            f"{plan.micro_batch}; take a multiple of {share}."
        )
    if _is_on("ACCELERATE_USE_FSDP"):
        _check_fsdp(plan)
    if _is_on("ACCELERATE_USE_DEEPSPEED") and plan.check_every and _stage() == "3":
        raise HealingError(_apart("ZeRO-3"))
    if _context_size() > 1:
        _check_context(plan, patient, taught=taught)


def _check_fsdp(plan: HealPlan) -> None:
    if os.environ.get("FSDP_VERSION", "2") != "2":
        raise HealingError("FSDP 1 is not supported; say fsdp_version: 2 to accelerate.")
    if _is_on("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise HealingError(
            "under fsdp_cpu_ram_efficient_loading all processes but the first load empty weights, "
            "a teacher's too; say false to accelerate."
        )
    if "SHARDED" in os.environ.get("FSDP_STATE_DICT_TYPE", ""):
        raise HealingError(
            "a checkpoint is written whole; say fsdp_state_dict_type: FULL_STATE_DICT to "
            "accelerate."
        )
    if plan.check_every:
        raise HealingError(_apart("FSDP"))


def _check_context(plan: HealPlan, patient: Patient, *, taught: bool) -> None:
    """Each process holds two pieces of a sequence, and attention has no mask."""
    size = _context_size()
    wrong = {
        "packing restart, whose documents only a mask keeps apart (take continue or single)": (
            plan.packing == "restart"
        ),
        "a teacher": taught,
        "short_original": plan.short_original,
        "a converted model": patient.inspection.conversion is not None,
        f"sequences that {2 * size} does not divide": any(n % (2 * size) for n in plan.lengths()),
    }
    found = [words for words, is_so in wrong.items() if is_so]
    if found:
        raise HealingError(f"context parallelism does not go with {'; nor with '.join(found)}.")


def _apart(what: str) -> str:
    return (
        f"check_every measures a model whose weights are whole in each process, which {what} "
        "takes apart; leave it out, and it is measured before and after."
    )


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")


def _stage() -> str:
    return os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "")


def _context_size() -> int:
    if not _is_on("ACCELERATE_USE_PARALLELISM_CONFIG"):
        return 1
    size = os.environ.get("PARALLELISM_CONFIG_CP_SIZE", "1")
    return int(size) if size.isdigit() else 1
