"""Extending a GGUF file: other metadata over the same tensor data, proved and undone.

What llama.cpp makes of metadata is known in `gguf_file`; here it meets files and their staging.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ropepatch.checkpoint.carry import How, Progress, carry
from ropepatch.checkpoint.rewrite import size_word
from ropepatch.checkpoint.staging import check_target, staged, staged_file
from ropepatch.errors import CheckpointError, ConfigError, RecipeError, RopepatchError
from ropepatch.gguf_file.architectures import ARCHITECTURES, NO_ROPE
from ropepatch.gguf_file.draft import Draft
from ropepatch.gguf_file.extension import (
    MetadataChange,
    MetadataProof,
    in_force,
    plan_extension,
    prove,
)
from ropepatch.gguf_file.parts import PART, read_parts, stem_of
from ropepatch.gguf_file.reading import read_survey
from ropepatch.gguf_file.rotation import Rotation, architecture_name, read_rotation
from ropepatch.gguf_file.stamp import check_header, read_record, undone
from ropepatch.gguf_file.survey import Survey
from ropepatch.gguf_file.writing import write
from ropepatch.recipe import Recipe, as_recipe


@dataclass(frozen=True)
class MetadataExtension:
    """What `extend_gguf` did."""

    change: MetadataChange
    source: Path
    target: Path
    """A file; for a split model, a folder."""
    parts: int
    """Files of the model."""
    proof: MetadataProof | None
    """None after a dry run."""


@dataclass(frozen=True)
class GgufInspection:
    """What a GGUF file's metadata say of its positions."""

    path: Path
    survey: Survey
    parts: int
    rotation: Rotation
    record: dict[str, Any] | None
    """What `extend_gguf` has left, if it has."""
    before: Rotation
    """What it was before that; the same where there was nothing."""

    @property
    def refused(self) -> str | None:
        """Why its metadata cannot be extended, whatever the method; None where they can."""
        row = ARCHITECTURES.get(self.rotation.architecture)
        if row is None:
            return "llama.cpp's handling of this architecture is not known here"
        return None if row.refused is None else f"llama.cpp {row.refused}"

    @property
    def in_force(self) -> str:
        """The scaling in a few words."""
        base = self.before.freq_base
        if self.rotation.freq_base == base:
            return in_force(self.rotation)
        return f"{in_force(self.rotation)}, θ {base:g} → {self.rotation.freq_base:g}"


def is_gguf_file(model: str | Path) -> bool:
    """Whether a model is a GGUF file on this disk, by its name."""
    try:
        path = Path(model).expanduser()
        return path.suffix.lower() == ".gguf" and path.is_file()
    except (OSError, RuntimeError):
        return False


def changes_metadata(model: str | Path, output: str | Path | None) -> bool:
    """Whether `extend` is asked to write GGUF, not a folder of safetensors.

    Raises:
        CheckpointError: GGUF is asked of a model that is none.
    """
    asked = output is not None and Path(output).suffix.lower() == ".gguf"
    if is_gguf_file(model):
        return asked or bool(PART.fullmatch(Path(model).name))
    if asked and str(model).lower().endswith(".gguf"):
        return True  # and say that it is missing
    if asked:
        raise CheckpointError(
            f"{model} is no GGUF file, so --output {output} cannot be one: extend it into a "
            "folder, then convert that with llama.cpp's convert_hf_to_gguf.py "
            "(`ropepatch export --for llama.cpp` says how)."
        )
    return False


