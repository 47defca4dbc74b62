"""Ollama: runs llama.cpp's server on the GGUF file's own metadata, without a flag.

Source: llm/server.go, llm/llama_server.go, convert/ and server/routes.go of revision fb3076099
(0.33.0-rc2), read; it has run llama-server for every GGUF model since 2026-05.
"""

from collections.abc import Mapping

from ropepatch.serving.base import Engine, Support, Words
from ropepatch.serving.llama_cpp import METHODS as LLAMA_CPP
from ropepatch.serving.llama_cpp import gguf_steps
from ropepatch.serving.served import ServedModel

CHECKED = "Ollama 0.33.0-rc2, read in its sources; it runs llama.cpp's server on the file"
_FILE = Support("override", "a GGUF file made by llama.cpp's converter, and a Modelfile")

METHODS: Mapping[str, Support] = {
    name: support if support.how == "refused" else _FILE for name, support in LLAMA_CPP.items()
}


def say(served: ServedModel) -> Words:
    """Convert with llama.cpp, mend where need be, and create a model from a Modelfile."""
    commands, notes, factors = gguf_steps(served)
    option = "--outfile" if len(commands) == 1 else "--output"
    final = commands[-1][commands[-1].index(option) + 1]
    name = final.removesuffix(".gguf").lower()
    if factors is not None:
        notes = (*notes, "factors.json: `ropepatch export --for llama.cpp --config` prints it.")
    return Words(
        (*commands, ("ollama", "create", name, "-f", "Modelfile"), ("ollama", "run", name)),
        config=modelfile(f"./{final}", served.target_length),
        config_name="Modelfile",
        notes=(
            *notes,
            "do not create it FROM the folder: Ollama's own converter reads transformers 4's words "
            "alone, and drops most scalings in silence.",
        ),
        how="override",
    )


def modelfile(file: str, length: int) -> str:
    """Ollama cuts num_ctx down to the file's own context length, and starts with less."""
    return f"FROM {file}\nPARAMETER num_ctx {length}\n"


ENGINE = Engine("ollama", "Ollama", CHECKED, METHODS, say)
