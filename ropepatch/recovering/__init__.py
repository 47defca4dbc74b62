"""Healing a checkpoint: read it, look at it, train it, prove and write what came out."""

from ropepatch.recovering.running import Healed, heal

__all__ = ["Healed", "heal"]
