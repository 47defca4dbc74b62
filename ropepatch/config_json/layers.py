"""Layer by layer: which type it is, whether it turns, how far it looks back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from ropepatch.errors import ConfigError
from ropepatch.families.table import Block, Family

_NO_ATTENTION = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "mlp", "moe")
_RENAMED = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}
"""Words of older files."""
_LISTED = {
    "cross_attention_layers": ("cross_attention", "full_attention"),  # Llama 3.2 Vision
    "attn_layer_indices": ("full_attention", "linear_attention"),  # Bamba
    "full_attn_idxs": ("full_attention", "conv"),  # LFM2
}
_INTERVALS = {
    "sliding_window_pattern": "sliding_attention",
    "global_attn_every_n_layers": "sliding_attention",
    "full_attention_interval": "linear_attention",
}
_LARGEST_LAYER_COUNT = 100_000


@dataclass(frozen=True)
class LayerGroup:
    """The layers of one type that turn, or do not turn, alike."""

    layer_type: str
    label: str
    """Key of the block they read; "" where one block serves every layer."""
    layers: tuple[int, ...]
    rotates: bool
    window: int | None
    """Tokens a layer can look back; None attends globally."""
    attends: bool = True
    """False for layers without self-attention (linear attention, convolution, ...)."""

    @property
    def attends_globally(self) -> bool:
        """Whether a longer context reaches these layers at all."""
        return self.attends and self.window is None


def layer_groups(
    text: Mapping[str, Any], family: Family, blocks: Mapping[str, Block | None]
) -> tuple[LayerGroup, ...]:
    """Groups in the order of their first layer; every layer is in exactly one.

    Raises:
        ConfigError: the number of layers is missing, or a list of layers has another length.
    """
    count = _count(text, family)
    turns = _turning_flags(text, family, count)
    types = _layer_types(text, family, turns)
    for key, values in (("layer_types", types), ("no_rope_layers", turns)):
        if len(values) != count:
            raise ConfigError(
                f"{key} in config.json names {len(values)} layers, num_hidden_layers is {count}."
            )
    found: dict[tuple[str, bool], list[int]] = {}
    for index, (layer_type, turn) in enumerate(zip(types, turns, strict=True)):
        found.setdefault((layer_type, turn), []).append(index)
    window = sliding_window(text, family)
    groups = []
    for (layer_type, turn), layers in found.items():
        label = "" if "" in blocks else layer_type
        attends = layer_type not in (*_NO_ATTENTION, "cross_attention")
        row = family.row
        still = layer_type in row.unrotated or (
            window is not None and layer_type in row.unrotated_if_window
        )
        groups.append(
            LayerGroup(
                layer_type=layer_type,
                label=label,
                layers=tuple(layers),
                rotates=attends and turn and not still and blocks.get(label) is not None,
                window=_window(layer_type, window, text, family),
                attends=attends,
            )
        )
    return tuple(groups)


def sliding_window(text: Mapping[str, Any], family: Family) -> int | None:
    """Tokens of the sliding window in force, or None."""
    window = family.value(text, "sliding_window")
    return None if family.value(text, "use_sliding_window") is False or not window else int(window)


def _count(text: Mapping[str, Any], family: Family) -> int:
    count = family.value(text, "num_hidden_layers")
    if (
        isinstance(count, bool)
        or not isinstance(count, int)
        or not 0 < count <= _LARGEST_LAYER_COUNT
    ):
        raise ConfigError(f"num_hidden_layers in config.json must be a number, not {count!r}.")
    return count


def _repeated(period: Sequence[Any], count: int) -> list[Any]:
    return list(islice(cycle(period), count))


def _turning_flags(text: Mapping[str, Any], family: Family, count: int) -> list[bool]:
    """Per layer, what `no_rope_layers` says (1 turns, 0 does not)."""
    if family.row.rotates_only_if is not None:
        key, wanted, default = family.row.rotates_only_if
        if text.get(key, default) != wanted:
            return [False] * count
    if family.nope_period:
        given = text.get("no_rope_layers")
        if isinstance(given, list) and given:
            return [bool(flag) for flag in given]
        interval = text.get("no_rope_layer_interval")
        if isinstance(interval, int) and interval > 0:
            return [bool((i + 1) % interval) for i in range(count)]
        return [bool(flag) for flag in _repeated(family.nope_period, count)]
    return [True] * count


def _layer_types(text: Mapping[str, Any], family: Family, turns: list[bool]) -> list[str]:
    """Per layer, its type as transformers would fill it in."""
    count = len(turns)
    given = text.get("layer_types") or text.get(family.aliases.get("layer_types", "layer_types"))
    if isinstance(given, list):
        if not all(isinstance(word, str) for word in given):
            raise ConfigError("layer_types in config.json must be a list of words.")
        words: list[str] = given
        return [_RENAMED.get(word, word) for word in words]
    window = sliding_window(text, family)
    for key, other in _LISTED.items():  # a list of the layers that are different
        listed = text.get(key)
        if isinstance(listed, list) and listed:
            inside, outside = other
            return [inside if i in listed else outside for i in range(count)]
    if "chunked_attention" in family.layer_types:
        return ["chunked_attention" if turn else "full_attention" for turn in turns]
    if family.nope_period and window is not None:  # SmolLM3
        return ["full_attention" if turn else "sliding_attention" for turn in turns]
    if isinstance(first := family.value(text, "max_window_layers"), int):
        return [
            "sliding_attention" if _in_window(i, first, window, family) else "full_attention"
            for i in range(count)
        ]
    return _patterned(text, family, window, count)


def _in_window(index: int, first: int, window: int | None, family: Family) -> bool:
    if family.row.even_layers_first:
        return window is not None and index % 2 == 0 and index < first
    return window is not None and index >= first


def _patterned(
    text: Mapping[str, Any], family: Family, window: int | None, count: int
) -> list[str]:
    """Layer types by a period: a key of the file, or the family's own."""
    for key, often in _INTERVALS.items():
        interval = text.get(key)
        if isinstance(interval, int) and not isinstance(interval, bool) and interval > 0:
            return [often if (i + 1) % interval else "full_attention" for i in range(count)]
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:  # EXAONE writes LLLG
        words = {"L": "sliding_attention", "G": "full_attention"}
        return [words.get(letter, "full_attention") for letter in _repeated(pattern, count)]
    if family.layer_types_depth not in (None, count):
        raise ConfigError(
            f"config.json has no layer_types, and the default of '{family.model_type}' holds for "
            f"{family.layer_types_depth} layers, not {count}."
        )
    if family.layer_types:
        types = _repeated(family.layer_types, count)
        if family.last_layer_type:
            types[-1] = family.last_layer_type
        return types
    return ["sliding_attention" if family.row.windowed and window else "full_attention"] * count


def _window(
    layer_type: str, window: int | None, text: Mapping[str, Any], family: Family
) -> int | None:
    if "sliding" in layer_type:
        return window
    if layer_type == "chunked_attention":
        chunk = family.value(text, "attention_chunk_size")
        return int(chunk) if chunk else None
    return None
