"""How numbers are written, on the page and in the terminal."""

NONE = "-"


def share(value: float | None) -> str:
    """A share between 0 and 1; only what is exactly 1 or 0 reads so."""
    if value is None:
        return NONE
    if 0.995 <= value < 1:
        return "0.99"
    return "0.01" if 0 < value < 0.005 else f"{value:.2f}"


def depth(value: float | None) -> str:
    """Where a needle lies."""
    return "whole text" if value is None else f"{value:g}%"


def interval(low: float | None, high: float | None) -> str:
    """Both ends."""
    return NONE if low is None or high is None else f"{low:.2f}–{high:.2f}"


def perplexity(value: float | None) -> str:
    """Two places, fewer where the number is large."""
    if value is None:
        return NONE
    if value < 1000:
        return f"{value:.2f}"
    return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def loss(value: float | None) -> str:
    """Nats per token."""
    return NONE if value is None else f"{value:.3f}"


def tokens(value: int | None) -> str:
    """With thousands separated."""
    return NONE if value is None else f"{value:,}"
