"""The same config.json with the same positions, for a model small enough to build in a moment."""

import copy
from typing import Any

Shape = dict[str, Any]

DEPTHS = {"gemma3": 6, "gemma3_text": 6, "gemma4": 5, "gemma4_text": 5}
"""Layers that show every type once, where four do not."""

_LISTS = ("layer_types", "no_rope_layers")

_SIZES: dict[str, int] = {
    "intermediate_size": 32,
    "intermediate_size_mlp": 32,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "experts_per_token": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 64,
    "num_kv_shared_layers": 0,
}
"""What a key becomes where the file has it."""

_VISION: dict[str, dict[str, Any]] = {
    "gemma3": {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2},
    "llama4": {
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "projector_input_dim": 32,
        "projector_output_dim": 32,
        "vision_output_dim": 32,
    },
    "mistral3": {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2},
    "qwen2_5_vl": {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "fullatt_block_indexes": [0],
    },
}


def tiny(shape: Shape) -> Shape:
    """A config with two heads and few layers; head widths, bases, lengths and windows stay."""
    small = copy.deepcopy(shape)
    text = small["text_config"] if isinstance(small.get("text_config"), dict) else small
    model_type = small["model_type"]
    depth = min(DEPTHS.get(model_type, 4), text["num_hidden_layers"])
    for key in _LISTS:
        if text.get(key):
            text[key] = text[key][:depth]
    if text.get("per_layer_config"):
        own = text["per_layer_config"].items()
        text["per_layer_config"] = {i: words for i, words in own if int(i) < depth}
    layered = any(text.get(key) for key in (*_LISTS, "sliding_window_pattern"))
    text["num_hidden_layers"] = depth if layered or text is not small else 2
    for key in text.keys() & _SIZES.keys():
        text[key] = _SIZES[key]
    if text.get("head_dim") or model_type == "gemma3" or text.get("qk_rope_head_dim"):
        text["hidden_size"] = 64
    else:
        text["hidden_size"] = 2 * (text["hidden_size"] // text["num_attention_heads"])
    text["num_attention_heads"] = 2
    if "num_key_value_heads" in text or model_type == "gemma3":
        text["num_key_value_heads"] = 2 if text.get("qk_rope_head_dim") else 1
    text |= {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if isinstance(small.get("vision_config"), dict):
        small["vision_config"] |= {"num_hidden_layers": 1} | _VISION[model_type]
        if model_type == "qwen2_5_vl":
            small["vision_config"]["out_hidden_size"] = text["hidden_size"]
        for token in ("image_token_id", "video_token_id", "image_token_index"):
            small[token] = 3
    return small
