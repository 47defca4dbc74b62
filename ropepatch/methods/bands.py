"""A blend that is linear in rotations: llama3's bands, and NTK-by-parts of the YaRN paper."""

from ropepatch.geometry import Frequencies, RotaryGeometry


def banded_frequencies(
    geometry: RotaryGeometry, factor: float, low: float, high: float
) -> Frequencies:
    """Interpolate pairs under `low` turns, keep those over `high`, blend between.

    Source: YaRN, arXiv:2309.00071, eq. 17-20; Llama 3.1's model card code.
    """
    inv_freq = []
    for base, rotations in zip(geometry.inverse_frequencies(), geometry.rotations(), strict=True):
        ramp = min(max((rotations - low) / (high - low), 0.0), 1.0)
        inv_freq.append((1 - ramp) * base / factor + ramp * base)
    return Frequencies(tuple(inv_freq))
