"""A Llama in numpy, in float64, each of whose layers places its tokens in a way of its own.

It shares nothing with ropepatch.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def llama_by_hand(
    model: Any, ids: list[int], ways: list[str], slopes: list[float], theta: float = 10000.0
) -> Array:
    """(tokens, vocabulary).

    Args:
        model: For its weights.
        ids: Of the text.
        ways: By layer: rope, alibi or none.
        slopes: Of the layers with linear biases, by head.
        theta: Base of the others' rotation.
    """
    weights = {k: v.double().numpy() for k, v in model.state_dict().items()}
    config = model.config
    count, width, heads = len(ids), config.head_dim, config.num_attention_heads
    groups = heads // config.num_key_value_heads
    places = np.arange(count, dtype=np.float64)
    distance = places[:, None] - places
    x = weights["model.embed_tokens.weight"][ids]
    for layer, way in enumerate(ways):
        start = f"model.layers.{layer}."
        own = {k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)}
        y = _norm(x, own["input_layernorm.weight"], config.rms_norm_eps)
        q, k, v = (
            (y @ own[f"self_attn.{name}_proj.weight"].T).reshape(count, -1, width) for name in "qkv"
        )
        if way == "rope":
            q, k = _turn(q, places, theta), _turn(k, places, theta)
        read = np.empty((count, heads, width))
        for head in range(heads):
            score = q[:, head] @ k[:, head // groups].T / np.sqrt(width)
            if way == "alibi":
                score = score - slopes[head] * distance
            score = np.where(distance >= 0, score, -np.inf)
            share = np.exp(score - score.max(-1, keepdims=True))
            read[:, head] = share / share.sum(-1, keepdims=True) @ v[:, head // groups]
        x = x + read.reshape(count, -1) @ own["self_attn.o_proj.weight"].T
        y = _norm(x, own["post_attention_layernorm.weight"], config.rms_norm_eps)
        gate = y @ own["mlp.gate_proj.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (y @ own["mlp.up_proj.weight"].T)
        x = x + inner @ own["mlp.down_proj.weight"].T
    x = _norm(x, weights["model.norm.weight"], config.rms_norm_eps)
    found: Array = x @ weights["lm_head.weight"].T
    return found


def _turn(x: Array, places: Array, theta: float) -> Array:
    half = x.shape[-1] // 2
    angles = places[:, None, None] * theta ** (-np.arange(half) / half)
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _norm(x: Array, weight: Array, least: float) -> Array:
    found: Array = weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + least)
    return found
