"""A model of every family, small enough to run in a moment: what its class does, not a skeleton.

`smallest` keeps the widths of a class. Here they shrink, and the rotary structure stays: the
share of a head that turns, the axes, a base per layer type, layers that do not turn.
"""

import copy
from typing import TYPE_CHECKING, Any

from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)
from transformers.models.auto import modeling_auto as auto

from tests.families.census import Config, smallest
from tests.tiny import TRAINED, fill

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

HEADS = 4
HEAD = 32
"""Features of a head, all of which turn unless the family says otherwise: 16 pairs."""

WINDOW = 64

_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

_SIZES: dict[str, int] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": TRAINED,
    "original_max_position_embeddings": TRAINED,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "query_pre_attn_scalar": HEAD,
    "sliding_window": WINDOW,
    "attention_chunk_size": WINDOW,
    "local_attention": WINDOW,
    # experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "zero_expert_num": 2,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_group": 2,
    "num_expert_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "moe_num_shared_experts": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_experts_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "expert_ffn_hidden_size": 16,
    "share_expert_dim": 16,
    "dense_intermediate_size": 96,
    "intermediate_size_mlp": 96,
    "ffn_hidden_size": 96,
    "ffn_dim": 96,
    # latent and indexed attention
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "index_head_dim": 32,
    "index_n_heads": 16,  # fewer, and ties at zero decide which tokens are read
    "index_topk": WINDOW,
    "index_block_size": 16,
    "index_topk_blocks": 4,
    "indexer_head_dim": 32,
    "indexer_n_heads": 16,
    # state spaces, linear attention and the rest
    "mamba_d_state": 16,
    "mamba_n_heads": 4,
    "mamba_d_head": 64,
    "mamba_d_ssm": 256,
    "mamba_chunk_size": 32,
    "chunk_size": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 128,
    "adapter_rank": 8,
    "laurel_rank": 8,
    "hc_lowrank": 8,
    "ple_embed_dim": 16,
}
"""What a key becomes where the class has a value for it."""

_TOWER: dict[str, Any] = {
    **dict.fromkeys(["depth", "num_blocks", "num_hidden_layers", "encoder_layers"], 1),
    **dict.fromkeys(["num_heads", "num_attention_heads", "encoder_attention_heads"], 2),
    **dict.fromkeys(["hidden_size", "embed_dim", "d_model", "encoder_hidden_size"], 64),
    **dict.fromkeys(["out_hidden_size", "output_dim"], 64),
    **dict.fromkeys(["intermediate_size", "encoder_ffn_dim", "mlp_dim"], 32),
    **dict.fromkeys(["ext_pw_out_channel", "depthwise_separable_out_channel"], 32),
    **dict.fromkeys(["output_channels", "downsample_hidden_size", "nemo_conv_channels"], 8),
    **dict.fromkeys(["num_embeddings", "codebook_size", "position_embedding_size"], 16),
    **dict.fromkeys(["image_size", "crop_size"], 56),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 8,
    "num_mel_bins": 8,
    "base_channels": 32,
    "latent_channels": 4,
    "num_res_blocks": 1,
    "channel_multiplier": [1],
    "attn_resolutions": [],
    "downsample_channels": [8, 8],
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0],
    "global_attn_indexes": [0],
}
"""The same for what looks and listens; it is built and never run."""

_MIXED = ["full_attention", "sliding_attention"] * 2
_PLAIN: Config = {"rope_type": "default", "rope_theta": 1e4}


def _axes(sections: list[int], **words: Any) -> Config:
    """Three axes or four, in the proportions of the class."""
    return {"rope_parameters": {**_PLAIN, **words, "mrope_section": sections}}


