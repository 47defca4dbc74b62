"""A config in the words of transformers 4 beside those of transformers 5, with equal values."""

import copy
import json
from typing import Any

from ropepatch.config_json.dialects import to_dialect
from ropepatch.config_json.plan import writable_text
from ropepatch.serving.served import ServedModel


def both_dialects(served: ServedModel, more: dict[str, Any] | None = None) -> str:
    """`config.json` as both read it.

    Args:
        served: What is to be served.
        more: Words to add to the blocks that are extended.

    Raises:
        NotExpressibleError: transformers 4 has no words for it.
    """
    config = copy.deepcopy(dict(served.config))
    text = writable_text(config, served.layout.path)
    blocks = served.blocks()
    changed = {label: {**blocks[label], **(more or {})} for label in served.methods}
    if served.raises_length:
        text["max_position_embeddings"] = served.target_length
    to_dialect(text, served.layout, changed, "both")
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def speaks_v4(served: ServedModel) -> bool:
    """Whether the config as it stands is read by transformers 4."""
    return served.layout.dialect in ("v4", "both")
