"""llama.cpp: through its converter where that keeps the extension, else by metadata after it."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ropepatch.gguf_file.architectures import ARCHITECTURES, LLAMA_CPP
from ropepatch.methods.longrope import LongRope
from ropepatch.methods.pi import PositionInterpolation
from ropepatch.methods.ramps import temperature
from ropepatch.methods.yarn import Yarn
from ropepatch.serving.base import Engine, How, Support, Words, refuse
from ropepatch.serving.converter import CONVERSIONS, Conversion, kept
from ropepatch.serving.served import ServedModel
from ropepatch.serving.yarn_words import own_temperature, usual_ramp

CHECKED = f"{LLAMA_CPP}; its converter's classes run, SmolLM2's logits compared"
_FIXED = "it fixes the rotation when a context is made"
_NEAR = ("yarn", "ntk")
_METADATA = Support("override", "metadata after its converter, which says nothing and drops it")

METHODS: Mapping[str, Support] = {
    "yarn": Support("native"),
    "pi": Support("native"),
    "ntk": Support("native"),
    "dynamic-ntk": Support("refused", _FIXED, _NEAR),
    "dynamic-yarn": Support("refused", _FIXED, _NEAR),
    "ntk-by-parts": Support("native"),
    "llama3": Support("native"),
    "longrope": _METADATA,
    "p-rope": _METADATA,
    "nope": Support("refused", "its converter goes by a class name that was taken away", _NEAR),
    "alibi": Support("refused", "its Llama class takes no bias", _NEAR),
}

CONVERT = "convert_hf_to_gguf.py"
_LOST_THETA = 10000.0
"""What llama.cpp turns by where a file does not say."""


def say(served: ServedModel) -> Words:
    """Convert, mend the metadata where need be, and serve."""
    commands, notes, config = gguf_steps(served)
    final = commands[-1][commands[-1].index("--outfile" if len(commands) == 1 else "--output") + 1]
    serve = ("llama-server", "-m", final, "-c", str(served.target_length))
    how: How = "native" if len(commands) == 1 else "override"
    return Words(
        (*commands, serve),
        config=config,
        config_name="factors.json" if config else None,
        notes=(*notes, *_length_note(served)),
        how=how,
    )


def say_original(served: ServedModel, model: str) -> Words:
    """Flags of llama-server over a GGUF file of the model it was made from."""
    row = CONVERSIONS.get(served.model_type)
    if row is None:
        why = f"what it calls the metadata of a '{served.model_type}' is not known here"
        refuse(why, known=False)
    _refuse_special(served, row)
    method, length = served.method, served.target_length
    # it cuts every slot down to the length of training that the file tells
    lay = ["--override-kv", f"{row.architecture}.context_length=int:{length}"]
    if isinstance(method, Yarn) and usual_ramp(method):
        flags = ["--rope-scaling", "yarn", "--rope-scale", f"{method.factor:.9g}"]
        flags += ["--yarn-orig-ctx", str(served.trained_length)]
        wanted = own_temperature(method)
        if wanted is not None:  # --yarn-attn-factor has no effect under yarn
            times = wanted / temperature(method.factor)
            key = f"{row.architecture}.rope.scaling.attn_factor"
            lay += ["--override-kv", f"{key}=float:{times:.9g}"]
    elif isinstance(method, PositionInterpolation) and method.keep is None:
        flags = ["--rope-scaling", "linear", "--rope-scale", f"{method.factor:.9g}"]
    elif served.row == "ntk":
        theta = served.blocks()[next(iter(served.methods))]["rope_theta"]
        flags = ["--rope-freq-base", f"{theta:.9g}"]
    else:
        why = "it has no flags for factors per pair, which only a file's own tensors say"
        refuse(why, "yarn")
    name = model if model.endswith(".gguf") else f"{Path(model).name}.gguf"
    command = ("llama-server", "-m", name, *flags, *lay, "-c", str(length))
    note = "the file's own metadata stay as they are; without these flags it is not extended."
    made = () if name == model else (f"{name}: a GGUF file of {model}.",)
    return Words((command,), notes=(*made, note), how="override")


def gguf_steps(
    served: ServedModel,
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...], str | None]:
    """Commands that make a GGUF file which turns as the checkpoint does, notes, and a file.

    Raises:
        NotExpressibleError: none would.
    """
    row = CONVERSIONS.get(served.model_type)
    if row is None:
        why = f"what its converter keeps of a '{served.model_type}' is not known here"
        refuse(why, known=False)
    _refuse_special(served, row)
    name = safe_name(Path(served.name).absolute().name)
    plain = f"{name}.gguf"
    convert = ("python", CONVERT, served.name, "--outfile", plain, "--outtype", "f16")
    if kept(served, row):
        note = f"`ropepatch inspect {plain}` shows that the converter kept the extension."
        return (convert,), (note,), None
    recipe, config = _recipe_words(served)
    fixed = f"{name}-fixed.gguf"
    fix = ("ropepatch", "extend", "--model", plain, *recipe)
    fix += ("--trained-length", str(served.trained_length), "--replace", "--output", fixed)
    note = (
        f"llama.cpp's converter drops {served.row} from a '{served.model_type}', in whole or in "
        "part, without a word; the second command puts it back."
    )
    if served.raises_length:
        note = (
            f"max_position_embeddings promises only {served.layout.configured_length}, and a "
            "converted file would be cut down to that; the second command raises it."
        )
    return (convert, fix), (note,), config


def safe_name(name: str) -> str:
    """A name that Ollama takes too, and no shell trips over."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-._") or "model"


