"""What transformers' classes default to, and the real exceptions among families.

`defaults.json` is collected from transformers (the census tests keep it true); the exceptions
below were read in its modelling code. A family without an exception is handled by structure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from ropepatch.errors import ConfigError

Block = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """One text model type, as transformers' config class sees it."""

    model_type: str
    known: bool = True
    """False for a model type that transformers does not ship (remote code)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Class defaults of the keys of `config.json` that matter here."""
    blocks: Mapping[str, Block | None] = field(default_factory=lambda: {"": {}})
    """Default `rope_parameters` by label: one block under "", or one per layer type."""
    theta_keys: tuple[tuple[str, str], ...] = (("rope_theta", ""),)
    """Top-level keys of older files that set a block's `rope_theta`: (key, label)."""
    partial_keys: tuple[str, ...] = ("partial_rotary_factor",)
    """Top-level keys of older files that set `partial_rotary_factor`."""
    honours_partial: bool = True
    """Whether its rotary class reads `partial_rotary_factor` under the default type."""
    theta_keys_if_scaled: tuple[tuple[str, str], ...] = ()
    """The same for keys that count only beside a `rope_scaling`."""
    theta_if_scaled: Mapping[str, float] = field(default_factory=dict)
    """`rope_theta` by label where a given block names none and it is not the default block's."""
    scaling_labels: tuple[str, ...] = ("",)
    """The blocks that an older file's `rope_scaling` goes into; empty where it is ignored."""
    layer_types: tuple[str, ...] = ()
    """Period of the default `layer_types`."""
    layer_types_depth: int | None = None
    """Number of layers `layer_types` is for, where it is a whole list instead of a period."""
    last_layer_type: str | None = None
    """What the class forces the last layer to be."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Our name of a key to the name its files use."""
    nope_period: tuple[int, ...] = ()
    """Period of the default `no_rope_layers` (1 turns, 0 does not)."""
    head_dim_required: bool = False
    """Its `head_dim` defaults to None, on which several of transformers' types crash."""
    row: "Exceptions" = field(default_factory=lambda: Exceptions())

    def __reduce__(self) -> tuple[Any, ...]:
        """By its name: read-only mappings cannot be copied or pickled."""
        return family_of, (self.model_type,)

    @property
    def per_layer_type(self) -> bool:
        """Whether `rope_parameters` holds one block per layer type."""
        return "" not in self.blocks

    @property
    def is_mla(self) -> bool:
        """Whether only a part of each head of its own turns (DeepSeek's MLA)."""
        return "qk_rope_head_dim" in self.defaults

    def value(self, text: Mapping[str, Any], key: str) -> Any:
        """What a config says under a key or its alias, else the class default.

        A null that is written out stays null.
        """
        for name in (key, self.aliases.get(key)):
            if name is not None and name in text:
                return text[name]
        return self.defaults.get(key)


@dataclass(frozen=True, kw_only=True)
class Exceptions:
    """What sets a family apart; the defaults say nothing does."""

    refused: str | None = None
    """Why no method can be written for it."""
    rope_types: tuple[str, ...] | None = None
    """The only types its classes read; None for all of transformers'."""
    unrotated: tuple[str, ...] = ()
    """Layer types that never turn."""
    unrotated_if_window: tuple[str, ...] = ()
    """Layer types that do not turn where `sliding_window` is set."""
    windowed: bool = False
    """Every layer attends by `sliding_window` when `layer_types` says nothing."""
    softmax_mscale: bool = False
    """Its attention multiplies the softmax scale by YaRN's mscale_all_dim squared (MLA)."""
    keeps: tuple[str, ...] = ()
    """Keys of the block that its attention reads whatever the type."""
    linear_trained: int | None = None
    """Tokens; the pretraining length where shipped files are scaled `linear`."""
    rotates_only_if: tuple[str, Any, Any] | None = None
    """A key of the config, the value under which it turns at all, and the default."""
    alpha_is_base: bool = False
    """A `dynamic` block with an alpha is a larger base at every length (HunYuan)."""
    even_layers_first: bool = False
    """Its window is on even layers below `max_window_layers`, not on those from there on."""
    one_pass: str | None = None
    """Why an input cannot be continued with a cache and stay what it was, in words."""
    indexer: Literal["first", "last", "still"] | None = None
    """Which features of its sparse attention's indexer keys turn."""
    norm_after: str | None = None
    """Attribute of its attention: a norm that keys go through after they were turned."""
    legacy_type_key: str = "rope_type"
    """The key older transformers wants for the type in `rope_scaling`."""


