"""Kernels that are at home on a GPU: flex_attention itself, and flash attention's conventions."""

import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import modeling_flash_attention_utils as flash

import ropepatch
from ropepatch.errors import RecipeError
from tests.live.subjects import close, left_padded, make, read, text


def flash_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:
    """What flash_attn_func computes: (batch, tokens, heads, features), aligned at the last key."""
    assert q.shape[-1] == v.shape[-1]
    assert q.shape[-1] % 8 == 0
    groups = q.shape[2] // k.shape[2]
    keys, values = (part.repeat_interleave(groups, 2).transpose(1, 2) for part in (k, v))
    places = torch.arange(k.shape[1] - q.shape[1], k.shape[1])
    distance = places[:, None] - torch.arange(k.shape[1])
    banned = distance < 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    if window_size[0] >= 0:
        banned |= distance > window_size[0]
    scores = q.transpose(1, 2) @ keys.transpose(-1, -2) * (softmax_scale or q.shape[-1] ** -0.5)
    return (scores.masked_fill(banned, -torch.inf).softmax(-1) @ values).transpose(1, 2)


def flash_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:
    """The same for texts laid end to end, (tokens, heads, features)."""
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    parts = [
        flash_func(
            q[None, ends_q[i] : ends_q[i + 1]],
            k[None, ends_k[i] : ends_k[i + 1]],
            v[None, ends_k[i] : ends_k[i + 1]],
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=window_size,
        )[0]
        for i in range(len(ends_q) - 1)
    ]
    return torch.cat(parts)


@pytest.fixture
def flash_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers finds a flash attention that runs here."""
    functions = (flash_func, flash_varlen_func, None, flash._pad_input, flash._unpad_input)
    monkeypatch.setattr(flash, "_lazy_imports", lambda *args, **words: functions)
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    monkeypatch.setattr("ropepatch.model.conversions.is_flash_attn_2_available", lambda: True)
    yield
    flash._loaded_implementation = None


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "mistral"])
@pytest.mark.parametrize("layers", [None, [0]], ids=["all", "mixed"])
def test_flash_conventions(flash_installed: None, family: str, layers: Any) -> None:
    model, ids = make(family), text(90, rows=2)
    with ropepatch.convert(model, "alibi", layers=layers):
        wanted = read(model, ids)
    with ropepatch.convert(model, "alibi", layers=layers, kernel="flash") as handle:
        assert handle.kernel == "flash"
        close(read(model, ids), wanted)


def test_flash_with_padding(flash_installed: None) -> None:
    model = make()
    texts = [text(40)[0], text(25, seed=1)[0]]
    batch = left_padded(texts, 40)
    with ropepatch.convert(model, "alibi", kernel="flash"):
        found = read(model, batch.pop("ids"), **batch)
    with ropepatch.convert(model, "alibi"):
        for row, one in zip(found, texts, strict=True):
            close(row[-len(one) :], read(model, one[None])[0])


def test_flash_with_packed_texts(flash_installed: None) -> None:
    model = make()
    texts = [text(30), text(21, seed=1)]
    places = torch.cat([torch.arange(one.shape[1]) for one in texts])[None]
    with ropepatch.convert(model, "alibi", kernel="flash"):
        found = read(model, torch.cat(texts, 1), position_ids=places, use_cache=False)
    with ropepatch.convert(model, "alibi"):
        close(found, torch.cat([read(model, one) for one in texts], 1))


def test_flash_is_refused_where_it_is_not_installed() -> None:
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash-attn is installed")
    with pytest.raises(RecipeError, match="flash-attn"):
        ropepatch.convert(make(), "alibi", kernel="flash")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="flex_attention on a CPU needs g++")
@pytest.mark.parametrize("layers", [None, [0]], ids=["all", "mixed"])
def test_flex(layers: Any) -> None:
    model, ids = make("gemma3"), text(96)
    with ropepatch.convert(model, "alibi", layers=layers):
        wanted = read(model, ids)
    with ropepatch.convert(model, "alibi", layers=layers, kernel="flex"):
        close(read(model, ids), wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", ["channels", "flex"])
def test_kernels_on_a_gpu(dtype: torch.dtype, kernel: Any) -> None:
    model: Any = make()
    model, ids = model.cuda(), text(200).cuda()
    with ropepatch.convert(model, "alibi", kernel="mask"):
        wanted = read(model, ids)
    model.to(dtype)
    with ropepatch.convert(model, "alibi", kernel=kernel):
        close(read(model, ids).float(), wanted, atol=1e-3 if dtype == torch.float32 else 0.3)
