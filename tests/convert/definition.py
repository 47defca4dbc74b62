"""Linear biases by their definition, in float64, and stock models that attend by it."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from tests.live.subjects import read

DATA = Path(__file__).parents[1] / "data"
SLOPES: dict[int, list[float]] = {
    int(heads): rows["ofirpress"]
    for heads, rows in json.loads((DATA / "alibi_slopes.json").read_text("utf-8"))["heads"].items()
}
"""By number of heads, as the code of the paper's authors gives them."""
PATH = "by_definition"


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slopes: torch.Tensor,
    scaling: float,
    *,
    allowed: torch.Tensor | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(q·k s - m (i - j)) v, (batch, queries, heads, features), float64.

    The queries are the last of the keys' places. Source: arXiv:2108.12409, section 3.
    """
    groups, (count, keys) = query.shape[1] // key.shape[1], (query.shape[2], key.shape[2])
    query = query.double()
    key, value = (part.double().repeat_interleave(groups, 1) for part in (key, value))
    places = torch.arange(keys, dtype=torch.float64)
    distance = places[keys - count :, None] - places
    score = query @ key.transpose(-1, -2) * scaling
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    score = score - slopes.double()[:, None, None] * distance
    score = score.masked_fill(distance < 0 if allowed is None else ~allowed, -torch.inf)
    if sinks is not None:
        sink = sinks.double().reshape(1, -1, 1, 1).expand(len(score), -1, count, 1)
        score = torch.cat([score, sink], -1)
    share = score.softmax(-1)[..., :keys]
    return (share @ value).transpose(1, 2)


def attending(slopes: dict[int, list[float]]) -> Callable[..., Any]:
    """An attention function of transformers, with slopes by layer; other layers get none."""

    def attention(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        scaling: float,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        own = slopes.get(module.layer_idx, [0.0] * query.shape[1])
        found = attend(
            query,
            key,
            value,
            torch.tensor(own, dtype=torch.float64),
            scaling,
            allowed=mask > -1,
            softcap=softcap,
            sinks=s_aux,
        )
        return found.to(query.dtype), None

    return attention


AttentionMaskInterface.register(PATH, eager_mask)


def logits_by_definition(
    model: PreTrainedModel, ids: torch.Tensor, slopes: dict[int, list[float]]
) -> torch.Tensor:
    """Of a stock model all of whose tokens stand at place 0, with these biases."""
    stock: Any = copy.deepcopy(model)
    AttentionInterface.register(PATH, attending(slopes))
    stock.set_attn_implementation(PATH)
    return read(stock, ids, **still(ids))


def still(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every token at place 0. Without the mask this would be texts of one token each."""
    return {"position_ids": torch.zeros_like(ids), "attention_mask": torch.ones_like(ids)}


def every_layer(model: Any, slopes: list[float] | None = None) -> dict[int, list[float]]:
    """The same slopes in all layers; those of the paper if not given."""
    config = model.config
    own = SLOPES[config.num_attention_heads] if slopes is None else slopes
    return dict.fromkeys(range(config.num_hidden_layers), own)