_PHI3 = Exceptions(rope_types=("default", "longrope"), windowed=True, legacy_type_key="type")
_MLA = Exceptions(softmax_mscale=True)
_MLA_INDEXED = Exceptions(softmax_mscale=True, indexer="first")
_MLA_INDEXED_LAST = Exceptions(softmax_mscale=True, indexer="last")
_GLOBAL_NOPE = Exceptions(unrotated=("full_attention",))
_WINDOW_NOPE = Exceptions(unrotated_if_window=("full_attention",))
_WINDOWED = Exceptions(windowed=True)
_OWN_TABLE = Exceptions(
    refused="its code turns by a fixed table of sinusoids and its config has no words for scaling"
)
_MISTRAL4 = Exceptions(
    softmax_mscale=True,
    rope_types=("linear", "dynamic", "yarn", "llama3", "longrope"),
    keeps=("partial_rotary_factor", "llama_4_scaling_beta", "original_max_position_embeddings"),
)
_CUT = Exceptions(rope_types=("default", "linear", "dynamic", "yarn", "llama3", "longrope"))
"""Its attention cuts heads by partial_rotary_factor, another thing under `proportional`."""
_PER_LAYER = Exceptions(refused="its config gives every layer a rope_theta of its own")
_DEFAULT_ONLY = Exceptions(rope_types=("default",))
_ALPHA = Exceptions(alpha_is_base=True, norm_after="key_layernorm")

EXCEPTIONS: dict[str, Exceptions] = {
    "afmoe": _GLOBAL_NOPE,
    "axk1": _MLA,
    "axk2": _MLA_INDEXED,
    "bailing_hybrid": _MLA,
    "codegen": _OWN_TABLE,
    "cohere2": _GLOBAL_NOPE,
    "cohere2_moe": Exceptions(
        refused="its global layers turn in the dense first layers only, which its config mixes"
    ),
    "diffusion_gemma_text": Exceptions(
        one_pass="its decoder reads what its encoder has cached at one go"
    ),
    "dots3_note_text": Exceptions(
        rope_types=("default", "linear", "dynamic", "yarn", "llama3"), indexer="first"
    ),
    "dory": Exceptions(refused="its config lists attention and MLP halves as layers"),
    "doge": _WINDOWED,
    "cosmos3_edge_text": _DEFAULT_ONLY,
    "dbrx": Exceptions(
        refused="its rope_theta stands in attn_config, where transformers 5 does not read it"
    ),
    "deepseek_v4": Exceptions(
        refused="its layers turn queries and compressed keys by two schedules at once"
    ),
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "deepseek_v32": _MLA_INDEXED,
    "ernie4_5_vl_moe_text": Exceptions(
        refused="its code deals the pairs out among three axes, so they cannot be read back"
    ),
    "evolla": Exceptions(
        refused="no auto class of transformers builds it, so nothing could prove it"
    ),
    "exaone4": _WINDOW_NOPE,
    "exaone_moe": _WINDOW_NOPE,
    "gemma3_text": Exceptions(linear_trained=32768),  # arXiv:2503.19786, section 2.1
    "falcon": Exceptions(rotates_only_if=("alibi", False, False)),
    "flint": _GLOBAL_NOPE,
    "glm4_moe_lite": _MLA,
    "glm_moe_dsa": _MLA_INDEXED,
    "gptj": _OWN_TABLE,
    "gpt_neox_japanese": _CUT,
    "granite_swa": _PER_LAYER,
    "granitemoe_swa": _PER_LAYER,
    "granitemoehybrid": Exceptions(rotates_only_if=("position_embedding_type", "rope", None)),
    "hunyuan_v1_dense": _ALPHA,
    "hunyuan_v1_moe": _ALPHA,
    "hunyuan_vl_text": _ALPHA,
    "hy_v4": _MLA_INDEXED_LAST,
    "hy_v4_vl_text": _MLA_INDEXED_LAST,
    "kolibri1": _WINDOW_NOPE,
    "lara_mini": _GLOBAL_NOPE,
    "llama4_text": Exceptions(norm_after="qk_norm"),
    "longcat_flash": _MLA,
    "minicpm3": _MLA,
    "minimax": _WINDOWED,
    "muse_glimmer_text": _PER_LAYER,
    "muse_spark_text": _PER_LAYER,
    "ministral3": Exceptions(
        keeps=("llama_4_scaling_beta", "original_max_position_embeddings"), windowed=True
    ),
    "mistral": _WINDOWED,
    "mistral4": _MISTRAL4,
    "mistral_large4_text": _MLA,
    "mixtral": _WINDOWED,
    "moshi": Exceptions(one_pass="its full pass looks beyond the window that its cache keeps"),
    "nanochat": Exceptions(norm_after="k_norm"),
    "persimmon": _CUT,
    "phi": _CUT,
    "phi3": _PHI3,
    "phi4_multimodal": _PHI3,
    "phimoe": Exceptions(rope_types=("default",), windowed=True),
    "qwen2_moe": Exceptions(even_layers_first=True),
    "qwen3_moe": _WINDOWED,
    "qwen4_exp_text": Exceptions(indexer="still"),
    "recurrent_gemma": Exceptions(
        refused="its attention sees a fixed window and its config names no length to extend"
    ),
    "sarvam_mla": _MLA,
    "stablelm": _CUT,
    "starcoder2": _WINDOWED,
    "t5gemma2_decoder": Exceptions(
        refused="it is half of an encoder-decoder, whose two halves turn by a config each"
    ),
    "unlimited_ocr_text": Exceptions(
        one_pass="its window is counted from the end of the first input"
    ),
    "youtu": _MLA,
    "zamba2": Exceptions(rotates_only_if=("use_mem_rope", True, False)),
}


