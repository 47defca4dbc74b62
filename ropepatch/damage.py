"""What a conversion costs before any training: the loss on one passage, with it and without."""

import math
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ropepatch.errors import CheckpointError

MOST_TOKENS = 512
_FEWEST_TOKENS = 16


@dataclass(frozen=True)
class Damage:
    """Mean loss over one passage."""

    before: float
    """Nats per token, as the model was trained."""
    after: float
    """Nats per token, as it stands now."""
    tokens: int

    @property
    def perplexities(self) -> tuple[float, float]:
        """Before and after."""
        return math.exp(self.before), math.exp(self.after)

    def to_dict(self) -> dict[str, Any]:
        """Plain words, for JSON."""
        before, after = self.perplexities
        return asdict(self) | {"perplexity_before": before, "perplexity_after": after}


def measure_damage(folder: str | Path, text: str | Path | None = None) -> Damage:
    """Read a passage with a converted or extended checkpoint, then as the model was before.

    Args:
        folder: What ropepatch wrote.
        text: A text file; without one, a passage that comes with ropepatch.

    Raises:
        CheckpointError: the folder has no tokenizer, or the text is too short or unreadable.
        PatchConflictError: ropepatch did not write the folder.
    """
    import torch

    from ropepatch.loading import load
    from ropepatch.model.converting import revert
    from ropepatch.model.skeleton import quiet

    passage = _passage(text)
    with quiet():
        model: Any = load(folder, dtype=torch.float32).eval()
        ids = _ids(Path(folder), passage)
        after = _loss(model, ids)
        revert(model)
        return Damage(_loss(model, ids), after, ids.shape[1])


def _passage(text: str | Path | None) -> str:
    try:
        if text is None:
            return (resources.files("ropepatch") / "passage.txt").read_text(encoding="utf-8")
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{text} cannot be read as text: {error}.") from None


def _ids(folder: Path, passage: str) -> Any:
    """(1, tokens)."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{folder} has no tokenizer to read a text with: {reason}") from None
    ids = tokenizer(passage[: 32 * MOST_TOKENS], return_tensors="pt").input_ids[:, :MOST_TOKENS]
    if ids.shape[1] < _FEWEST_TOKENS:
        raise CheckpointError(f"the text has {ids.shape[1]} tokens; give at least a paragraph.")
    return ids


def _loss(model: Any, ids: Any) -> float:
    """Nats per token."""
    import torch

    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        return float(torch.nn.functional.cross_entropy(logits, ids[0, 1:]))
