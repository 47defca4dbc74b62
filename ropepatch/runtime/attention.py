"""Attention with linear biases (ALiBi) in place of rotation, for any attention of transformers.

A bias of -slope * (query position - key position) is carried by a few more channels of queries
and keys, so any fused kernel computes it and no (queries, keys) matrix is built.

Source: Press et al., Train Short, Test Long, arXiv:2108.12409.
"""

import sys
from typing import Any

import torch
from torch.nn import functional as F
from transformers.integrations.flex_attention import compile_friendly_flex_attention
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    flash_attention_mask,
    flex_attention_mask,
    sdpa_mask,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ropepatch.runtime.channels import (
    alibi_slopes,
    channels,
    full_bias,
    places,
    rows_of,
    without_denormals,
)

DENSE, BLOCKS, VARLEN = "ropepatch_alibi", "ropepatch_alibi_blocks", "ropepatch_alibi_varlen"
"""Attention implementations by the mask they want. transformers looks for "sdpa", "flash" and
"flex" within a name and would then make demands that do not hold here."""
IMPLEMENTATIONS = {"channels": DENSE, "mask": DENSE, "flex": BLOCKS, "flash": VARLEN}
"""By kernel."""
STATE = "ropepatch_alibi"
"""Name of the submodule that holds an attention's slopes."""
UNBUILT = "ropepatch_unbuilt"
"""Of a converted config until a converted class builds a model from it."""
_ROWS = 16
"""Queries that a CPU's matrix product takes as one block, or a part of one."""


class Alibi(torch.nn.Module):
    """The slopes of one attention; no parameters, no buffers: the state dict stays as it was."""

    def __init__(self, heads: list[int], bias_max: float, scale: float) -> None:
        """Slopes end at 2^-bias_max and are multiplied by `scale`; `heads` says how many may be."""
        super().__init__()
        self.heads, self.bias_max, self.scale = heads, bias_max, scale
        self.kernel = "channels"
        self.flash = "flash_attention_2"
        self.slopes: torch.Tensor | None = None

    def of(self, query: torch.Tensor) -> torch.Tensor:
        """Slopes for these queries, (heads,), float32 or float64."""
        heads, dtype = query.shape[1], torch.promote_types(query.dtype, torch.float32)
        found = self.slopes
        key = (heads, dtype, query.device)
        if found is None or (len(found), found.dtype, found.device) != key:
            if self.heads and heads not in self.heads:
                raise RuntimeError(
                    f"this attention sees {heads} of {self.heads[0]} heads, so it cannot tell "
                    "which slopes are its own; ALiBi does not run under tensor parallelism."
                )
            numbers = [slope * self.scale for slope in alibi_slopes(heads, self.bias_max)]
            found = torch.tensor(numbers, dtype=dtype, device=query.device)
            if not torch.compiler.is_compiling() and not torch.is_inference_mode_enabled():
                self.slopes = found
        return found

    def extra_repr(self) -> str:
        """What it adds, for `print(model)`."""
        return f"bias_max={self.bias_max:g}, scale={self.scale:g}, kernel={self.kernel}"


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    **words: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An attention function of transformers that adds the bias where the module has slopes.

    Args:
        module: The attention; one without slopes gets none.
        query: (batch, heads, queries, features).
        key: (batch, key heads, keys, features).
        value: (batch, key heads, keys, features of values).
        attention_mask: As the mask function of the implementation made it.
        **words: scaling, dropout, softcap, sliding_window, ...
    """
    state: Any = module._modules.get(STATE)
    if state is None:
        _refuse_strangers(module)
    kernel = state.kernel if state is not None else _kernel_of(module)
    if words.get("scaling") is None:
        words["scaling"] = query.shape[-1] ** -0.5
    if kernel == "flex":
        return _flex(module, state, query, key, value, attention_mask, **words)
    if kernel == "flash":
        return _flash(module, state, query, key, value, attention_mask, **words)
    count = query.shape[2]
    if attention_mask is None and count > 1 and key.shape[2] > count:  # an empty static cache
        key, value = key[:, :, :count], value[:, :, :count]
    special = words.get("softcap") is not None or words.get("s_aux") is not None
    if special or (state is not None and kernel == "mask"):
        bias = None if state is None else full_bias(state.of(query), query, key, attention_mask)
        return _eager(module, query, key, value, attention_mask, bias, **words)
    if state is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **words)
    few = count < _ROWS or 4 * count * query.shape[1] <= key.shape[1] * key.shape[3]
    rows = None if few else rows_of(attention_mask)
    if few or (rows is not None and rows.gaps):  # less to write than all keys anew; or exact alone
        words["position_bias"] = full_bias(state.of(query), query, key, attention_mask)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **words)
    exact = query.dtype in (torch.float32, torch.float64)
    own = places(rows if exact else None, query, key)
    if exact and query.device.type == "cpu" and count % _ROWS:
        query, own, attention_mask = _whole_rows(query, own, attention_mask)
    wide = channels(state.of(query) / words["scaling"], query, key, value, own)
    with without_denormals(query, key):
        output, weights = sdpa_attention_forward(module, *wide, attention_mask, **words)
    return output[:, :count, :, : value.shape[-1]].contiguous(), weights


def unbuilt(*_: Any, **__: Any) -> Any:
    """The attention of a model that a plain class has built from a converted config.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        "this config is of a converted model, and a class that knows nothing of it has built the "
        "model, so it would turn as before; use AutoModelForCausalLM, or the Converted classes."
    )


