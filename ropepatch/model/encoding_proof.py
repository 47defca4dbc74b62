"""Proof that a model was converted: what runs in each layer, and how exact its biases are."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from ropepatch.config_json.encodings import ConversionPlan
from ropepatch.errors import VerificationError
from ropepatch.runtime.attention import Alibi, attention
from ropepatch.runtime.channels import alibi_slopes
from ropepatch.runtime.classes import Installed

_TOKENS = 96
WORST_ERROR = 1e-4
"""Of attention outputs in float32, against float64."""


@dataclass(frozen=True)
class EncodedLayers:
    """Layers that are alike."""

    layer_type: str
    layers: tuple[int, ...]
    window: int | None
    encoding: str


@dataclass(frozen=True)
class ConversionProof:
    """What was found in a converted model."""

    groups: tuple[EncodedLayers, ...]
    layers_changed: int
    layer_count: int
    attentions: int
    """How many were changed; some families have several a layer, or share one."""
    kernel: str | None
    """What computes the biases; None without any."""
    steepest: float | None
    """Slope of the head that looks least far."""
    flattest: float | None
    worst_error: float | None
    """Of an attention's output on random numbers, float32 against float64; None where the kernel
    needs a GPU."""
    model_class: str

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        return asdict(self)


def prove_conversion(model: Any, installed: Installed, plan: ConversionPlan) -> ConversionProof:
    """Look into a converted model; its weights may be missing.

    Raises:
        VerificationError: its biases are not what they should be.
    """
    error, slopes = None, None
    if installed.states:
        module, state = installed.states[0]
        shared = int(getattr(module, "num_key_value_groups", 1))
        heads = next((n for n in state.heads if n % shared == 0), shared)
        slopes = [slope * state.scale for slope in alibi_slopes(heads, state.bias_max)]
        if installed.kernel in ("channels", "mask"):
            error = _error(module, state, heads, slopes)
    groups = tuple(EncodedLayers(g.layer_type, g.layers, g.window, e) for g, e in plan.encodings)
    if plan.native is not None:
        count = len(installed.handles)
        groups = (EncodedLayers("full_attention", tuple(range(count)), None, "ALiBi"),)
    changed = "ALiBi" if plan.recipe.to == "alibi" else "none"
    total = sum(len(g.layers) for g in groups)
    return ConversionProof(
        groups=groups,
        layers_changed=sum(len(g.layers) for g in groups if g.encoding == changed)
        if plan.chosen == "all"
        else len(plan.chosen),
        layer_count=total,
        attentions=installed.count,
        kernel=installed.kernel,
        steepest=max(slopes) if slopes else None,
        flattest=min(slopes) if slopes else None,
        worst_error=error,
        model_class=type(model).__name__,
    )


def _error(module: torch.nn.Module, state: Alibi, heads: int, slopes: list[float]) -> float:
    """Largest difference of an attention's output from the definition, on random numbers.

    Raises:
        VerificationError: it is more than rounding.
    """
    chance = torch.Generator().manual_seed(0)
    groups = int(getattr(module, "num_key_value_groups", 1))
    query, key, value = (
        torch.randn(1, count, _TOKENS, 16, generator=chance)
        for count in (heads, heads // groups, heads // groups)
    )
    training, module.training = module.training, False
    kernel = state.kernel
    if getattr(module, "sinks", None) is not None:  # its own attention would count them in
        state.kernel = "channels"
    try:
        with torch.no_grad():
            found, _ = attention(module, query, key, value, None, scaling=0.25)
    finally:
        module.training, state.kernel = training, kernel
        state.slopes = None
    wanted = _definition(query, key, value, slopes, groups)
    error = (found.double() - wanted).abs().max().item()
    if not error <= WORST_ERROR:
        raise VerificationError(
            f"{type(module).__name__} does not compute linear biases as defined: its output is off "
            f"by {error:.3g} on random numbers. Please report this family."
        )
    return error


def _definition(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slopes: list[float], groups: int
) -> torch.Tensor:
    """softmax(q·k s - m (i - j)) v, (batch, queries, heads, features), float64.

    Source: Press et al., arXiv:2108.12409, section 3.
    """
    key, value = (part.double().repeat_interleave(groups, 1) for part in (key, value))
    places = torch.arange(query.shape[2], dtype=torch.float64)
    distance = places[:, None] - places
    slope = torch.tensor(slopes, dtype=torch.float64)[:, None, None]
    scores = query.double() @ key.transpose(-1, -2) * 0.25 - slope * distance
    weights = scores.masked_fill(distance < 0, -torch.inf).softmax(-1)
    return (weights @ value).transpose(1, 2)
