"""What is to be served: a config, the method in it, and how far it reaches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropepatch.config_json.layout import Layout
from ropepatch.config_json.paths import text_part
from ropepatch.families.table import Block
from ropepatch.methods.base import Method
from ropepatch.methods.longrope import LongRope
from ropepatch.recipe import Recipe

_TOLERANCE = 1e-6
_LENGTH = "original_max_position_embeddings"
_USUAL = {"beta_fast": 32.0, "beta_slow": 1.0}
"""What a null stands for."""


@dataclass(frozen=True)
class ServedModel:
    """A checkpoint that is extended, as an engine will find it."""

    name: str
    """What the user calls it: a folder."""
    config: Mapping[str, Any]
    """As it stands, without our stamp."""
    layout: Layout
    """Of that config."""
    methods: Mapping[str, Method]
    """By label: only the schedules that are extended."""
    recipe: Recipe | None
    """What was asked, where ropepatch did it."""
    trained_length: int
    target_length: int
    trained_theta: float
    """Base period of the pretrained rotation."""
    source: str | None = None
    """The model it was made from, where that is known and the weights are still the same."""
    original_scaled: bool = False
    """Whether that model carries a scaling of its own."""
    architectures: tuple[str, ...] = ()
    """Names of the class before it was renamed (a model without rotation); empty otherwise."""

    @property
    def method(self) -> Method:
        """The method; schedules that change change alike."""
        return next(iter(self.methods.values()))

    @property
    def row(self) -> str:
        """The row of the tables of support: the method's word, or `nope`."""
        return "nope" if self.architectures else self.method.name

    @property
    def model_type(self) -> str:
        """Of the text part."""
        return self.layout.family.model_type

    @property
    def outer_type(self) -> str:
        """Of the whole config, which is what engines go by."""
        return str(self.config.get("model_type", self.model_type))

    @property
    def several_axes(self) -> bool:
        """Whether positions have several axes (mrope), as of images."""
        return any("mrope_section" in block for block in self.blocks().values())

    @property
    def head_dim(self) -> int:
        """Features per head."""
        return next(iter(self.layout.schedules.values())).geometry.head_dim

    @property
    def raises_length(self) -> bool:
        """Whether the config promises fewer tokens than the method reaches (yarn by hand)."""
        return not grows(self.methods) and self.layout.configured_length < self.target_length

    @property
    def loose(self) -> bool:
        """Whether a block is written as transformers reads it and others do not.

        A linear factor without a decimal point, or a null where a number is meant.
        """
        return any(
            (block_type(block) == "linear" and type(block.get("factor")) is int)
            or any(block.get(key, 0) is None for key in _USUAL)
            or (block_type(block) == "yarn" and not block.get(_LENGTH))
            for block in raw_blocks(self.text)
        )

    @property
    def stops_pairs(self) -> bool:
        """Whether some block says p-RoPE."""
        return any(b["rope_type"] == "proportional" for b in self.blocks().values())

    @property
    def attention_factor(self) -> float:
        """What multiplies cos and sin at the full length."""
        geometry = self.layout.schedules[next(iter(self.methods))].geometry
        return self.method.frequencies(geometry, self.target_length).attention_factor

    def longrope_words(self) -> dict[str, float]:
        """Words by which vLLM and SGLang come to a LongRoPE attention factor of one's own.

        They read neither `attention_factor` nor `factor`, and go by the ratio of the lengths.
        """
        if not isinstance(self.method, LongRope):
            return {}
        ratio = self.layout.configured_length / self.trained_length
        usual = self.method.attention_factor is None
        if usual and abs(self.method.factor / ratio - 1) < _TOLERANCE:
            return {}
        return dict.fromkeys(("short_mscale", "long_mscale"), self.attention_factor)

    @property
    def text(self) -> Mapping[str, Any]:
        """The text part of the config."""
        return text_part(self.config, self.layout.path)

    def blocks(self) -> dict[str, Block]:
        """`rope_parameters` by label, whole, in numbers that every engine takes."""
        return {k: _plain(s.block) for k, s in self.layout.schedules.items()}

    def rope_parameters(self, changed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The whole value of `rope_parameters`, with more words in the blocks that are extended."""
        blocks = self.blocks()
        for label in self.methods:
            blocks[label] = {**blocks[label], **(changed or {})}
        nested: dict[str, Any] = dict(blocks) if set(blocks) != {""} else dict(blocks[""])
        if set(blocks) != {""} and any(b.get("truncate") is False for b in blocks.values()):
            nested["truncate"] = False
        return nested

    def overrides(self, words: Mapping[str, Any]) -> dict[str, Any]:
        """Words of the text part, under the key of that part where it has one."""
        found: dict[str, Any] = dict(words)
        for key in reversed(self.layout.path):
            found = {key: found}
        return found


def raw_blocks(text: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Blocks of rotary parameters as they stand in a config, in either dialect, by layer or not."""
    found = [text.get(key) for key in ("rope_parameters", "rope_scaling")]
    blocks = [block for block in found if isinstance(block, Mapping)]
    inner = [b for block in blocks for b in block.values() if isinstance(b, Mapping)]
    return [*blocks, *inner]


def block_type(block: Mapping[str, Any]) -> Any:
    """What a block says its type is, in either word."""
    return block.get("rope_type") or block.get("type")


def grows(methods: Mapping[str, Method]) -> bool:
    """Whether the configured length stays the trained one (dynamic NTK counts from it)."""
    return any(method.grows for method in methods.values())


def _plain(block: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM and SGLang want a factor with a decimal point, and no nulls."""
    words: dict[str, Any] = {
        key: _USUAL.get(key) if value is None else value for key, value in block.items()
    }
    if type(words.get("factor")) is int:
        words["factor"] = float(words["factor"])
    return {key: value for key, value in words.items() if value is not None}
