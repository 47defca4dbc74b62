"""The files beside config.json that also speak of length, and how they are put back."""

import json
from collections.abc import Mapping
from typing import Any

_UNSET_LENGTH = 10**12
"""transformers writes 1e30 for "no limit"; anything this large is not a length."""


def raise_tokenizer_length(tokenizer: Mapping[str, Any], target: int) -> dict[str, Any]:
    """New values of the keys of tokenizer_config.json that must change; empty if none."""
    length = tokenizer.get("model_max_length")
    if not isinstance(length, int | float) or isinstance(length, bool):
        return {}
    if 0 < length < _UNSET_LENGTH and length < target:
        return {"model_max_length": target}
    return {}


def raise_generation_length(
    generation: Mapping[str, Any], old_lengths: set[int], target: int
) -> dict[str, Any]:
    """New values for generation_config.json: a `max_length` that was the old full length."""
    length = generation.get("max_length")
    if isinstance(length, int) and length in old_lengths and length < target:
        return {"max_length": target}
    return {}


def put_back(current: Mapping[str, Any], old_values: Mapping[str, Any]) -> dict[str, Any]:
    """The file with old values in their places again; None stands for a key that was absent."""
    restored = {**current, **old_values}
    return {key: value for key, value in restored.items() if old_values.get(key, "") is not None}


def to_text(value: Mapping[str, Any]) -> str:
    """JSON as transformers writes it; with escapes if it holds half a surrogate pair."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=2) + "\n"
    return text
