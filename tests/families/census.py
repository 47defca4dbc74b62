"""The smallest config.json of every family in `defaults.json`: its class defaults, few layers."""

import json
from importlib import resources
from typing import Any

from transformers.models.auto import modeling_auto

Config = dict[str, Any]

DEFAULTS: dict[str, Any] = json.loads(
    (resources.files("ropepatch.families") / "defaults.json").read_text(encoding="utf-8")
)
FAMILIES: dict[str, Config] = DEFAULTS["families"]

BUILDABLE = {
    *modeling_auto.MODEL_MAPPING_NAMES,
    *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    *modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}

_MIXED = ["linear_attention", "full_attention"] * 2
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}

NEEDS: dict[str, Config] = {
    "bailing_hybrid": {"layer_types": ["linear_attention", "full_attention"] * 3},
    "bamba": {"attn_layer_indices": [1, 3]},
    "chameleon": {"vocabulary_map": {"<image>": 3}},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _PLAIN, "sliding_attention": _PLAIN}
    },
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense"] * 4},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128},
    "glm4v_text": {"partial_rotary_factor": 0.5},
    "granitemoehybrid": {"layer_types": _MIXED, "position_embedding_type": "rope"},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl_text": {
        "head_dim": 128,
        "rope_parameters": {**_PLAIN, "mrope_section": [16, 16, 16, 16]},
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "qwen4_exp_text": {
        "indexer_budget": 64,
        "indexer_compress_ratio": 16,
        "indexer_head_dim": 256,
        "indexer_kv_heads": 1,
        "indexer_n_heads": 4,
    },
    "zamba2": {"use_mem_rope": True},
}
"""What a class has no working default for, by family; as its published models have it."""


def smallest(family: str) -> Config:
    """A config of this family, inside a composite where it has no model of its own."""
    entry = FAMILIES[family]
    text: Config = {"model_type": family}
    if "layer_types_list" not in entry:  # those defaults hold for one depth only
        text["num_hidden_layers"] = max(4, len(entry.get("layer_types", ())))
    text |= NEEDS.get(family, {})
    parents = [p for p, own in DEFAULTS["text_types"].items() if own == family and p in BUILDABLE]
    if family in BUILDABLE or not parents:
        return text
    whole = {"model_type": parents[0], "text_config": text}
    if family == "granite4_vision_text":
        whole |= {"deepstack_layer_map": [[0, 0]], "downsample_rate": "1/4"}
    return whole
