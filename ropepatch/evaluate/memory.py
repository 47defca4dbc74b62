"""What a run will need, from the config, before weights are loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropepatch.errors import EvaluationError

_SPARE = 0.95
"""Of the free memory that a run may fill."""
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Need:
    """Bytes at the peak."""

    weights: int
    cache: int
    """Keys and values of what is being read and of what is shared with it."""
    chunk: int
    """States, attention scores or logits of one forward."""

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.cache + self.chunk

    def __str__(self) -> str:
        return (
            f"{gib(self.total)} (weights {gib(self.weights)}, cache {gib(self.cache)}, "
            f"one chunk {gib(self.chunk)})"
        )


def cache_bytes(config: Any, tokens: int, dtype_bytes: int) -> int:
    """Keys and values of a text.

    Args:
        config: Of the text model, transformers' own.
        tokens: Of the text.
        dtype_bytes: Per value.
    """
    layers = int(config.num_hidden_layers)
    heads = int(config.num_attention_heads)
    if getattr(config, "kv_lora_rank", None):
        per_token = _latent(config) if _keeps_latents() else _expanded(config)
    else:
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        per_token = 2 * int(getattr(config, "num_key_value_heads", None) or heads) * int(size)
    window = getattr(config, "sliding_window", None)
    usual = "full_attention" if window is None else "sliding_attention"
    kinds = getattr(config, "layer_types", None) or [usual] * layers
    window = window or tokens
    kept = {"full_attention": tokens, "sliding_attention": min(tokens, int(window))}
    kept["chunked_attention"] = kept["sliding_attention"]
    kept["linear_attention"] = kept["mamba"] = kept["recurrent"] = 0
    return sum(kept.get(kind, tokens) for kind in kinds) * per_token * dtype_bytes


def _latent(config: Any) -> int:
    """Values per token of MLA as it is compressed."""
    return int(config.kv_lora_rank) + int(config.qk_rope_head_dim)


def _expanded(config: Any) -> int:
    """Values per token of MLA as its heads look at them."""
    width = int(config.qk_nope_head_dim) + int(config.qk_rope_head_dim)
    return int(config.num_attention_heads) * (width + int(config.v_head_dim))


def _keeps_latents() -> bool:
    """Whether this transformers caches MLA compressed; releases before 5.24 may expand it first."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    return hasattr(DeepseekV3Attention, "expand_kv")


def need(
    config: Any,
    *,
    parameters: int,
    length: int,
    chunk: int,
    dtype_bytes: int,
    eager: bool,
    copies: int = 1,
) -> Need:
    """Bytes that reading a text of `length` tokens needs at its peak.

    Args:
        config: Of the text model.
        parameters: Of the whole model.
        length: Tokens, the longest text.
        chunk: Tokens per forward.
        dtype_bytes: Per value of weights and states.
        eager: Whether attention builds its full score matrix.
        copies: Caches alive at once; a shared beginning and what goes on from it are two.
    """
    chunk = min(chunk, length)
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    states = chunk * (8 * hidden + 3 * inner) * dtype_bytes
    # A chunk on top of a cache, or within a window, is masked by a matrix of bytes, and of values
    # where it is added; a whole text is not.
    masked = chunk < length or getattr(config, "sliding_window", None) is not None
    scores = chunk * length * (1 + dtype_bytes) * masked
    if eager:
        scores += 2 * chunk * length * int(config.num_attention_heads) * 4
    one = cache_bytes(config, length, dtype_bytes)
    growing = one // max(int(config.num_hidden_layers), 1)  # a layer is copied to grow
    if getattr(config, "kv_lora_rank", None) and _keeps_latents():
        growing += length * _expanded(config) * dtype_bytes  # one layer at a time is expanded
    return Need(parameters * dtype_bytes, copies * one + growing, states + scores)


def free_bytes(device_type: str) -> int:
    """Memory that is free on a device ("cpu", "cuda:1"); for "cuda" on all GPUs together."""
    kind, _, number = device_type.partition(":")
    if kind == "cuda":
        import torch

        numbers = [int(number)] if number else range(torch.cuda.device_count())
        return sum(torch.cuda.mem_get_info(i)[0] for i in numbers)
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        free = min(free, max(limit - used, 0) + _number_of_file_cache())
    return free


def fitting_chunk(most: int, fits: Any) -> int | None:
    """The largest of `most`, its half, its quarter, ... for which `fits(chunk)` holds."""
    chunk = most
    while chunk >= 16:
        if fits(chunk):
            return chunk
        chunk //= 2
    return None


def check(cost: Callable[[int], Need], free: int, *, length: int, dtype_bytes: int) -> None:
    """Refuse what cannot fit.

    Args:
        cost: What a text of so many tokens needs.
        free: Bytes.
        length: Tokens, the longest text.
        dtype_bytes: Per value.

    Raises:
        EvaluationError: with what would fit.
    """
    room, found = int(free * _SPARE), cost(length)
    if found.total <= room:
        return
    smaller = "" if dtype_bytes <= 2 else "; --dtype bfloat16 takes half of that"
    if found.weights >= room:
        hint = "the weights alone do not fit; use a smaller --dtype, or --device-map auto"
    elif fits := _longest(length, lambda tokens: cost(tokens).total <= room):
        hint = f"up to {fits:,} tokens would fit{smaller}"
    else:
        hint = f"no length would fit{smaller}"
    raise EvaluationError(
        f"{length:,} tokens need about {found}, of which {gib(free)} are free: {hint}. "
        "--no-memory-check tries all the same."
    )


def _longest(most: int, fits: Callable[[int], bool]) -> int:
    """The longest text that fits, in steps of 1,024 tokens; 0 if none does."""
    low, high = 0, most // 1024
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * 1024) else (low, middle - 1)
    return low * 1024


def gib(size: float) -> str:
    """Bytes in words."""
    return f"{size / 1024**3:.1f} GiB" if size >= 0.1 * 1024**3 else f"{size / 1024**2:.0f} MiB"


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _number_of_file_cache() -> int:
    """What the kernel gives back of a control group's files when somebody needs it."""
    try:
        rows = (_CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(row.split() for row in rows if len(row.split()) == 2)
    return int(values.get("inactive_file", 0))
