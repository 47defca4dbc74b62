"""YaRN's ramp and temperature, shared by the static and the dynamic form."""

import math

from ropepatch.geometry import Frequencies, RotaryGeometry


def correction_dim(rotations: float, geometry: RotaryGeometry) -> float:
    """The pair index (times one) at which a pair makes `rotations` turns in the trained length.

    Source: YaRN, arXiv:2309.00071, appendix A; inverse of eq. 17.
    """
    span = geometry.trained_length / (rotations * 2 * math.pi)
    return geometry.rotary_dim * math.log(span) / (2 * math.log(geometry.theta))


def yarn_frequencies(
    geometry: RotaryGeometry,
    factor: float,
    attention_factor: float,
    *,
    beta_fast: float,
    beta_slow: float,
    truncate: bool,
) -> Frequencies:
    """Blend of untouched (fast) and interpolated (slow) pairs, linear in the pair index.

    The paper's eq. 18 is linear in rotations; every code base and every trained checkpoint is
    linear in the index between the two correction dimensions, as here.
    """
    low, high = correction_dim(beta_fast, geometry), correction_dim(beta_slow, geometry)
    if truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, geometry.rotary_dim - 1.0)
    if low == high:
        high += 0.001  # as every implementation does, against a division by zero
    inv_freq = []
    for i, base in enumerate(geometry.inverse_frequencies()):
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        inv_freq.append(base / factor * ramp + base * (1 - ramp))
    return Frequencies(tuple(inv_freq), attention_factor)


def temperature(factor: float, mscale: float = 1.0) -> float:
    """0.1 * mscale * ln(factor) + 1, the square root of 1/t.

    Source: YaRN, arXiv:2309.00071, eq. 22.
    """
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
