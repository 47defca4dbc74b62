"""What becomes of each shape under each method: it works, or it is refused for a reason.

Written by hand. "Works" means proven: transformers reads from the written file what the method
computes. The rows are for recipes with the parameters below and `replace=True`.
"""

from dataclasses import dataclass
from typing import Any

from ropepatch.errors import GeometryError, NoEffectError, NotExpressibleError, RopepatchError


@dataclass(frozen=True)
class Refused:
    """By which class, and a word its message must hold."""

    error: type[RopepatchError]
    word: str


Outcome = Refused | None
"""None: it works."""

FACTOR = 4.0


def parameters(method: str, pairs: int) -> dict[str, Any]:
    """A recipe's words for a head of so many pairs."""
    if method == "longrope":
        return {"factor": FACTOR, "long_factor": [1 + i / 8 for i in range(pairs)]}
    if method == "p-rope":
        return {"factor": FACTOR, "keep": 0.5}
    return {"factor": FACTOR}


WORKS: dict[str, Outcome] = {
    "yarn": None,
    "pi": None,
    "ntk": None,
    "dynamic-ntk": None,
    "dynamic-yarn": Refused(NotExpressibleError, "no type for a YaRN that follows the length"),
    "ntk-by-parts": None,
    "llama3": None,
    "longrope": None,
    "p-rope": None,
}

YARN_ALREADY = WORKS | {"yarn": Refused(NoEffectError, "nothing would change")}
"""By the very factor that is asked for."""

PARTIAL = WORKS | {"p-rope": Refused(GeometryError, "partial_rotary_factor, another thing")}
"""Only the first channels of a head turn, so there is no half of them to stop."""

STOPPED = WORKS | {
    "yarn": Refused(NotExpressibleError, "stand still"),
    "dynamic-ntk": Refused(NotExpressibleError, "stand still"),
    "ntk-by-parts": Refused(NotExpressibleError, "stand still"),
    "llama3": Refused(NotExpressibleError, "stand still"),
    "longrope": Refused(NotExpressibleError, "stand still"),
    "p-rope": Refused(NoEffectError, "nothing would change"),
}
"""Three quarters of the pairs were pretrained at zero; a half of them cannot stop once more."""

PHI = WORKS | {
    "yarn": Refused(NotExpressibleError, "reads only the rope_type default and longrope"),
    "pi": Refused(NotExpressibleError, "reads only the rope_type default and longrope"),
    "dynamic-ntk": Refused(NotExpressibleError, "reads only the rope_type default and longrope"),
    "ntk-by-parts": Refused(NotExpressibleError, "reads only the rope_type default and longrope"),
    "llama3": Refused(NotExpressibleError, "reads only the rope_type default and longrope"),
    "p-rope": Refused(NotExpressibleError, "reads only the rope_type default and longrope"),
}

WINDOWED: dict[str, Outcome] = dict.fromkeys(WORKS, Refused(NoEffectError, "Widen that window"))
"""No layer that turns could see further, so a recipe has to say `layers: all`."""

OUTCOMES: dict[str, dict[str, Outcome]] = {
    "llama-2-7b": WORKS,
    "llama-3-8b": WORKS,
    "llama-3.1-8b": WORKS,
    "llama-3.2-1b": WORKS,
    "smollm2-135m": WORKS,
    "mistral-7b-v0.1": WINDOWED,
    "mistral-7b-v0.3": WORKS,
    "mixtral-8x7b": WORKS,
    "qwen2-7b": WORKS,
    "qwen2.5-7b-instruct": WORKS,
    "qwen2.5-7b-yarn": YARN_ALREADY,
    "qwen2.5-vl-7b": WORKS,
    "qwen3-8b": WORKS,
    "qwen3-30b-a3b": WORKS,
    "phi-3-mini-4k": WINDOWED,
    "phi-3-mini-128k": PHI,  # its window is wider than the length it was trained on
    "stablelm-2-1.6b": PARTIAL,
    "pythia-1.4b": PARTIAL,
    "glm-4-9b-0414": PARTIAL,
    "falcon-7b": WORKS,
    "olmo-2-7b": WORKS,
    "granite-3.0-8b": WORKS,
    "hunyuan-7b-instruct": WORKS,
    "deepseek-v3": WORKS,
    "gemma-2-9b": WORKS,
    "gemma-3-1b": WORKS,
    "gemma-3-4b": WORKS,
    "gemma-4-e2b": STOPPED,
    "olmo-3-7b": WORKS,
    "smollm3-3b": WORKS,
    "command-r7b": WINDOWED,
    "llama-4-scout": WINDOWED,
    "llama-4-scout-instruct": WINDOWED,
    "gpt-oss-20b": WORKS,
    "ministral-3-8b": WORKS,
    "llama-3.1-8b-v5": WORKS,
    "mistral-7b-v0.1-v5": WINDOWED,
    "mixtral-8x7b-v5": WORKS,
    "qwen2.5-7b-yarn-v5": YARN_ALREADY,
    "qwen2.5-vl-7b-v5": WORKS,
    "phi-3-mini-128k-v5": PHI,
    "pythia-1.4b-v5": PARTIAL,
    "deepseek-v3-v5": WORKS,
    "gemma-3-1b-v5": WORKS,
    "gemma-3-4b-v5": WORKS,
    "gemma-4-e2b-v5": STOPPED,
    "olmo-3-7b-v5": WORKS,
    "smollm3-3b-v5": WORKS,
}
"""With `layers: auto`."""

FORCED: dict[str, dict[str, Outcome]] = {
    "mistral-7b-v0.1": WORKS,
    "mistral-7b-v0.1-v5": WORKS,
    "phi-3-mini-4k": PHI,
    "gemma-3-1b": WORKS,
    "gemma-3-1b-v5": WORKS,
    "gemma-4-e2b": STOPPED,
    "olmo-3-7b": WORKS,
    "command-r7b": WORKS,
    "llama-4-scout": WORKS,
    "llama-4-scout-instruct": WORKS,
}
"""With `layers: all`, where that makes a difference."""

V4_WORDS: dict[str, Refused] = {
    "p-rope": Refused(NotExpressibleError, "knows no rope_type 'proportional'"),
    "gemma-4-e2b": Refused(NotExpressibleError, "reads no rope_scaling of transformers 4"),
    "gemma-4-e2b-v5": Refused(NotExpressibleError, "reads no rope_scaling of transformers 4"),
}
"""By method or by shape: what works but has no words in transformers 4, alone or beside v5's."""

SCALED = (
    "llama-3.1-8b",
    "llama-3.2-1b",
    "qwen2.5-7b-yarn",
    "phi-3-mini-128k",
    "deepseek-v3",
    "gemma-3-4b",
    "olmo-3-7b",
    "gpt-oss-20b",
    "ministral-3-8b",
    "llama-3.1-8b-v5",
    "qwen2.5-7b-yarn-v5",
    "phi-3-mini-128k-v5",
    "deepseek-v3-v5",
    "gemma-3-4b-v5",
    "olmo-3-7b-v5",
)
"""Already scaled on the layers that a recipe would change."""
