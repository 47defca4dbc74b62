"""A model without weights, built by transformers' own classes: what a checkpoint will do.

Parameters live on the meta device, so even a 400-billion-parameter model takes seconds and no
memory; the rotary modules are then built for real.
"""

import json
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
)
from transformers.utils import logging as transformers_logging

from ropepatch.errors import VerificationError
from ropepatch.geometry import Frequencies
from ropepatch.model.sites import labels_of, softmax_scales

_TEMPLATES = (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModel)


@dataclass(frozen=True)
class Skeleton:
    """The rotary modules of a model and the softmax scale of its attention."""

    rotary: Mapping[str, torch.nn.Module]
    """By label ("" where one schedule serves all layers)."""
    softmax_scale: float | None
    """Of the text model's first attention layer that keeps one."""
    model_class: str

    def frequencies(self, label: str, length: int) -> Frequencies:
        """What transformers turns by for an input of `length` tokens.

        A fresh module is called as a model would call it, so that length-dependent types adapt
        (transformers' dynamic type remembers longer inputs that it has seen before).
        """
        module: Any = type(self.rotary[label])(config=self.rotary[label].config)
        _call(module, label, length)
        prefix = f"{label}_" if label else ""
        inv_freq = getattr(module, f"{prefix}inv_freq")
        factor = getattr(module, f"{prefix}attention_scaling", 1.0)
        return Frequencies(tuple(inv_freq.double().tolist()), float(factor))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' own remarks out of our output."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def skeleton_of_folder(folder: Path, *, remote_code: bool = False) -> Skeleton:
    """The skeleton of a checkpoint folder, through `AutoConfig.from_pretrained`.

    Raises:
        VerificationError: transformers refuses the config or cannot build the model.
    """
    with quiet():
        try:
            config = AutoConfig.from_pretrained(str(folder), trust_remote_code=remote_code)
            return _build(config, remote_code=remote_code)
        except VerificationError:
            raise
        except Exception as error:  # whatever transformers throws is the finding
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise VerificationError(
                f"transformers cannot build a model from this config: {reason}"
            ) from error


def skeleton_of_config(config: Mapping[str, Any], *, code_from: Path | None = None) -> Skeleton:
    """The skeleton of a config that lies in no folder.

    Args:
        config: As parsed from a `config.json`.
        code_from: Folder whose Python files the model needs, if the user allows them.
    """
    with tempfile.TemporaryDirectory(prefix="ropepatch-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for file in code_from.glob("*.py") if code_from else ():
            (folder / file.name).write_bytes(file.read_bytes())
        return skeleton_of_folder(folder, remote_code=code_from is not None)


def meta_model(config: PreTrainedConfig, *, remote_code: bool = False) -> Any:
    """The model of a config with all its tensors on the meta device."""
    template = template_of(config, remote_code=remote_code)
    with torch.device("meta"):
        build: Any = template.from_config
        return build(config, trust_remote_code=remote_code)


def template_of(config: PreTrainedConfig, *, remote_code: bool = False) -> Any:
    """The auto class that builds the model of a config, its head included where there is one."""
    if getattr(config, "auto_map", None) and remote_code:
        return AutoModelForCausalLM
    return next((t for t in _TEMPLATES if type(config) in t._model_mapping), AutoModel)


def config_of(words: Mapping[str, Any], folder: Path, *, remote_code: bool = False) -> Any:
    """A config object with these words, of the class that a folder's config has.

    Args:
        words: As parsed from a `config.json`.
        folder: Whose class, and code if that may run, is taken.
        remote_code: Whether the folder's own Python files may run.
    """
    found = AutoConfig.from_pretrained(str(folder), trust_remote_code=remote_code)
    plain = {k: v for k, v in words.items() if k not in ("auto_map", "model_type")}
    return type(found).from_dict(plain)


def _build(config: PreTrainedConfig, *, remote_code: bool) -> Skeleton:
    model = meta_model(config, remote_code=remote_code)
    text_config = config.get_text_config(decoder=True)
    rotary: dict[str, torch.nn.Module] = {}
    for module in model.modules():
        own = getattr(module, "config", None)
        labels = labels_of(module)
        if labels and isinstance(own, type(text_config)) and not set(labels) & set(rotary):
            real = type(module)(config=own)
            rotary |= dict.fromkeys(labels_of(real), real)
    if not rotary:
        raise VerificationError(
            f"{type(model).__name__} has no rotary module with inverse frequencies to read."
        )
    return Skeleton(rotary, _softmax_scale(model, type(text_config)), type(model).__name__)


def _softmax_scale(model: torch.nn.Module, text_type: type[PreTrainedConfig]) -> float | None:
    for attention, scale in softmax_scales(model):
        if isinstance(getattr(attention, "config", None), text_type | None):
            return scale
    return None


def _call(module: torch.nn.Module, label: str, length: int) -> None:
    """Let a rotary module see positions up to `length`, in whatever shape it wants them."""
    x = torch.zeros(1, 2, 1)
    positions = torch.tensor([[0, length - 1]])
    extra = (label,) if label else ()
    with torch.no_grad():
        try:
            module(x, positions, *extra)
        except Exception:  # it may want several axes of positions (mrope)
            try:
                module(x, positions[None].expand(3, -1, -1), *extra)
            except Exception as error:  # whatever transformers throws is the finding
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise VerificationError(
                    f"{type(module).__name__} cannot be called: {reason}"
                ) from error
