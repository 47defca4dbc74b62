"""A conversion, as the files beside the weights tell it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropepatch._version import __version__
from ropepatch.checkpoint.rewrite import size_word
from ropepatch.config_json.encodings import ConversionPlan
from ropepatch.config_json.paths import Config
from ropepatch.runtime.words import MODULE


@dataclass(frozen=True)
class ConversionRewrite:
    """A conversion that the converted classes read, or one in transformers' own words."""

    plan: ConversionPlan
    after: Config
    """The config to write."""
    module: str | None
    """Text of the Python file that goes with it; None where a class of transformers reads it."""
    advice: tuple[str, ...]

    @property
    def name(self) -> str:
        """The encoding, and the length where it changes."""
        plan = self.plan
        grown = plan.target_length != plan.trained_length
        return f"{plan.recipe.to}-{size_word(plan.target_length)}" if grown else plan.recipe.to

    @property
    def before(self) -> Config:
        """The config without any stamp of ours."""
        return self.plan.before

    @property
    def old_lengths(self) -> set[int]:
        """Tokens that may mean the full length in other files."""
        return {self.plan.trained_length}

    @property
    def target_length(self) -> int:
        """Tokens the result is meant for."""
        return self.plan.target_length

    @property
    def code_of(self) -> str | None:
        """None: a model of unknown code is not converted."""
        return None

    @property
    def files(self) -> Mapping[str, str]:
        """The Python file."""
        return {} if self.module is None else {f"{MODULE}.py": self.module}

    def section(self, source_name: str) -> list[str]:
        """What runs in which layer, and how to load it."""
        recipe = self.plan.recipe
        what = "linear biases (ALiBi, arXiv:2108.12409)" if recipe.to == "alibi" else "nothing"
        lines = [
            "## Converted position encoding",
            "",
            f"Rotary position embeddings of `{source_name}` were replaced by {what} with ropepatch "
            f"{__version__}. The weights are unchanged, and were not trained for it.",
            "",
            *(
                f"- {group.layer_type}, {len(group.layers)} layers: {encoding}"
                for group, encoding in self.plan.encodings
            ),
        ]
        if self.module is not None:
            lines.append(
                "- It loads with `import ropepatch`, or with `trust_remote_code=True`; everything "
                "else refuses it."
            )
        return lines

    def record(self) -> dict[str, Any]:
        """What was asked, layer by layer."""
        return {
            "conversion": self.plan.recipe.to_dict(),
            "lengths": {"before": self.plan.trained_length, "target": self.plan.target_length},
            "encodings": [
                {
                    "layer_type": group.layer_type,
                    "layers": list(group.layers),
                    "window": group.window,
                    "encoding": encoding,
                }
                for group, encoding in self.plan.encodings
            ],
        }
