"""An extended checkpoint in the words of an engine: where files meet what engines read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropepatch.checkpoint.folder import read_config
from ropepatch.checkpoint.record import read_record, was_trained
from ropepatch.checkpoint.source import find_source
from ropepatch.config_json.plan import STAMP
from ropepatch.errors import CheckpointError, NoEffectError, NotExpressibleError, RecipeError
from ropepatch.gguf_extending import GgufInspection, inspect_gguf, is_gguf_file
from ropepatch.gguf_file.rotation import Rotation
from ropepatch.methods.base import LONGEST_LENGTH
from ropepatch.recipe import parse_length
from ropepatch.runtime.words import is_converted
from ropepatch.serving.base import CannotSayError, Engine, Export, Words
from ropepatch.serving.llama_cpp import safe_name
from ropepatch.serving.nearest import nearest
from ropepatch.serving.ollama import modelfile
from ropepatch.serving.reading import read_served
from ropepatch.serving.served import ServedModel
from ropepatch.serving.table import check_table, engine_of, say


def export(
    model: str | Path,
    target: str,
    *,
    original: bool = False,
    trained_length: int | None = None,
) -> Export:
    """What makes an engine serve an extended checkpoint as it is meant.

    Args:
        model: A folder that `extend` wrote or whose config carries a scaling, an id of the hub,
            or a GGUF file.
        target: An engine's word, as in `ropepatch.serving.table.ENGINES`.
        original: Say it for the model it was made from, by flags alone.
        trained_length: Tokens of pretraining, where a scaling that ropepatch did not write does
            not say what it counts from.

    Raises:
        NoEffectError: it is not extended.
        NotExpressibleError: the engine cannot say it, or would run something else.
        RopepatchError: it cannot be read.
    """
    if not isinstance(model, str | Path) or not isinstance(target, str):
        raise RecipeError("export takes a folder or a GGUF file, and the name of an engine.")
    if trained_length is not None:
        trained_length = parse_length(trained_length)
        if trained_length > LONGEST_LENGTH:
            raise RecipeError(f"{trained_length} tokens are beyond {LONGEST_LENGTH}.")
    engine = engine_of(target)
    if is_gguf_file(model):
        if trained_length is not None:
            raise RecipeError(
                "a GGUF file's metadata say what they mean; leave --trained-length out."
            )
        return _export_gguf(inspect_gguf(model), engine, original=original)
    folder = find_source(str(model), config_only=True).folder
    config, _ = read_config(folder)
    record = read_record(folder) or {}
    source = record.get("source", {}).get("model")
    _refuse_converted(config, engine)
    served = read_served(
        str(model),
        config,
        source if isinstance(source, str) else None,
        trained=was_trained(record),
        again=bool(record.get("history")),
        trained_length=trained_length,
    )
    try:
        words = _of_original(engine, served) if original else say(engine, served)
    except CannotSayError as refused:
        if original:
            raise NotExpressibleError(
                f"no flags of {engine.title} say '{served.row}': {refused.why}; leave "
                "--original out."
            ) from None
        if not refused.known:
            raise NotExpressibleError(
                f"nothing is printed for {engine.title} that may be wrong: {refused.why}."
            ) from None
        raise NotExpressibleError(
            f"{engine.title} cannot serve '{served.row}' as it is meant: {refused.why}. "
            f"{nearest(engine, served, config, refused.instead)}"
        ) from None
    return Export(
        engine, str(model), served.row, served.trained_length, served.target_length, words
    )


def _refuse_converted(config: Mapping[str, Any], engine: Engine) -> None:
    if is_converted(config):
        to = config[STAMP]["conversion"].get("to")
        row = to if to in engine.methods else "alibi"
        raise NotExpressibleError(
            f"{engine.title} cannot serve '{to}' as it is meant: {engine.methods[row].why}. It "
            "runs in ropepatch.load alone. Nearest: `ropepatch extend --method yarn` on the "
            "original; what was trained since the conversion is then lost."
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
    if served.original_scaled:
        raise NotExpressibleError(
            f"{served.source} carries a scaling of its own, whose keys would stay beneath the "
            "flags; leave --original out."
        )
    if served.source.endswith(".gguf") and engine.name != "llama.cpp":
        raise NotExpressibleError(
            f"{served.name} was made from {served.source}, and {engine.title} is not served from "
            "GGUF here; leave --original out."
        )
    check_table(engine, served)
    return engine.say_original(served, served.source)


def _long_note(rotation: Rotation) -> tuple[str, ...]:
    if rotation.long is None or rotation.long == rotation.short:
        return ()
    return (
        f"llama.cpp takes the long factors when -c is above {rotation.original_length}, whatever "
        "the length of a prompt.",
    )


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
    if not str(found.path).isprintable():
        raise CheckpointError(f"the name {str(found.path)!r} fits in no command; rename the file.")
    if engine.name == "llama.cpp":
        serve = ("llama-server", "-m", str(found.path), "-c", str(length))
        words = Words((serve,), notes=_long_note(rotation))
    else:
        name = safe_name(found.path.stem).lower()
        words = Words(
            (("ollama", "create", name, "-f", "Modelfile"), ("ollama", "run", name)),
            config=modelfile(str(found.path.absolute()), length),
            config_name="Modelfile",
            how="override",
        )
    row = found.record["recipe"]["method"] if found.record else found.in_force
    return Export(engine, str(found.path), row, rotation.original_length, length, words)