def _refuse_strangers(module: torch.nn.Module) -> None:
    """An attention without slopes where the config says that it has some."""
    stamp = getattr(module.config, "ropepatch", None)
    layers = stamp["layers"]["alibi"] if isinstance(stamp, dict) and "layers" in stamp else ()
    if layers == "all" or getattr(module, "layer_idx", None) in layers:
        unbuilt()


def _whole_rows(
    query: torch.Tensor, own: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """A multiple of `_ROWS` queries; the last ones are nobody's.

    CPUs sum a short remainder of rows in another order, which costs the channels three digits.
    """
    more = -query.shape[2] % _ROWS
    if mask is not None:
        mask = F.pad(mask, (0, 0, 0, more), value=mask.dtype == torch.bool)
    return F.pad(query, (0, 0, 0, more)), F.pad(own, (0, 0, 0, more)), mask


def _kernel_of(module: torch.nn.Module) -> str:
    config: Any = module.config
    return {BLOCKS: "flex", VARLEN: "flash"}.get(config._attn_implementation, "channels")


def _eager(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    **words: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The family's own plain attention, which knows its soft caps and sinks, with a full mask."""
    own = sys.modules[type(module).__module__].__dict__.get("eager_attention_forward")
    if own is None:
        raise RuntimeError(f"{type(module).__name__} has no attention that takes a full mask.")
    added = query.new_zeros(()) if bias is None else bias
    if mask is None:
        mask = torch.arange(key.shape[2], device=key.device) <= places(None, query, key)
    if mask.dtype == torch.bool:
        mask = torch.where(mask, added, torch.finfo(query.dtype).min)
    else:
        mask = mask + added
    found: tuple[torch.Tensor, torch.Tensor | None] = own(module, query, key, value, mask, **words)
    return found


def _flex(
    module: torch.nn.Module,
    state: Alibi | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    **words: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if state is None or words.get("s_aux") is not None:
        if state is not None:
            raise RuntimeError("flex_attention has no sinks with a bias; use the kernel 'mask'.")
        plain: Any = ALL_ATTENTION_FUNCTIONS["flex_attention"]
        found: tuple[torch.Tensor, torch.Tensor | None] = plain(
            module, query, key, value, mask, **words
        )
        return found
    slopes, cap = state.of(query), words.get("softcap")

    def biased(score: Any, batch: Any, head: Any, row: Any, column: Any) -> Any:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        return score + slopes[head] * (column - row)

    groups = query.shape[1] // key.shape[1]
    output: Any = compile_friendly_flex_attention(
        query,
        repeat_kv(key, groups),
        repeat_kv(value, groups),
        score_mod=biased,
        block_mask=mask,
        scale=words["scaling"],
        kernel_options=words.get("kernel_options"),
        training=module.training,
    )
    return output.transpose(1, 2).contiguous(), None


class _AsFlash:
    """An attention as transformers' flash function wants to see it: under that name."""

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        self.config = self
        self._attn_implementation = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.module, name, None)
        return getattr(self.module.config, name) if found is None else found


def _flash(
    module: torch.nn.Module,
    state: Alibi | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    **words: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    name = state.flash if state is not None else "flash_attention_2"
    plain: Any = ALL_ATTENTION_FUNCTIONS[name]
    seen = _AsFlash(module, name)
    if state is None:
        found: tuple[torch.Tensor, None] = plain(seen, query, key, value, mask, **words)
        return found
    own = places(None, query, key)
    wide = channels(state.of(query) / words["scaling"], query, key, value, own)
    output, _ = plain(seen, *wide, mask, **words)
    return output[..., : value.shape[-1]].contiguous(), None


for _name, _mask in (
    (DENSE, sdpa_mask),
    (BLOCKS, flex_attention_mask),
    (VARLEN, flash_attention_mask),
):
    AttentionInterface.register(_name, attention)
    AttentionMaskInterface.register(_name, _mask)
AttentionInterface.register(UNBUILT, unbuilt)
AttentionMaskInterface.register(UNBUILT, sdpa_mask)
