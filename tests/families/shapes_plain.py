"""Published `config.json` files of models with one schedule for all layers.

Only what bears on positions, and the sizes, is kept. Numbers are as published; where one is not
certain, a comment says so.
"""

from typing import Any

Shape = dict[str, Any]

# Phi-3-mini-128k's lists (the update of June 2024), rounded to two decimals.
PHI3_LONG = [
    *(1.07, 1.12, 1.15, 1.42, 1.57, 1.80, 2.13, 2.13, 3.01, 5.91, 6.95, 9.07),
    *(9.93, 10.71, 11.13, 14.61, 15.41, 19.81, 37.28, 38.28, 38.60, 40.12, 46.20, 50.94),
    *(53.66, 54.94, 56.90, 57.29, 59.99, 60.87, 60.89, 61.72, 62.92, 62.96, 63.42, 63.82),
    *(63.84, 63.90, 63.94, 64.07, 64.11, 64.12, 64.15, 64.19, 64.24, 64.57, 64.69, 64.76),
]
PHI3_SHORT = [
    *(1.1, 1.1, 1.1, 1.3, 1.35, 1.35, 1.4, 1.55),
    *(2.0,) * 17,
    *(2.05,) * 6,
    *(2.1, 2.1, 2.15),
    *(2.25,) * 5,
    *(2.4, 2.45, 2.5, 2.7, 2.7, 2.75, 2.8, 2.9, 3.05),
]

LLAMA: dict[str, Shape] = {
    "llama-2-7b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "num_hidden_layers": 32,
        "max_position_embeddings": 4096,
        "rope_scaling": None,  # and no rope_theta: the file is older than the key
        "vocab_size": 32000,
        "transformers_version": "4.31.0.dev0",
    },
    "llama-3-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "max_position_embeddings": 8192,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "vocab_size": 128256,
        "transformers_version": "4.40.0.dev0",
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "vocab_size": 128256,
        "transformers_version": "4.43.0.dev0",
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "head_dim": 64,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 16,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
        "transformers_version": "4.45.0.dev0",
    },
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "num_hidden_layers": 30,
        "max_position_embeddings": 8192,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "vocab_size": 49152,
        "transformers_version": "4.40.1",
    },
}

MISTRAL: dict[str, Shape] = {
    "mistral-7b-v0.1": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "max_position_embeddings": 32768,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "vocab_size": 32000,
        "transformers_version": "4.34.0.dev0",
    },
    "mistral-7b-v0.3": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "vocab_size": 32768,
        "transformers_version": "4.42.0.dev0",
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "vocab_size": 32000,
        "transformers_version": "4.36.0.dev0",
    },
}

PHI: dict[str, Shape] = {
    "phi-3-mini-4k": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "num_hidden_layers": 32,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": 2047,
        "vocab_size": 32064,
        "transformers_version": "4.40.2",
    },
    "phi-3-mini-128k": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "num_hidden_layers": 32,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {
            "long_factor": PHI3_LONG,
            "short_factor": PHI3_SHORT,
            "type": "longrope",
        },
        "rope_theta": 10000.0,
        "sliding_window": 262144,
        "vocab_size": 32064,
        "transformers_version": "4.40.2",
    },
}

PLAIN = LLAMA | MISTRAL | PHI
