"""Which kind of value each key of `config.json` may hold, checked once before anything is read."""

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from ropepatch.errors import ConfigError
from ropepatch.families.table import Family

_LARGEST = 1e15  # beyond it, sums of lengths would lose whole numbers
_WHOLE = (
    "attention_chunk_size",
    "global_head_dim",
    "head_dim",
    "hidden_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "original_max_position_embeddings",
    "qk_rope_head_dim",
    "sliding_window",
)
_OFF_IF_FALSE = ("attention_chunk_size", "sliding_window")
_WORDS = ("rope_type", "type")
_BLOCK_NUMBERS = (
    "alpha",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
)


def check_kinds(text: Mapping[str, Any], family: Family) -> None:
    """Refuse values of another kind than transformers' classes declare; null is always allowed.

    Raises:
        ConfigError: text, a list or an absurd number where a number belongs, and the like.
    """
    whole = [*_WHOLE, *(family.aliases[key] for key in _WHOLE if key in family.aliases)]
    others = [*(key for key, _ in family.theta_keys), "rope_theta", *family.partial_keys]
    for key in whole:
        if not (key in _OFF_IF_FALSE and text.get(key) is False):
            _check_number(key, text.get(key), whole=True)
    for key in others:
        _check_number(key, text.get(key))
    for key in ("rope_parameters", "rope_scaling"):
        block = text.get(key)
        if block is not None and not isinstance(block, Mapping):
            raise ConfigError(f"{key} in config.json must be a mapping, not {_short(block)}.")
        for part in _blocks(key, block or {}, family):
            for name in _BLOCK_NUMBERS:
                _check_number(name, part.get(name))
            for name in _WORDS:
                if not isinstance(part.get(name), str | None):
                    raise ConfigError(
                        f"{name} in config.json must be a word, not {_short(part[name])}."
                    )


def _blocks(key: str, block: Mapping[str, Any], family: Family) -> Iterable[Mapping[str, Any]]:
    """A block and those inside it, one per layer type."""
    yield block
    for label, inner in block.items():
        if isinstance(inner, Mapping):
            yield inner
        elif label and label in family.blocks and inner is not None:
            raise ConfigError(
                f"{label} in {key} of config.json must be a mapping, not {_short(inner)}."
            )


def _check_number(key: str, value: Any, *, whole: bool = False) -> None:
    if value is None:
        return
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key} in config.json must be {kind}, not {_short(value)}.")
    if not abs(value) <= _LARGEST:  # NaN neither
        raise ConfigError(f"{key} in config.json is beyond any model: {_short(value)}.")
    if whole and value != int(value):
        raise ConfigError(f"{key} in config.json must be {kind}, not {_short(value)}.")


def _short(value: Any) -> str:
    return reprlib.repr(value)
