"""Linear biases (ALiBi) by family: who has them already, and where none can stand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropepatch.families.table import family_of


@dataclass(frozen=True)
class Native:
    """A family with linear biases of its own."""

    classes: tuple[str, ...]
    """Attentions that take them."""
    arguments: tuple[str, ...]
    """Of their forward: the bias, and masks it may have been added to."""
    length_key: str
    """Of the config: how many tokens it was trained on."""
    head_keys: tuple[str, ...]
    """Of the config: how many heads, by each name it may have."""
    flag: tuple[str, ...] = ()
    """Path to the key that says whether it has them; empty where it always does."""
    default: bool = True
    """The flag, where a config has none."""


NATIVE: dict[str, Native] = {
    "bloom": Native(
        ("BloomAttention",), ("alibi",), "seq_length", ("n_head", "num_attention_heads")
    ),
    "falcon": Native(
        ("FalconAttention",),
        ("alibi", "attention_mask"),  # by its implementation, one of them adds the bias
        "max_position_embeddings",
        ("num_attention_heads", "n_head"),
        flag=("alibi",),
        default=False,
    ),
    "mpt": Native(
        ("MptAttention",),
        ("position_bias",),
        "max_seq_len",
        ("n_heads",),
        flag=("attn_config", "alibi"),
    ),
}

_OWN_ATTENTION = "its attention does not go through transformers' attention functions"
_NOT_AT_ALL = {
    "gpt_neox_japanese": "its attention keeps its own count of layers and heads, not its config"
}
_NO_BIAS = {
    "diffusion_gemma_text": "its decoder reads in both directions",
    "falcon": _OWN_ATTENTION,
}


def native_of(config: Mapping[str, Any]) -> Native | None:
    """How a config's family keeps linear biases; None where it has none."""
    native = NATIVE.get(str(config.get("model_type")))
    if native is None or not native.flag:
        return native
    found: Any = config
    for key in native.flag:
        found = found.get(key) if isinstance(found, Mapping) else None
    return native if (native.default if found is None else found) else None


def why_not_at_all(model_type: str) -> str | None:
    """Why a family's rotation cannot be taken out; None where it can."""
    return _NOT_AT_ALL.get(model_type)


def why_no_bias(model_type: str) -> str | None:
    """Why linear biases cannot stand in a family's attention; None where they can."""
    if family_of(model_type).row.indexer:
        return "its attention chooses keys by an index of its own, which knows no bias"
    return _NO_BIAS.get(model_type)
