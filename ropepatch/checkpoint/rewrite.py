"""What is written into a checkpoint: an extension, as the files beside the weights tell it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ropepatch._version import __version__
from ropepatch.config_json.paths import Config, text_part
from ropepatch.config_json.plan import POSITION_KEYS
from ropepatch.config_json.write import Change


class Rewrite(Protocol):
    """An extension or a conversion, for the files beside the weights."""

    @property
    def name(self) -> str:
        """The end of a folder's name."""

    @property
    def before(self) -> Config:
        """The config without any stamp of ours."""

    @property
    def after(self) -> Config:
        """The config to write."""

    @property
    def old_lengths(self) -> set[int]:
        """Tokens that may mean the full length in other files."""

    @property
    def target_length(self) -> int:
        """Tokens the result is meant for."""

    @property
    def code_of(self) -> str | None:
        """The model type, where the model needs Python code of its own."""

    @property
    def files(self) -> Mapping[str, str]:
        """Files to add, by name."""

    @property
    def advice(self) -> tuple[str, ...]:
        """What may surprise."""

    def section(self, source_name: str) -> list[str]:
        """Lines of the model card."""

    def record(self) -> dict[str, Any]:
        """What the record says of it."""


def size_word(length: int) -> str:
    """64k, or the tokens where they are no multiple of 1024."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


@dataclass(frozen=True)
class ExtensionRewrite:
    """An extension."""

    change: Change

    @property
    def name(self) -> str:
        """The method's word and the length."""
        return f"{self.change.recipe.method}-{size_word(self.change.target_length)}"

    @property
    def before(self) -> Config:
        """The config without any stamp of ours."""
        return self.change.before

    @property
    def after(self) -> Config:
        """The config to write."""
        return self.change.after

    @property
    def old_lengths(self) -> set[int]:
        """Tokens that may mean the full length in other files."""
        return {self.change.layout.configured_length, self.change.layout.trained_length}

    @property
    def target_length(self) -> int:
        """Tokens the result is meant for."""
        return self.change.target_length

    @property
    def code_of(self) -> str | None:
        """The model type, where transformers does not know it."""
        family = self.change.layout.family
        return None if family.known else family.model_type

    @property
    def files(self) -> Mapping[str, str]:
        """None."""
        return {}

    @property
    def advice(self) -> tuple[str, ...]:
        """What may surprise."""
        return self.change.advice

    def section(self, source_name: str) -> list[str]:
        """Method, lengths and price."""
        change = self.change
        layout, recipe = change.layout, change.recipe
        method = next(iter(change.methods.values()))
        layers = sum(len(g.layers) for label in change.methods for g in layout.groups_of(label))
        parameters = ", ".join(
            f"`{key}` {value:g}" if isinstance(value, float) else f"`{key}` {value}"
            for key, value in method.parameters().items()
            if value is not None and not isinstance(value, tuple)
        )
        return [
            "## Extended context",
            "",
            f"{method.title} ({method.source}) was written into the config of `{source_name}` by "
            f"ropepatch {__version__}: trained on {layout.trained_length} tokens, meant for "
            f"{change.target_length}. The weights are unchanged. It touches {layers} of "
            f"{layout.layer_count} layers.",
            "",
            f"- Method: `{recipe.method}`, {parameters}",
            f"- Short length: {method.short_price}.",
        ]

    def record(self) -> dict[str, Any]:
        """Recipe, methods, lengths and every value."""
        change = self.change
        return {
            "recipe": change.recipe.to_dict(),
            "methods": {
                label or "*": _plain(m.parameters()) for label, m in change.methods.items()
            },
            "lengths": {
                "trained": change.layout.trained_length,
                "configured_before": change.layout.configured_length,
                "target": change.target_length,
            },
            "dialect": change.dialect,
            "config": {
                "before": _positions(change, change.before),
                "after": _positions(change, change.after),
            },
            "schedules": {label or "*": _schedule(change, label) for label in change.methods},
        }


def _positions(change: Change, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config that speak of positions."""
    text = text_part(config, change.layout.path)
    return {key: text[key] for key in POSITION_KEYS if key in text}


def _schedule(change: Change, label: str) -> dict[str, Any]:
    schedule, method = change.layout.schedules[label], change.methods[label]
    base, new = (
        schedule.geometry.base_frequencies(),
        method.frequencies(schedule.geometry, change.target_length),
    )

    def slowest(waves: tuple[float, ...]) -> float | None:
        turning = [w for w in waves if math.isfinite(w)]
        return max(turning) if turning else None

    return {
        "rope_theta": schedule.geometry.theta,
        "head_dim": schedule.geometry.head_dim,
        "rotary_dim": schedule.geometry.rotary_dim,
        "layers": sum(len(g.layers) for g in change.layout.groups_of(label)),
        "slowest_wavelength_before": slowest(base.wavelengths()),
        "slowest_wavelength_after": slowest(new.wavelengths()),
        "attention_factor": new.attention_factor,
    }


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in parameters.items()
        if value is not None
    }
