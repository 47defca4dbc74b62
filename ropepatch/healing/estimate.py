"""What a training will need, before anything is loaded: tokens, memory, time."""

import time
from dataclasses import asdict, dataclass
from typing import Any

from ropepatch.healing.loss import BLOCK_BYTES
from ropepatch.healing.plan import HealPlan

_GIB = 1024**3
_EFFICIENCY = 0.4
"""Of the speed of a large matrix product that a training reaches, about."""
_LOSS_COPIES = 8
"""Blocks of logits that are held at once."""


@dataclass(frozen=True)
class Estimate:
    """Of one device, which holds the whole model; bytes and seconds are approximate."""

    tokens: int
    steps: int
    sequences: int
    parameters: int
    trained: int
    """Of the parameters."""
    weights: int
    optimizer: int
    """Bytes of gradients and of Adam's two moments."""
    teacher: int
    activations: int
    loss: int
    checkpointing: bool
    """Whether activations are computed again on the way back."""
    operations: float
    """Floating-point operations of the whole training."""
    seconds: float | None
    """None where nothing was measured."""

    @property
    def memory(self) -> int:
        """Bytes at the peak."""
        return self.weights + self.optimizer + self.teacher + self.activations + self.loss

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        return {**asdict(self), "memory": self.memory}


def estimate(
    plan: HealPlan,
    config: Any,
    *,
    parameters: int,
    trained: int,
    teacher: int = 0,
    bfloat16: bool,
    free: int | None = None,
    world: int = 1,
    speed: float | None = None,
) -> Estimate:
    """What a plan asks of a model.

    Args:
        plan: Of the training.
        config: Of the text model, transformers' own.
        parameters: Of the model.
        trained: Of these, how many are trained.
        teacher: Its parameters; 0 without one.
        bfloat16: Whether it computes in bfloat16.
        free: Bytes of the device; decides about gradient checkpointing.
        world: Processes that share a step.
        speed: Floating-point operations a second, as `probe` measures them.
    """
    size = 2 if bfloat16 else 4
    tokens = plan.micro_batch * plan.seq_len
    layers, hidden = config.num_hidden_layers, config.hidden_size
    heads = getattr(config, "num_attention_heads", None) or 1
    width = heads * (getattr(config, "head_dim", None) or hidden // heads)
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    inner = max(inner) if isinstance(inner, list | tuple) else inner
    layer = tokens * size * (8 * hidden + 6 * width + 5 * inner)
    kept = layers * tokens * 4 * hidden  # what goes from layer to layer is float32
    whole, again = layers * layer, kept + layer
    checkpointing = plan.gradient_checkpointing
    if checkpointing is None:
        checkpointing = free is not None and whole > free / 4
    forward = 2.0 * parameters + 2.0 * layers * width * plan.seq_len
    passes = (3 if plan.lora is None else 2) + checkpointing
    taught = (2.0 * teacher + 2.0 * layers * width * plan.seq_len) if teacher else 0.0
    operations = plan.tokens * (forward * passes + taught)
    return Estimate(
        tokens=plan.tokens,
        steps=plan.steps,
        sequences=plan.steps * plan.batch,
        parameters=parameters,
        trained=trained,
        weights=_weights(plan, parameters, trained, bfloat16=bfloat16),
        optimizer=12 * trained,
        teacher=size * teacher,
        activations=again if checkpointing else whole,
        loss=_LOSS_COPIES * BLOCK_BYTES,
        checkpointing=checkpointing,
        operations=operations,
        seconds=None if speed is None else operations / (speed * _EFFICIENCY * world),
    )


def _weights(plan: HealPlan, parameters: int, trained: int, *, bfloat16: bool) -> int:
    """Bytes; the frozen base of adapters is kept in the precision it is read in."""
    if not bfloat16:
        return 4 * parameters
    return 6 * parameters if plan.lora is None else 2 * parameters + 4 * trained


def probe(device: str, *, bfloat16: bool) -> float:
    """Floating-point operations a second of a matrix product here, within a second."""
    import torch

    kind = torch.bfloat16 if bfloat16 else torch.float32
    size = 4096 if device.startswith("cuda") else 1024
    a = torch.ones(size, size, device=device, dtype=kind)

    def once() -> None:
        b = a @ a
        b[0, 0].item()  # wait for it

    once()
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < 0.2:
        once()
        count += 1
    return count * 2.0 * size**3 / (time.perf_counter() - started)


def gib(number: float) -> str:
    """In words."""
    return f"{number / _GIB:.1f} GiB" if number >= _GIB else f"{number / 1024**2:.0f} MiB"
