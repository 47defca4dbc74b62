"""Models to patch, and ways to read a text with one.

All heads have 64 features, so that every row of `tests.examples` fits; all were trained on 64
tokens, so that a text of a moment crosses several changes of a dynamic method.
"""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
import transformers
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel, StaticCache

import ropepatch
from ropepatch import Patch
from tests import tiny
from tests.examples import EXAMPLES

TRAINED = 64
LENGTH = 200
"""Tokens of a long text; no change of a method with growth 1.25 falls on its end."""
WINDOW = 32
NOISE = 1e-4
"""Twice what the stock models show between one pass and token by token, at logits of up to 10."""
FAMILIES = ("llama", "qwen3", "gemma3")

Case = tuple[str, dict[str, Any]]
CASES: list[Case] = [(name, words) for name, rows in EXAMPLES.items() for words in rows]
FIRST: list[Case] = [
    (name, next(words for words in rows if "factor" in words)) for name, rows in EXAMPLES.items()
]
"""One of each method."""
REACHING: list[Case] = [case for case in CASES if "factor" in case[1]]
"""Those that are meant for a longer text than the model was trained on."""
GROWING = ("dynamic-ntk", "dynamic-yarn")

STATIC: Case = ("yarn", {"factor": 4.0})
DYNAMIC: Case = ("dynamic-ntk", {"factor": 4.0})
ONCE: Case = ("yarn", {"factor": 4.0, "short_exact": True})

_SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": TRAINED,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"rope_parameters": _PLAIN}),
    "qwen3": ("Qwen3Config", {"rope_parameters": {**_PLAIN, "rope_theta": 1e6}}),
    "mistral": ("MistralConfig", {"rope_parameters": _PLAIN, "sliding_window": WINDOW}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "query_pre_attn_scalar": 64,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {**_PLAIN, "rope_theta": 1e6},
                "sliding_attention": _PLAIN,
            },
        },
    ),
}


def name_of(case: Any) -> str | None:
    """A readable id for a case of a parametrized test."""
    if not (isinstance(case, tuple) and len(case) == 2 and isinstance(case[1], dict)):
        return None
    method, words = case
    own = [f"{k}={v}" for k, v in words.items() if not isinstance(v, list)]
    return "-".join([method, *own])


ALL = pytest.mark.parametrize("case", [STATIC, DYNAMIC, ONCE], ids=name_of)
"""Frequencies that never change, change again and again, and change once."""
FOLLOWING = pytest.mark.parametrize("case", [DYNAMIC, ONCE], ids=name_of)


def config_of(family: str, **words: Any) -> PreTrainedConfig:
    kind, own = _CLASSES[family]
    config: PreTrainedConfig = getattr(transformers, kind)(
        **copy.deepcopy({**_SIZES, **own, **words})
    )
    return config


def make(family: str = "llama", seed: int = 0, **words: Any) -> PreTrainedModel:
    """A filled float32 model that no test has seen yet."""
    return tiny.build(config_of(family, **words), seed)


def text(count: int = LENGTH, rows: int = 1, seed: int = 0) -> torch.Tensor:
    """(rows, count), without the three tokens that mean something."""
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(3, 128, (rows, count), generator=chance)


def read(model: Any, ids: torch.Tensor, **words: Any) -> torch.Tensor:
    """Logits of every token, (rows, tokens, vocabulary)."""
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids, **words).logits
    return found


def read_on(
    model: Any, ids: torch.Tensor, size: int, cache: Cache | None = None, **words: Any
) -> tuple[torch.Tensor, Cache]:
    """Logits of a text that comes in chunks of `size` tokens, and the cache it fills."""
    parts = []
    for start in range(0, ids.shape[1], size):
        part = {k: _of_chunk(k, v, start, start + size) for k, v in words.items()}
        with torch.no_grad():
            output = model(
                input_ids=ids[:, start : start + size], cache=cache, use_cache=True, **part
            )
        cache = output.cache
        parts.append(output.logits)
    assert cache is not None
    return torch.cat(parts, dim=1), cache


def _of_chunk(name: str, value: Any, start: int, stop: int) -> Any:
    if name == "attention_mask":
        return value[:, :stop]
    return value[:, start:stop] if torch.is_tensor(value) else value


def in_chunks(model: Any, ids: torch.Tensor, size: int, **words: Any) -> torch.Tensor:
    return read_on(model, ids, size, **words)[0]


def close(found: torch.Tensor, wanted: torch.Tensor, atol: float = NOISE) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


def cache_for(model: Any, kind: str, length: int = 256) -> Cache:
    if kind == "static":
        return StaticCache(config=model.config, max_cache_len=length)
    return DynamicCache(config=model.config)


def keys_of(cache: Any, layer: int = 0) -> torch.Tensor:
    keys: torch.Tensor = cache.layers[layer].keys
    return keys


def left_padded(texts: list[torch.Tensor], width: int) -> dict[str, torch.Tensor]:
    """One batch of texts, (tokens,) each, as `generate` numbers them."""
    ids = torch.stack([torch.nn.functional.pad(t, (width - len(t), 0)) for t in texts])
    mask = torch.stack([(torch.arange(width) >= width - len(t)).long() for t in texts])
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    return {"ids": ids, "attention_mask": mask, "position_ids": places}


def patched(model: Any, case: Case, **words: Any) -> Patch:
    method, own = case
    return ropepatch.patch(model, method, **own, **words)


def pin_of(handle: Patch, length: int) -> AbstractContextManager[Any]:
    """What makes one pass of `length` tokens equal plain transformers'."""
    return handle.pinned(length) if handle.describe().changes != "never" else nullcontext()


@contextmanager
def untouched(model: PreTrainedModel, length: int = 32) -> Iterator[None]:
    """What is done within leaves the model as it was: logits, config, modules, attributes."""
    before = traces(model)
    logits = read(model, text(length))
    yield
    assert traces(model) == before
    assert torch.equal(read(model, text(length)), logits)


def traces(model: torch.nn.Module) -> dict[str, Any]:
    """Everything a patch could leave behind, but for tensors' values."""
    found: dict[str, Any] = {
        name: (
            id(module),
            type(module),
            sorted(module.__dict__),
            len(module._forward_hooks) + len(module._forward_pre_hooks),
            len(module._forward_hooks_with_kwargs) + len(module._forward_pre_hooks_with_kwargs),
            len(module._forward_hooks_always_called),
            getattr(module, "scaling", None),
        )
        for name, module in model.named_modules()
    }
    root: Any = model
    found["config"] = (id(root.config), root.config.to_dict(), sorted(root.config.__dict__))
    if getattr(root, "generation_config", None) is not None:
        found["generation_config"] = root.generation_config.to_dict()
    return found


def bits(model: torch.nn.Module) -> dict[str, bytes]:
    """The state dict, to the bit."""
    return {
        name: value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for name, value in model.state_dict().items()
    }
