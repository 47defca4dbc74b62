"""What a training will need, told before anything is loaded."""

from dataclasses import dataclass
from typing import Any

from ropepatch.healing.estimate import Estimate, estimate, gib, probe
from ropepatch.healing.plan import HealPlan
from ropepatch.recovering.patient import Patient


@dataclass(frozen=True)
class Outlook:
    """Of one device."""

    estimate: Estimate
    device: str
    """cpu, cuda or mps."""
    bfloat16: bool
    free: int
    """Bytes of the device."""
    world: int

    def sentences(self) -> tuple[str, ...]:
        """For people."""
        found = self.estimate
        time = (
            "" if found.seconds is None else f"; about {_time(found.seconds)} on this {self.device}"
        )
        kind = "bfloat16 over float32 weights" if self.bfloat16 else "float32"
        again = ", activations computed again" if found.checkpointing else ""
        return (
            f"{found.steps:,} steps of {found.tokens // found.steps:,} tokens, {found.tokens:,} in "
            f"all{time}",
            f"trains {found.trained:,} of {found.parameters:,} weights in {kind}{again}",
            f"memory at the peak: about {gib(found.memory)} (weights {gib(found.weights)}, "
            f"gradients and optimizer {gib(found.optimizer)}"
            + (f", teacher {gib(found.teacher)}" if found.teacher else "")
            + f", activations {gib(found.activations)}, loss {gib(found.loss)}); "
            f"{gib(self.free)} free",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        return {
            **self.estimate.to_dict(),
            "device": self.device,
            "bfloat16": self.bfloat16,
            "free": self.free,
            "processes": self.world,
        }


def outlook(
    patient: Patient, plan: HealPlan, teacher: Patient | None, device: str, world: int
) -> Outlook:
    """Weigh a plan.

    Raises:
        HealingError: the device is not there, or cannot compute in the precision.
    """
    from ropepatch.evaluate.memory import free_bytes
    from ropepatch.healing.trainable import trained_numbers
    from ropepatch.model.skeleton import meta_model, quiet

    kind = _device(device)
    bfloat16 = _is_bfloat16(plan, kind)
    with quiet():
        model = meta_model(patient.config())
    parameters = int(sum(p.numel() for p in model.parameters()))
    free = int(free_bytes(kind if kind != "cuda" else "cuda:0"))
    found = estimate(
        plan,
        model.config.get_text_config(decoder=True),
        parameters=parameters,
        trained=trained_numbers(model, plan),
        teacher=0 if teacher is None else teacher.parameters(),
        bfloat16=bfloat16,
        free=free,
        world=world,
        speed=probe(kind, bfloat16=bfloat16),
    )
    return Outlook(found, kind, bfloat16, free, world)


def _device(asked: str) -> str:
    import torch

    from ropepatch.errors import HealingError

    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise HealingError(f"there is no device '{asked}' here: torch finds no CUDA device.")
    if asked not in ("auto", "cpu", "cuda", "mps"):
        raise HealingError(
            f"device '{asked}' is none of: auto, cpu, cuda, mps; choose among GPUs by "
            "CUDA_VISIBLE_DEVICES."
        )
    if asked != "auto":
        return asked
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _is_bfloat16(plan: HealPlan, device: str) -> bool:
    import torch

    if plan.precision != "auto":
        return plan.precision == "bfloat16"
    return device == "cuda" and torch.cuda.is_bf16_supported()


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
