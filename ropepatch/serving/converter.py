"""What llama.cpp's convert_hf_to_gguf.py keeps of an extension, class by class.

Source: the package `conversion` of llama.cpp at the revision `gguf_file.architectures.LLAMA_CPP`
names; its classes were run on default configs with every kind of block, in both dialects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ropepatch.methods.yarn import Yarn
from ropepatch.serving.served import ServedModel
from ropepatch.serving.yarn_words import own_temperature, usual_ramp


@dataclass(frozen=True)
class Conversion:
    """What becomes of one model type."""

    architecture: str
    """The word under `general.architecture`."""
    theta: bool = True
    """Whether rope_theta is written; 10,000 counts otherwise."""
    scaled: bool = True
    """Whether `linear` and `yarn` are written."""
    llama3: bool = False
    longrope: bool = False
    stops_at_llama3: bool = False


def _alike(names: str, row: Conversion) -> dict[str, Conversion]:
    """The same for several; a name stands for its architecture where it has no other."""
    return {n: replace(row, architecture=row.architecture or n) for n in names.split()}


CONVERSIONS: Mapping[str, Conversion] = {
    **_alike("llama mistral mixtral", Conversion("llama", llama3=True)),
    **_alike("apertus arcee", Conversion("", llama3=True)),
    **_alike("qwen2 qwen3 olmo olmoe starcoder2 seed_oss glm4 ernie4_5 smollm3", Conversion("")),
    **_alike("olmo2 olmo3", Conversion("olmo2")),
    "qwen2_moe": Conversion("qwen2moe"),
    "qwen3_moe": Conversion("qwen3moe"),
    **_alike("granite granitemoe", Conversion("", stops_at_llama3=True)),
    "glm4_moe": Conversion("glm4moe"),
    "gpt_oss": Conversion("gpt-oss"),
    "ernie4_5_moe": Conversion("ernie4_5-moe"),
    "gemma3_text": Conversion("gemma3"),
    "gemma3n_text": Conversion("gemma3n"),
    "phi3": Conversion("phi3", scaled=False, longrope=True),
    "gemma": Conversion("gemma", theta=False, scaled=False),
    "gemma2": Conversion("gemma2", theta=False, scaled=False),
    "phi": Conversion("phi2", theta=False, scaled=False),
    "stablelm": Conversion("stablelm", theta=False, scaled=False),
}
"""By the model type of the text part."""


def kept(served: ServedModel, row: Conversion) -> bool:
    """Whether a converted file turns as the checkpoint does, without another word."""
    method = served.method
    if served.raises_length:
        return False
    if served.row in ("pi", "yarn"):
        if served.stops_pairs:
            return False
        plain = not isinstance(method, Yarn) or (
            own_temperature(method) is None
            and usual_ramp(method)
            # the converter writes it, and llama.cpp goes by it
            and not any("extrapolation_factor" in block for block in served.blocks().values())
        )
        return row.scaled and plain
    if served.row == "ntk":
        return row.theta
    if served.row in ("llama3", "ntk-by-parts"):
        return row.llama3
    return served.row == "longrope" and row.longrope and not served.longrope_words()