def extend_gguf(
    model: str | Path,
    recipe: Recipe | Mapping[str, Any],
    output: str | Path | None = None,
    *,
    how: How = "auto",
    replace: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> MetadataExtension:
    """Write a GGUF file whose metadata extend the context; tensor data are carried byte for byte.

    Args:
        model: A GGUF file; of a split model, the first one.
        recipe: What to do.
        output: A file that does not exist, ending in .gguf; for a split model a folder. By
            default a clear name beside the model.
        how: How the other files of a split model travel: "auto", "link" or "copy".
        replace: Allow a file that is already scaled; factors count from the trained length.
        dry_run: Stop before anything is written.
        progress: Called while bytes are copied.

    Raises:
        RopepatchError: refused, by name; nothing was written.

    Example:
        >>> from ropepatch import extend_gguf
        >>> extend_gguf("m.gguf", {"method": "yarn", "factor": 4}, "m-32k.gguf")  # doctest: +SKIP
    """
    source = Path(model).expanduser()
    if how not in get_args(How):
        raise RecipeError(f"how is {', '.join(get_args(How))}, not {how!r}.")
    survey, others = read_parts(source)
    if how != "auto" and not others:
        raise RecipeError("--link and --copy are for the other files of a split model.")
    change = plan_extension(survey, as_recipe(recipe), replace=replace)
    target = _target(source, change, output, split=bool(others))
    if os.path.lexists(target):
        raise CheckpointError(f"{target} exists already; choose another --output or remove it.")
    check_target(target, source)
    if dry_run:
        return MetadataExtension(change, source, target, len(others) + 1, None)
    if not others:
        with staged_file(target) as stage:
            proof = _write(change, stage, progress)
    else:
        with staged(target) as folder:
            proof = _write(change, folder / source.name, progress)
            for other in others:
                carry(other, folder / other.name, how, progress)
    return MetadataExtension(change, source, target, len(others) + 1, proof)


def inspect_gguf(path: str | Path) -> GgufInspection:
    """What a GGUF file's metadata say, without reading a tensor.

    Raises:
        CheckpointError: it cannot be read or understood.
        ConfigError: its architecture does not turn.
    """
    path = Path(path).expanduser()
    survey, others = read_parts(path)
    row = ARCHITECTURES.get(architecture_name(Draft(survey)))
    if row is not None and row.refused == NO_ROPE:
        raise ConfigError(f"{path}: a '{survey.value('general.architecture')}' {NO_ROPE}.")
    record = read_record(survey)
    now = read_rotation(Draft(survey))
    before = now if record is None else read_rotation(undone(survey, record))
    return GgufInspection(path, survey, len(others) + 1, now, record, before)


def preview_gguf(
    found: GgufInspection, methods: tuple[str, ...], factor: float
) -> dict[str, MetadataChange | str]:
    """What `extend --replace` would make of an inspected file, or why it is refused, by method.

    Raises:
        RecipeError: a method is unknown, or the factor out of range.
    """
    previews: dict[str, MetadataChange | str] = {}
    for name in methods:
        recipe = Recipe.named(name, factor=factor)
        try:
            previews[recipe.method] = plan_extension(found.survey, recipe, replace=True)
        except RopepatchError as error:
            previews[recipe.method] = str(error)
    return previews


def restore_gguf(path: str | Path) -> str:
    """Give an extended GGUF file its original metadata back, in place; the method's word.

    The file is written anew beside itself and takes its own name in one step.

    Raises:
        CheckpointError: ropepatch did not write it, it was changed since, or cannot be written.
    """
    path = Path(path).expanduser().resolve()
    survey, _ = read_parts(path)
    record = read_record(survey)
    if record is None:
        raise CheckpointError(f"{path} carries no record of ropepatch, so nothing to restore.")
    draft = undone(survey, record)
    check_header(draft, record)
    with staged_file(path, replace=True) as stage:
        write(draft, stage)
    return str(record["recipe"]["method"])


def _write(change: MetadataChange, stage: Path, progress: Progress | None) -> MetadataProof:
    """Write and read back, before the result gets its name."""
    write(change.draft, stage, progress)
    found = read_survey(stage)
    return prove(change, read_rotation(Draft(found)))


def _target(
    source: Path, change: MetadataChange, output: str | Path | None, *, split: bool
) -> Path:
    ending = "" if split else ".gguf"
    if output is None:
        size = size_word(change.target_length)
        stem = f"{stem_of(source)}-{change.recipe.method}-{size}"
        return source.absolute().parent / f"{stem}{ending}"
    target = Path(output)
    if split and target.suffix.lower() == ".gguf":
        raise CheckpointError(
            f"the model is split into several files, so --output names a folder, not {target}."
        )
    if not split and target.suffix.lower() != ".gguf":
        raise CheckpointError(f"--output {target} must end in .gguf for a change of metadata.")
    return target