_OWN: dict[str, Config] = {
    "bailing_hybrid": {"max_position_embeddings": TRAINED},
    "cohere_compass_text": {
        "layer_types": _MIXED,
        "rope_parameters": {
            layer_type: {**_PLAIN, "mrope_section": [6, 5, 5]} for layer_type in _MIXED
        },
    },
    "cosmos3_edge_text": _axes([6, 5, 5], rope_theta=1e8),
    "deepseek_ocr2_text": {"hidden_size": HEADS * HEAD},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "diffusion_gemma_text": {"global_head_dim": 64},
    "dots3_note_text": {
        "num_hidden_layers": 4,
        "layer_types": ["indexed_attention"] * 2 + ["sliding_attention"] * 2,
        "head_dim": 32,
        "swa_num_attention_heads": HEADS,
        "swa_num_key_value_heads": HEADS,
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 16,
        "swa_head_dim": 32,
        "swa_qk_nope_head_dim": 16,
        "swa_v_head_dim": 16,
    },
    "flint": {
        "num_hidden_layers": 4,
        "layer_types": ["full_attention"] * 2 + ["sliding_attention", "full_attention"],
    },
    "gemma4_text": {"global_head_dim": 64},
    "gemma4_unified_text": {"global_head_dim": 64},
    "glm4v_moe_text": _axes([2, 3, 3], partial_rotary_factor=0.5),
    "glm4v_text": _axes([2, 3, 3]),
    "glm_ocr_text": _axes([4, 6, 6]),
    "helium": {"hidden_size": HEADS * HEAD},
    "hrm_text": {"num_hidden_layers": 1},
    "hunyuan_vl_text": _axes([4, 4, 4, 4]),
    "hy_v4_vl_text": _axes([4, 2, 2]),
    "jetmoe": {"kv_channels": HEAD},
    "laguna": {"layer_types": _MIXED},
    "lfm3": {
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "sliding_attention", "full_attention"],
    },
    "mellum": {"layer_types": _MIXED},
    "mimo_v2_flash": {
        "num_hidden_layers": 4,
        "layer_types": _MIXED,
        "head_dim": 48,
        "v_head_dim": 32,
    },
    "paddleocr_vl_text": _axes([4, 6, 6], rope_theta=5e5),
    "qwen2_5_omni_text": _axes([4, 6, 6], rope_theta=1e6),
    "qwen2_5_vl_text": _axes([4, 6, 6], rope_theta=1e6),
    "qwen2_vl_text": _axes([4, 6, 6], rope_theta=1e6),
    "qwen3_5_moe_text": _axes([2, 1, 1], partial_rotary_factor=0.25),
    "qwen3_5_text": _axes([2, 1, 1], partial_rotary_factor=0.25),
    "qwen3_omni_moe_text": _axes([6, 5, 5], rope_theta=1e6),
    "qwen3_vl_moe_text": _axes([6, 5, 5], rope_theta=5e5),
    "qwen3_vl_text": _axes([6, 5, 5], rope_theta=5e5),
    "step3p5": {"layer_types": _MIXED, "sliding_window": WINDOW},
    "unlimited_ocr_text": {"hidden_size": HEADS * HEAD},
    "youtu": {"pad_token_id": None},  # a reload zeroes the embedding of a padding token
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {
        "num_experts_per_tok": 1,
        "layer_types": ["hybrid", "hybrid_sliding"] * 2,
        "sliding_window": WINDOW,
    },
}
"""What a family needs beside that."""

_PARENT: dict[str, Config] = {"diffusion_gemma_text": {"canvas_length": 8}}

NOT_RUN: dict[str, str] = {}
"""Families that cannot be run small on text alone, and why."""


def small(family: str) -> Config:
    """The config.json of a tiny model of this family."""
    whole = copy.deepcopy(smallest(family))
    text: Config = whole.get("text_config", whole)
    own = _default(text)
    text |= {key: size for key, size in _SIZES.items() if own.get(key) is not None}
    if own.get("qk_rope_head_dim"):
        text["num_key_value_heads"] = HEADS
        if own.get("head_dim") == own["qk_rope_head_dim"]:
            text["head_dim"] = text["qk_rope_head_dim"]
    elif not own.get("head_dim"):  # it follows from the width
        text["hidden_size"] = HEADS * HEAD
    block = own["rope_parameters"]
    if "original_max_position_embeddings" in block:
        shorter = {
            "factor": 4.0,
            "original_max_position_embeddings": TRAINED // 4,
            "max_position_embeddings": TRAINED,
        }
        text["rope_parameters"] = block | {k: v for k, v in shorter.items() if k in block}
    text |= _ENDS | _OWN.get(family, {})
    return whole | _towers(_default(whole)) | _PARENT.get(family, {})


def _default(config: Config) -> Config:
    """What the class makes of these words."""
    words = {key: value for key, value in config.items() if key != "model_type"}
    default: Config = CONFIG_MAPPING[config["model_type"]](**words).to_dict()
    return default


def _towers(config: Config) -> Config:
    """The parts of a composite other than its text model, shrunk."""
    found: Config = {}
    for name, part in config.items():
        if name != "text_config" and isinstance(part, dict) and "model_type" in part:
            sizes = {key: size for key, size in _TOWER.items() if part.get(key) is not None}
            found[name] = sizes | _towers(part)
    return found


def build(family: str, seed: int = 0) -> "PreTrainedModel":
    """A filled float32 model of this family, in evaluation mode."""
    config = small(family)
    kind = config["model_type"]
    if kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        model_class: Any = AutoModelForCausalLM
    elif kind in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        model_class = AutoModelForImageTextToText
    else:
        model_class = AutoModel
    model: PreTrainedModel = model_class.from_config(AutoConfig.for_model(**config))
    plain = [p for p in model.parameters() if p.ndim == 1 and bool((p == 1).all())]
    fill(model, seed)
    if "gemma" in model.config.model_type:
        for scale in plain:  # `fill` centres all norms of Gemma on 0; later ones do not add the 1
            scale.data += 1
    return model


def logits(model: "PreTrainedModel", ids: "Tensor", **words: Any) -> "Tensor":
    """Logits of every position, (B, S, vocab); where there is no head, the last hidden states."""
    import torch

    if model.config.model_type == "idefics":  # it insists on an image; nobody looks at this one
        words["image_encoder_embeddings"] = torch.zeros(len(ids), 1, 1, 64)
        words["image_attention_mask"] = torch.zeros(*ids.shape, 1)
    with torch.no_grad():
        found = model(input_ids=ids, **words)
    names = ("encoder_last_hidden_state", "logits", "last_hidden_state")
    values: Tensor = next(found[name] for name in names if name in found)
    return values  # where there is an encoder, the logits are of a canvas drawn at random
