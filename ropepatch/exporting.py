"""An extended checkpoint in the words of an engine: where files meet what engines read."""

from pathlib import Path

from ropepatch.checkpoint.folder import read_config
from ropepatch.checkpoint.record import read_record, was_trained
from ropepatch.checkpoint.source import find_source
from ropepatch.errors import NoEffectError, NotExpressibleError
from ropepatch.gguf_extending import GgufInspection, inspect_gguf, is_gguf_file
from ropepatch.serving.base import Engine, Export, Words, refuse
from ropepatch.serving.ollama import modelfile
from ropepatch.serving.served import ServedModel, read_served
from ropepatch.serving.table import engine_of


def export(model: str | Path, target: str, *, original: bool = False) -> Export:
    """What makes an engine serve an extended checkpoint as it is meant.

    Args:
        model: A folder that `extend` wrote or whose config carries a scaling, an id of the hub,
            or a GGUF file.
        target: An engine's word, as in `ropepatch.serving.table.ENGINES`.
        original: Say it for the model it was made from, by flags alone.

    Raises:
        NoEffectError: it is not extended.
        NotExpressibleError: the engine cannot say it, or would run something else.
        RopepatchError: it cannot be read.
    """
    engine = engine_of(target)
    if is_gguf_file(model):
        return _export_gguf(inspect_gguf(model), engine, original=original)
    folder = find_source(str(model), config_only=True).folder
    config, _ = read_config(folder)
    record = read_record(folder) or {}
    source = record.get("source", {}).get("model")
    served = read_served(
        str(model),
        config,
        source if isinstance(source, str) else None,
        trained=was_trained(record),
    )
    support = engine.methods[served.row]
    if support.how == "refused":
        refuse(engine.title, served, support.why, support.instead)
    words = _of_original(engine, served) if original else engine.say(served)
    return Export(
        engine, str(model), served.row, served.trained_length, served.target_length, words
    )


def _of_original(engine: Engine, served: ServedModel) -> Words:
    if engine.say_original is None:
        raise NotExpressibleError(
            f"{engine.title} has no flags that extend the original model; leave --original out."
        )
    if served.source is None:
        raise NotExpressibleError(
            f"the original of {served.name} is not known, or the weights were trained since it was "
            "extended; leave --original out."
        )
    if served.source.endswith(".gguf") and engine.name != "llama.cpp":
        raise NotExpressibleError(
            f"{served.name} was made from {served.source}, and {engine.title} is not served from "
            "GGUF here; leave --original out."
        )
    return engine.say_original(served, served.source)


def _export_gguf(found: GgufInspection, engine: Engine, *, original: bool) -> Export:
    rotation = found.rotation
    if engine.name not in ("llama.cpp", "ollama"):
        raise NotExpressibleError(
            f"{engine.title} is not served from GGUF here: give the folder of safetensors."
        )
    if original:
        raise NotExpressibleError("a GGUF file carries its own metadata; leave --original out.")
    if not rotation.scaled and found.record is None:
        raise NoEffectError(
            f"{found.path} is not extended: its rotation is the one it was trained with. "
            "`ropepatch extend --model FILE --output NEW.gguf` comes first."
        )
    length = rotation.context_length
    if engine.name == "llama.cpp":
        words = Words((("llama-server", "-m", str(found.path), "-c", str(length)),))
    else:
        name = found.path.stem.lower()
        words = Words(
            (("ollama", "create", name, "-f", "Modelfile"), ("ollama", "run", name)),
            config=modelfile(str(found.path.absolute()), length),
            config_name="Modelfile",
            how="override",
        )
    row = found.record["recipe"]["method"] if found.record else found.in_force
    return Export(engine, str(found.path), row, rotation.original_length, length, words)
