"""How far frequencies stray from an oracle's, relative, pair by pair."""

from collections.abc import Sequence


def relative_error(value: float, expected: float) -> float:
    """Relative distance; a zero must be met exactly."""
    if expected == 0:
        return 0.0 if value == 0 else float("inf")
    return abs(value - expected) / abs(expected)


def assert_close(values: Sequence[float], expected: Sequence[float], tolerance: float) -> None:
    """Every pair within the tolerance; the message names the worst."""
    assert len(values) == len(expected)
    errors = [relative_error(v, e) for v, e in zip(values, expected, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    assert errors[worst] <= tolerance, (
        f"pair {worst}: {values[worst]!r} instead of {expected[worst]!r}, "
        f"off by {errors[worst]:.1e}, allowed {tolerance:.0e}"
    )
