"""What llama.cpp does with rotary metadata, architecture by architecture.

Read off llama.cpp's sources at the revision `LLAMA_CPP` names: which models ask for per-pair
factors *and* hand them to their rotation (falcon-h1, llada and pangu-embedded load the tensor and
never use it), and what becomes of layers with a window.
"""

from dataclasses import dataclass
from typing import Literal

from ropepatch.errors import NotExpressibleError

LLAMA_CPP = "llama.cpp 0c1e57098 (2026-10), as in llama-cpp-python 0.3.36"
"""What the tables here and the arithmetic in `rotation` were read from and tried with."""

Factors = Literal["freqs", "long", "both"]
"""Per-pair factors an architecture reads: one tensor `rope_freqs`, or a long and a short one."""


@dataclass(frozen=True)
class Architecture:
    """How one architecture turns in llama.cpp."""

    factors: Factors | None = None
    windowed: Literal["same", "own"] = "same"
    """Layers with a window turn as the others do, or by a base and a scale of their own."""
    betas: bool = False
    """Whether YaRN's ends of the ramp are read from the file."""
    refused: str | None = None
    """Why its metadata are not rewritten, in words that follow "llama.cpp"."""

    @property
    def reads_freqs(self) -> bool:
        """Whether one tensor of factors serves every length."""
        return self.factors in ("freqs", "both")

    @property
    def reads_long(self) -> bool:
        """Whether a long and a short tensor are told apart by the size of the context."""
        return self.factors in ("long", "both")


_LATENT = "scales the softmax of latent attention by the rotary factor even without YaRN"
_STILL = "turns only the layers that have a window, so no change lengthens its reach"
NO_ROPE = "does not turn by RoPE"

_PLAIN = (
    "arctic baichuan bailingmoe bailingmoe2 bitnet chatglm codeshell command-r dbrx deepseek dots1 "
    "dream ernie4_5 ernie4_5-moe falcon falcon-h1 gemma glm4 glm4moe gptneox grovemoe internlm2 "
    "jais2 lfm2 lfm2moe llada llada-moe maincoder minimax-m2 nemotron olmo olmoe openelm orion "
    "pangu-embedded phi2 plamo plamo2 qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3next qwen3vl "
    "qwen3vlmoe qwen35 qwen35moe rnd1 seed_oss smollm3 stablelm starcoder2 xverse gemma2 gpt-oss"
)

_REFUSED = {
    _LATENT: "deepseek2 deepseek2-ocr deepseek32 deepseek4 glm-dsa mistral4 minicpm3 plm",
    _STILL: "cohere2 cohere2moe exaone4 exaone-moe llama4 smallthinker",
    NO_ROPE: (
        "arwkv7 bert bloom gpt2 gptj jais jamba jina-bert-v2 kimi-linear mamba mamba2 mpt "
        "nemotron_h nemotron_h_moe refact rwkv6 rwkv6qwen2 rwkv7 t5 t5encoder"
    ),
}

ARCHITECTURES: dict[str, Architecture] = {
    **{name: Architecture() for name in _PLAIN.split()},
    **{name: Architecture("both") for name in ("llama", "llama-embed", "deci")},
    "mistral3": Architecture("both", betas=True),
    **{name: Architecture("both") for name in ("apertus", "granite", "granitemoe", "minicpm")},
    **{name: Architecture("freqs") for name in ("arcee", "exaone", "nanbeige")},
    **{name: Architecture("long") for name in ("phi3", "phimoe")},
    **{name: Architecture(windowed="own") for name in ("gemma3", "gemma3n", "olmo2")},
    **{
        name: Architecture(refused=why) for why, names in _REFUSED.items() for name in names.split()
    },
}
"""By the word under `general.architecture`."""


def architecture_of(name: str) -> Architecture:
    """The row of an architecture.

    Raises:
        NotExpressibleError: it is not in the table, or refused there by name.
    """
    row = ARCHITECTURES.get(name)
    if row is None:
        raise NotExpressibleError(
            f"what llama.cpp does with the rotary metadata of '{name}' is not known here; extend "
            "the model's safetensors and convert them with llama.cpp's convert_hf_to_gguf.py."
        )
    if row.refused is not None:
        raise NotExpressibleError(
            f"llama.cpp {row.refused} ('{name}'), so metadata cannot extend it."
        )
    return row
