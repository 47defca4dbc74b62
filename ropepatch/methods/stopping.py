"""Stopping the slowest pairs: what p-RoPE does, and what PI may add.

`keep` is a fraction of the pairs, or "auto": the pairs that complete at least one turn within
the trained length keep turning, the others stand still.
"""

import math
from typing import Any

from ropepatch.errors import GeometryError, NotExpressibleError
from ropepatch.geometry import RotaryGeometry

Keep = float | str


def keep_faults(keep: Keep | None) -> list[str]:
    """Why `keep` cannot be used, in words."""
    if keep is None or keep == "auto":
        return []
    if isinstance(keep, str) or not math.isfinite(keep) or not 0 <= keep <= 1:
        return [f"keep must be a fraction from 0 to 1, or 'auto', not {keep!r}"]
    return []


def pairs_kept(keep: Keep, geometry: RotaryGeometry) -> int:
    """How many of the fastest pairs keep turning; never more than turn already.

    Raises:
        GeometryError: the embedding is partial (GPT-NeoX style), where the word means another
            thing: there the first channels turn, with exponents over the turned width.
    """
    if geometry.rotary_dim != geometry.head_dim:
        raise GeometryError(
            f"p-RoPE needs every feature of a head to turn; here {geometry.rotary_dim} of "
            f"{geometry.head_dim} do (partial_rotary_factor, another thing). Use pi or yarn."
        )
    if keep == "auto":
        kept = sum(1 for r in geometry.rotations() if r >= 1)
    else:
        kept = int(float(keep) * geometry.head_dim // 2)
    return min(kept, geometry.turning)


def proportional_block(geometry: RotaryGeometry, kept: int, factor: float) -> dict[str, Any]:
    """transformers' `proportional` block that leaves exactly `kept` pairs turning.

    Raises:
        NotExpressibleError: the embedding is partial; `proportional` spans the whole head.
    """
    if geometry.rotary_dim != geometry.head_dim:
        raise NotExpressibleError(
            f"transformers' 'proportional' turns whole heads; here {geometry.rotary_dim} of "
            f"{geometry.head_dim} features turn."
        )
    fraction = 2 * kept / geometry.head_dim
    if int(fraction * geometry.head_dim // 2) != kept:  # transformers floors a float product
        fraction = (2 * kept + 0.5) / geometry.head_dim
    block: dict[str, Any] = {
        "rope_type": "proportional",
        "rope_theta": geometry.theta,
        "partial_rotary_factor": fraction,
    }
    if factor != 1:
        block["factor"] = factor
    return block


def refuse_stopped(method: str, geometry: RotaryGeometry) -> None:
    """Refuse to write a method whose transformers type would set stopped pairs turning.

    Raises:
        NotExpressibleError: some pairs were pretrained at frequency zero.
    """
    if geometry.turning != geometry.pairs:
        raise NotExpressibleError(
            f"{method} cannot be written for a model whose {geometry.pairs - geometry.turning} "
            f"slowest of {geometry.pairs} pairs stand still (p-RoPE): its rope_type would turn "
            "them. Use pi or ntk."
        )