def _refuse_special(served: ServedModel, row: Conversion) -> None:
    target = ARCHITECTURES.get(row.architecture)
    if target is None:
        refuse(f"what it makes of '{row.architecture}' is not known here", known=False)
    if target.refused is not None:
        refuse(f"it {target.refused}")
    if not row.theta and served.trained_theta != _LOST_THETA:
        why = f"its converter loses the rope_theta of a '{served.model_type}'"
        refuse(why)
    method = served.method
    banded = served.row in ("llama3", "ntk-by-parts")
    if banded and row.stops_at_llama3:
        refuse("its converter stops at a llama3 block of this class", "yarn")
    stops = served.row == "p-rope" or getattr(method, "keep", None) is not None
    other_ramp = isinstance(method, Yarn) and not usual_ramp(method)
    if (other_ramp or stops or banded) and target.factors is None:
        why = f"it reads no factors per pair for '{row.architecture}'"
        if other_ramp:
            why = f"its yarn has one ramp (32, 1, ends rounded), and {why}"
        refuse(why, "yarn")
    if isinstance(method, LongRope) and not target.reads_long:
        why = f"it reads no long and short factors for '{row.architecture}'"
        refuse(why, "yarn")
    warm = isinstance(method, Yarn) and own_temperature(method) is not None
    if warm and target.windowed == "own":
        why = "it would put the attention factor on the windowed layers too"
        refuse(why, "yarn")


def _recipe_words(served: ServedModel) -> tuple[tuple[str, ...], str | None]:
    """The method as options of `extend`; lists go into a file."""
    method = served.method
    usual = {f.name: f.default for f in fields(method)}
    parameters: dict[str, Any] = {k: v for k, v in method.parameters().items() if v != usual[k]}
    if served.recipe is not None:
        parameters = dict(served.recipe.parameters)
    if own := served.longrope_words():
        parameters["attention_factor"] = own["long_mscale"]
    lists = {k: list(v) for k, v in parameters.items() if isinstance(v, tuple | list)}
    factor = served.target_length / served.trained_length
    words = ["--method", method.name, "--factor", f"{factor:.9g}"]
    for key, value in parameters.items():
        if key not in lists and key != "factor":
            words += ["--keep", str(value)] if key == "keep" else ["--set", f"{key}={value}"]
    if not lists:
        return tuple(words), None
    return (*words, "--factors", "factors.json"), json.dumps(lists) + "\n"


def _length_note(served: ServedModel) -> tuple[str, ...]:
    if not isinstance(served.method, LongRope):
        return ()
    return (
        f"llama.cpp takes the long factors when -c is above {served.trained_length}, whatever the "
        "length of a prompt.",
    )


ENGINE = Engine("llama.cpp", "llama.cpp", CHECKED, METHODS, say, say_original)
