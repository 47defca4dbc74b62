"""A Llama in numpy, in float64, that reads every token under the frequencies of its own place.

It shares nothing with ropepatch but the methods' formulas, and no key is ever turned twice: the
tokens of each regime see all keys before them turned anew by that regime alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.methods.base import Method
from ropepatch.methods.table import METHODS
from tests.live.subjects import TRAINED, Case

Array = np.ndarray[Any, Any]
GEOMETRY = RotaryGeometry(head_dim=64, rotary_dim=64, theta=10000.0, trained_length=TRAINED)


def ends_up_to(length: int, target: int, growth: float = 1.25) -> list[int]:
    """Ends of the regimes: each a quarter longer, rounded up, and the target one of them."""
    ends = [TRAINED]
    while ends[-1] < length:
        following = max(int(np.ceil(ends[-1] * growth)), ends[-1] + 1)
        ends.append(target if ends[-1] < target < following else following)
    return ends


def frequencies_at(case: Case, place: int, *, exact: bool = False) -> Frequencies:
    """What the token at a place, from 0, is read under."""
    method: Method = METHODS[case[0]](**case[1])
    target = round(method.factor * TRAINED)
    if place < TRAINED and exact:
        return Frequencies(GEOMETRY.inverse_frequencies(), 1.0)
    if method.grows:
        return method.frequencies(GEOMETRY, ends_up_to(place + 1, target)[-1])
    return method.frequencies(GEOMETRY, TRAINED if place < TRAINED else max(target, TRAINED + 1))


def turn(x: Array, places: Array, by: Frequencies) -> Array:
    """Halves of (tokens, heads, features) turned by the angles of their places."""
    angles = places[:, None, None] * np.asarray(by.inv_freq)
    first, second = np.split(x, 2, axis=-1)
    cos, sin = by.attention_factor * np.cos(angles), by.attention_factor * np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def logits_by_hand(model: Any, ids: list[int], at: Callable[[int], Frequencies]) -> Array:
    """(tokens, vocabulary) of a Llama of one key head.

    Args:
        model: For its weights.
        ids: Of the text.
        at: The frequencies of a place.
    """
    weights = {k: v.double().numpy() for k, v in model.state_dict().items()}
    config = model.config
    count, width = len(ids), config.head_dim
    places = np.arange(count, dtype=np.float64)
    under = [at(place) for place in range(count)]
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config.num_hidden_layers):
        own = {
            k.removeprefix(f"model.layers.{layer}.").removesuffix(".weight"): v
            for k, v in weights.items()
        }
        y = _norm(x, own["input_layernorm"], config.rms_norm_eps)
        q = (y @ own["self_attn.q_proj"].T).reshape(count, -1, width)
        k = (y @ own["self_attn.k_proj"].T).reshape(count, 1, width)
        v = y @ own["self_attn.v_proj"].T
        read = np.empty((count, q.shape[1], width))
        for by in set(under):
            rows = np.array([one == by for one in under])
            keys, queries = turn(k, places, by)[:, 0], turn(q[rows], places[rows], by)
            score = queries @ keys.T / np.sqrt(width)
            score = np.where((places[None] <= places[rows][:, None])[:, None], score, -np.inf)
            share = np.exp(score - score.max(-1, keepdims=True))
            read[rows] = share / share.sum(-1, keepdims=True) @ v
        x = x + read.reshape(count, -1) @ own["self_attn.o_proj"].T
        y = _norm(x, own["post_attention_layernorm"], config.rms_norm_eps)
        gate = y @ own["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ own["mlp.up_proj"].T)) @ own["mlp.down_proj"].T
    x = _norm(x, weights["model.norm.weight"], config.rms_norm_eps)
    found: Array = x @ weights["lm_head.weight"].T
    return found


def _norm(x: Array, weight: Array, least: float) -> Array:
    found: Array = weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + least)
    return found
