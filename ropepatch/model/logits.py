"""Logits of a real forward, before against after, at short and at long distances."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from ropepatch.errors import VerificationError
from ropepatch.model.skeleton import config_of, quiet, template_of

_SPAN = 64


@dataclass(frozen=True)
class LogitChange:
    """How far the logits moved; the weights are the same on both sides."""

    short: float
    """Largest absolute change for tokens at positions 0 to 63."""
    long: float
    """The same where the second half stands at the end of the extended length."""
    long_length: int


def compare_logits(
    folder: Path, before: Mapping[str, Any], length: int, *, remote_code: bool = False
) -> LogitChange:
    """Run the weights under both configs, 64 tokens each way, in float32 on the CPU.

    Half of the long run stands at the beginning and half at the end of `length`, so that keys
    and queries meet at the largest distance without a full prefill. (Moving all tokens alike
    would change nothing: rotations depend on differences only.)

    Raises:
        VerificationError: the model cannot be loaded or run.
    """
    spread = _spread(length)
    try:
        with quiet():
            new = _run(folder, None, spread, remote_code=remote_code)
            old = _run(folder, before, spread, remote_code=remote_code)
    except Exception as error:  # whatever transformers throws is the finding
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise VerificationError(f"the model cannot be run: {reason}") from error
    short, long = ((a - b).abs().max().item() for a, b in zip(new, old, strict=True))
    return LogitChange(short, long, length)


def compare_patched(model: Any, revert: Callable[[], None], length: int) -> LogitChange:
    """The same for a live model that carries a patch, by undoing it.

    Args:
        model: Patched; afterwards it is not.
        revert: Undoes the patch.
        length: Tokens.

    Raises:
        VerificationError: the model cannot be run.
    """
    try:
        with quiet():
            new = _logits(model, _spread(length))
            revert()
            old = _logits(model, _spread(length))
    except RuntimeError as error:
        raise VerificationError(f"the model cannot be run: {error}") from error
    short, long = ((a - b).abs().max().item() for a, b in zip(new, old, strict=True))
    return LogitChange(short, long, length)


def _run(
    folder: Path, before: Mapping[str, Any] | None, spread: torch.Tensor, *, remote_code: bool
) -> list[torch.Tensor]:
    """Logits (64, vocabulary) of the short and of the long run."""
    words: dict[str, Any] = {"trust_remote_code": remote_code}
    if before is None:
        config = AutoConfig.from_pretrained(str(folder), **words)
    else:
        config = config_of(before, folder, remote_code=remote_code)
    model = template_of(config, remote_code=remote_code).from_pretrained(
        str(folder), config=config, dtype=torch.float32, use_safetensors=True, **words
    )
    return _logits(model.eval(), spread)


def _spread(length: int) -> torch.Tensor:
    """Half of the tokens at the beginning and half at the end."""
    half = _SPAN // 2
    return torch.cat([torch.arange(half), torch.arange(length - half, length)])


def _logits(model: Any, spread: torch.Tensor) -> list[torch.Tensor]:
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (1, _SPAN), generator=generator).to(model.device)
    mask = torch.ones_like(ids)  # without it, a jump in positions is taken for a new document
    with torch.no_grad():
        return [
            model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions[None].to(model.device),
                use_cache=False,
            ).logits[0]
            for positions in (torch.arange(_SPAN), spread)
        ]
