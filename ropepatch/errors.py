"""What can go wrong, by name.

Every message says what was asked, what was found and what to do, on one line. The command line
prints it and exits with 2; a library caller catches `RopepatchError` or one of its children.
"""

from collections.abc import Iterable


class RopepatchError(Exception):
    """Any refusal by this package; a bug is never one of these."""


class RecipeError(RopepatchError, ValueError):
    """The request is malformed: unknown method, parameter, value or YAML.

    All faults of one request are reported together.
    """

    def __init__(self, faults: str | Iterable[str]) -> None:
        """Join several faults into one line; `faults` keeps them apart."""
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        if len(self.faults) == 1:
            message = self.faults[0]
        else:
            numbered = "; ".join(f"({i}) {fault}" for i, fault in enumerate(self.faults, 1))
            message = f"{len(self.faults)} faults: {numbered}"
        super().__init__(message)


class GeometryError(RopepatchError, ValueError):
    """The numbers of a model lack or contradict what a method needs."""


class ConfigError(RopepatchError, ValueError):
    """A `config.json` cannot be understood as a model with rotary position embeddings."""


class AlreadyScaledError(ConfigError):
    """The checkpoint already carries a scaling and nobody asked to replace it."""


class NotExpressibleError(RopepatchError):
    """A family, a dialect or transformers itself has no words for what was asked."""


class NoEffectError(RopepatchError):
    """The change would be a silent no-op."""


class CheckpointError(RopepatchError):
    """A folder is not whole, or the target cannot be written."""


class VerificationError(RopepatchError):
    """What was written does not do, in transformers, what was asked."""


class UnsupportedModelError(RopepatchError, TypeError):
    """What was handed over is no model of transformers, or its rotary parts cannot be swapped."""


class PatchConflictError(RopepatchError, RuntimeError):
    """The model already carries another patch, or stands where none can be applied."""


class CacheError(RopepatchError, RuntimeError):
    """A key-value cache holds keys that do not belong to the rotation in force."""


class AlreadyConvertedError(ConfigError):
    """The model no longer turns by RoPE in all its layers: it was converted."""


class EvaluationError(RopepatchError, ValueError):
    """An evaluation cannot be run as asked: lengths, depths, texts, tokenizer, memory, results."""


class EndpointError(EvaluationError):
    """A served model cannot be reached, or answers what cannot be read."""


class HealingError(RopepatchError, ValueError):
    """A recovery training cannot be run as asked: data, lengths, teacher, stages, goals, folder."""


class HealingStoppedError(RopepatchError):
    """A recovery training was told to stop; what it had done is saved, and can go on."""
