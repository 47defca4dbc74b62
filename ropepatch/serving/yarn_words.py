"""YaRN's attention factor in the words that engines read, and the ramp that some cannot say."""

import math
from collections.abc import Mapping
from typing import Any

from ropepatch.methods.ramps import temperature
from ropepatch.methods.yarn import Yarn


def own_temperature(method: Yarn) -> float | None:
    """The attention factor, where it is not the usual 0.1 ln(factor) + 1."""
    wanted = method.temperature()
    usual = math.isclose(wanted, temperature(method.factor), rel_tol=1e-9)
    return None if usual else wanted


def portable_temperature(method: Yarn, block: Mapping[str, Any]) -> dict[str, Any]:
    """Keys by which transformers, SGLang, TGI and LMDeploy come to the same attention factor.

    transformers reads `attention_factor`, and `mscale` only beside `mscale_all_dim`; the others
    (0.1 mscale ln(factor) + 1) over the same of `mscale_all_dim`, which is 1 for a zero. SGLang
    multiplies by `attn_factor` too, so that key must not say anything.

    Args:
        method: What the block means.
        block: How it says so.
    """
    foreign = {key: 1.0 for key in ("attn_factor", "extrapolation_factor") if key in block}
    given = [key for key in ("mscale", "mscale_all_dim") if block.get(key)]
    explicit = block.get("attention_factor") is not None and (
        own_temperature(method) is not None or given
    )
    if not explicit and len(given) != 1:  # a pair is read alike, and so is nothing
        return foreign
    wanted = method.temperature()
    return foreign | {
        "attention_factor": wanted,
        "mscale": (wanted - 1) / (0.1 * math.log(method.factor)),
        "mscale_all_dim": 0.0,
    }


def usual_ramp(method: Yarn) -> bool:
    """Whether the ramp is the one of the authors' code."""
    return method.truncate and (method.beta_fast, method.beta_slow) == (32.0, 1.0)