@cache
def _collected() -> dict[str, Any]:
    text = (resources.files("ropepatch.families") / "defaults.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _labels(entry: str | list[str] | None) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def text_type(model_type: str) -> str:
    """The model type of a composite model's text part; itself where it has none."""
    return str(_collected()["text_types"].get(model_type, model_type))


def is_family(model_type: str) -> bool:
    """Whether the model type is a text model with rotary embeddings that we know."""
    return model_type in _collected()["families"]


@cache
def family_of(model_type: str) -> Family:
    """The family called `model_type`; an unknown one gets the common defaults.

    Raises:
        ConfigError: transformers ships it and it has no rotary position embeddings.
    """
    data = _collected()
    if model_type in data["without_rope"]:
        raise ConfigError(
            f"models of type '{model_type}' have no rotary position embeddings, so there is "
            "nothing to extend; use a model with RoPE (LLaMA, Mistral, Qwen, Gemma, ...)."
        )
    entry = data["families"].get(model_type)
    if entry is None:
        return Family(model_type, known=False)
    row = EXCEPTIONS.get(model_type, Exceptions())
    if row.refused:  # its class may have no words to collect
        return Family(model_type, row=row)
    return Family(
        model_type=model_type,
        defaults=MappingProxyType(entry),
        blocks=MappingProxyType(entry["blocks"] or {"": {}}),
        theta_keys=tuple((key, label) for key, label in entry["theta_keys"]),
        theta_keys_if_scaled=tuple((k, v) for k, v in entry.get("theta_keys_if_scaled", ())),
        partial_keys=tuple(entry["partial_keys"]),
        honours_partial=entry["honours_partial"],
        theta_if_scaled=MappingProxyType(entry.get("theta_if_scaled", {})),
        scaling_labels=_labels(entry["scaling_label"]),
        layer_types=tuple(entry.get("layer_types") or entry.get("layer_types_list") or ()),
        layer_types_depth=len(entry["layer_types_list"]) if "layer_types_list" in entry else None,
        aliases=MappingProxyType(entry.get("aliases", {})),
        last_layer_type=entry.get("layer_types_last"),
        nope_period=tuple(entry.get("nope_period") or ()),
        head_dim_required=bool(entry.get("head_dim_required")),
        row=row,
    )
