"""What the tests of healing are made of: token ids on disk, tiny models."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ropepatch.healing.store import About, Store
from tests import tiny

REPOSITORY = Path(__file__).parents[2]


@cache
def tokenizer() -> Any:
    """A real one, of 2,048 words, that puts <s> before a text."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(REPOSITORY / "recipes" / "models" / "tiny-retriever")


def store(sizes: Sequence[int], tokens: int | None = None) -> Store:
    """Documents of these sizes; each token id is its own place, counted from 1.

    Args:
        sizes: Tokens of the documents.
        tokens: To train on; the rest is held out.
    """
    ends = np.cumsum(np.asarray(sizes, np.int64))
    whole = int(ends[-1])
    tokens = whole if tokens is None else tokens
    about = About(tokens, whole - tokens, len(sizes), 0, 0, True, "")
    return Store(np.arange(1, whole + 1, dtype=np.uint32), ends, about)


def model(kind: str, seed: int = 0, **words: Any) -> Any:
    """A tiny model of some family, with 128 words."""
    import transformers

    sizes = {
        **{"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
        **{"max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1},
        **{"eos_token_id": 2, "tie_word_embeddings": False, "attn_implementation": "eager"},
    }
    own: dict[str, dict[str, Any]] = {
        "Llama": {},
        "Qwen2": {},
        "Granite": {"logits_scaling": 4.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5},
        "Cohere": {"logit_scale": 0.25, "tie_word_embeddings": True},
        "Gemma2": {
            "final_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "tie_word_embeddings": True,
        },
        "Gemma3Text": {
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "tie_word_embeddings": True,
        },
    }
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **own[kind], **words})
    made = tiny.build(config, seed)
    return made
