"""YaRN's attention factor in the words that engines read, and the ramp that some cannot say."""

import math
from typing import Any

from ropepatch.methods.ramps import temperature
from ropepatch.methods.yarn import Yarn


def own_temperature(method: Yarn) -> float | None:
    """The attention factor, where it is not the usual 0.1 ln(factor) + 1."""
    wanted = method.temperature()
    usual = math.isclose(wanted, temperature(method.factor), rel_tol=1e-9)
    return None if usual else wanted


def portable_temperature(method: Yarn) -> dict[str, Any]:
    """Keys by which transformers, SGLang, TGI and LMDeploy come to the same attention factor.

    transformers reads `attention_factor`; the others (0.1 mscale ln(factor) + 1) over the same of
    `mscale_all_dim`, which is 1 for a zero. vLLM below 0.30 multiplied by `attn_factor`, which
    SGLang still does, so that key must not stand beside these.
    """
    wanted = own_temperature(method)
    if wanted is None:
        return {}
    return {
        "attention_factor": wanted,
        "mscale": (wanted - 1) / (0.1 * math.log(method.factor)),
        "mscale_all_dim": 0.0,
    }


def usual_ramp(method: Yarn) -> bool:
    """Whether the ramp is the one of the authors' code."""
    return method.truncate and (method.beta_fast, method.beta_slow) == (32.0, 1.0)
