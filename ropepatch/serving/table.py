"""The table of engines; adding one is one file beside this one and one row here."""

import difflib

from ropepatch.errors import RecipeError
from ropepatch.serving import llama_cpp, lmdeploy, ollama, sglang, tgi, transformers4, vllm
from ropepatch.serving.base import ROWS, Engine, Words, refuse
from ropepatch.serving.served import ServedModel

ENGINES: dict[str, Engine] = {
    module.ENGINE.name: module.ENGINE
    for module in (vllm, sglang, llama_cpp, ollama, transformers4, tgi, lmdeploy)
}

ALIASES = {"llamacpp": "llama.cpp", "llama-cpp": "llama.cpp", "gguf": "llama.cpp"}


def engine_of(name: str) -> Engine:
    """The row called `name`.

    Raises:
        RecipeError: there is none; the message names the nearest and lists the known.
    """
    word = name.strip().lower()
    word = ALIASES.get(word, word)
    if word in ENGINES:
        return ENGINES[word]
    near = difflib.get_close_matches(word, [*ENGINES, *ALIASES], n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise RecipeError(f"no target is called '{name}'.{hint} Known: {', '.join(ENGINES)}.")


def say(engine: Engine, served: ServedModel) -> Words:
    """What an engine is told.

    Raises:
        CannotSayError: it cannot serve this as it is meant.
    """
    check_table(engine, served)
    return engine.say(served)


def check_table(engine: Engine, served: ServedModel) -> None:
    """Refuse what the table refuses.

    Raises:
        CannotSayError: so it is.
    """
    support = engine.methods[served.row]
    if support.how == "refused":
        refuse(support.why, *support.instead)


def support_table() -> str:
    """Method by engine, as Markdown."""
    titles = [engine.title for engine in ENGINES.values()]
    lines = ["| | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for row in ROWS:
        cells = [engine.methods[row].how for engine in ENGINES.values()]
        lines.append(f"| `{row}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)
