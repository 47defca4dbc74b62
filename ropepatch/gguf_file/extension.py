"""A recipe bound to a GGUF file: what changes in its header, and what llama.cpp will make of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropepatch.errors import (
    AlreadyScaledError,
    CheckpointError,
    ConfigError,
    NoEffectError,
    NotExpressibleError,
    VerificationError,
)
from ropepatch.geometry import Frequencies, RotaryGeometry
from ropepatch.gguf_file.architectures import LLAMA_CPP, architecture_of
from ropepatch.gguf_file.draft import Draft, Value
from ropepatch.gguf_file.rotation import Rotation, architecture_name, read_rotation
from ropepatch.gguf_file.stamp import SPLIT_TENSORS, read_record, stamped, undone
from ropepatch.gguf_file.survey import Survey
from ropepatch.gguf_file.words import write_method
from ropepatch.methods.base import Method
from ropepatch.recipe import Recipe

_TOLERANCE = 2e-6
"""Relative; keys and factors are float32 numbers."""


@dataclass(frozen=True)
class MetadataChange:
    """What a recipe makes of a GGUF file's header."""

    recipe: Recipe
    method: Method
    geometry: RotaryGeometry
    before: Rotation
    """Of the file as it stands, or as it stood before an extension of ours."""
    after: Rotation
    draft: Draft
    target_length: int
    advice: tuple[str, ...]

    @property
    def keys(self) -> dict[str, tuple[Any, Any]]:
        """Old and new values of the keys that change, by key; None where there is none."""
        survey = self.draft.survey
        shown = {k: v for k, v in self.draft.values.items() if not k.startswith("ropepatch.")}
        return {
            key: (survey.value(key), None if new is None else new.value)
            for key, new in shown.items()
        }

    @property
    def tensors(self) -> dict[str, str]:
        """Tensors of per-pair factors that change: `added`, `overwritten` or `removed`."""
        draft = self.draft
        return (
            dict.fromkeys(sorted(draft.dropped - draft.added.keys()), "removed")
            | dict.fromkeys(draft.added, "added")
            | dict.fromkeys(draft.overlaid, "overwritten")
        )


@dataclass(frozen=True)
class MetadataProof:
    """What reading the written file back showed, by llama.cpp's own arithmetic in doubles."""

    pairs: int
    changed_pairs: int
    slowest_before: float | None
    """Tokens per turn of the slowest turning pair."""
    slowest_after: float | None
    attention_factor: float
    worst_error: float
    """Largest relative difference from the method's frequencies."""
    checked_against: str = LLAMA_CPP


def plan_extension(survey: Survey, recipe: Recipe, *, replace: bool = False) -> MetadataChange:
    """Bind a recipe to a GGUF file; nothing is written.

    Args:
        survey: The header of the file, or of the first one of a split model.
        recipe: What to do.
        replace: Allow a file that is already scaled; factors count from the trained length.

    Raises:
        AlreadyScaledError: it is scaled and `replace` was not given.
        ConfigError: it does not say which length a scaling counts from.
        NoEffectError: nothing would change.
        NotExpressibleError: llama.cpp has no words for it.
        CheckpointError: the metadata make no sense.
    """
    record = read_record(survey)
    if record is not None and not replace:
        raise AlreadyScaledError(
            f"ropepatch has already written '{record['recipe']['method']}' into {survey.path}; "
            "pass --replace (replace=True) to write another recipe from the trained length, or "
            "restore the original first."
        )
    draft = Draft(survey) if record is None else undone(survey, record)
    row = architecture_of(architecture_name(draft))
    before = read_rotation(draft)
    _check_request(recipe, before, draft, own=row.windowed == "own")
    if before.scaled and not replace:
        raise AlreadyScaledError(
            f"{survey.path} is already scaled ({in_force(before)}); pass --replace (replace=True) "
            "to scale from the trained length again; factors never compound."
        )
    geometry = before.geometry(_trained_length(before, recipe, record))
    method = recipe.bind(geometry)
    target = method.target_length(geometry)
    changed = write_method(draft, before.architecture, row, method, geometry)
    changed = _only_changes(changed)
    after = read_rotation(changed)
    if _same(after, before, target) and _same(after, before, geometry.trained_length):
        raise NoEffectError(
            f"{method.name} with these parameters leaves every one of the {before.pairs} pairs as "
            "it is; nothing would change."
        )
    if record is not None and _stands_already(survey, after, target, geometry.trained_length):
        raise NoEffectError(
            f"{survey.path} turns by {method.name} with these parameters already; nothing would "
            "change."
        )
    changed = _count_tensors(changed)
    changed = stamped(changed, draft, recipe.to_dict(), geometry.trained_length, target)
    change = MetadataChange(
        recipe,
        method,
        geometry,
        before,
        after,
        changed,
        target,
        (*method.live_advice(geometry), *_advice(before, after, target)),
    )
    prove(change, after)
    return change


def prove(change: MetadataChange, found: Rotation) -> MetadataProof:
    """Compare what llama.cpp will turn by with what the method says.

    Args:
        change: What was asked.
        found: What the header says, as planned or as read back.

    Raises:
        VerificationError: they differ.
    """
    worst = 0.0
    lengths = {change.target_length, change.geometry.trained_length}
    for length in lengths:
        wanted = change.method.frequencies(change.geometry, length)
        worst = max(worst, _difference(wanted, found.frequencies(length)))
    if worst > _TOLERANCE or found.context_length != change.target_length:
        raise VerificationError(
            f"llama.cpp would turn {change.draft.survey.path.name} by other frequencies than "
            f"{change.method.name}'s (relative difference {worst:.1e}); nothing was written."
        )
    old, new = (
        change.before.frequencies(change.target_length),
        found.frequencies(change.target_length),
    )
    changed = sum(1 for a, b in zip(old.inv_freq, new.inv_freq, strict=True) if a != b)
    return MetadataProof(
        pairs=found.pairs,
        changed_pairs=changed,
        slowest_before=_slowest(old),
        slowest_after=_slowest(new),
        attention_factor=new.attention_factor,
        worst_error=worst,
    )


def in_force(rotation: Rotation) -> str:
    """The scaling of a file in a few words."""
    words = []
    if rotation.scaling != "none" and rotation.factor != 1:
        words.append(f"{rotation.scaling} ×{rotation.factor:g}")
    for name, tensor in (("rope_freqs", rotation.freqs), ("rope_factors", rotation.long)):
        if tensor is not None and any(f != 1 for f in tensor):
            words.append(f"{name} per pair")
    if rotation.attn_factor != 1:
        words.append(f"attn_factor {rotation.attn_factor:.6g}")
    return ", ".join(words) or "plain"


def _check_request(recipe: Recipe, rotation: Rotation, draft: Draft, *, own: bool) -> None:
    if recipe.short_exact or recipe.growth is not None:
        raise NotExpressibleError(
            "short_exact and growth are for live models; llama.cpp fixes the rotation when a "
            "context is made."
        )
    if recipe.layers != ("auto",) and (own or recipe.layers != ("all",)):
        raise NotExpressibleError(
            f"the metadata of a '{rotation.architecture}' cannot name layers: "
            + ("those with a window keep their own base" if own else "all of them turn alike")
            + "; leave --layers out."
        )
    if draft.value(f"{rotation.architecture}.rope.scaling.alpha"):
        raise NotExpressibleError(
            "this file carries rope.scaling.alpha, a base change of its own; extend the model's "
            "safetensors instead."
        )


def _trained_length(rotation: Rotation, recipe: Recipe, record: Mapping[str, Any] | None) -> int:
    if recipe.trained_length is not None:
        return recipe.trained_length
    told = (record or {}).get("recipe", {}).get("trained_length")
    if isinstance(told, int) and told > 0:
        return told
    if rotation.scaled and not rotation.original_known:
        raise ConfigError(
            f"the GGUF file is scaled ({in_force(rotation)}) and does not say which length that "
            f"counts from (context_length is {rotation.context_length}): say which with "
            "--trained-length."
        )
    return rotation.original_length if rotation.scaled else rotation.context_length


def _only_changes(draft: Draft) -> Draft:
    """Without values that stand there already, byte for byte."""
    keys = draft.survey.keys
    values = {
        key: new
        for key, new in draft.values.items()
        if not (
            new is not None
            and key in keys
            and (keys[key].kind, keys[key].raw) == (new.kind, new.raw)
        )
    }
    return Draft(
        draft.survey,
        values,
        draft.overlaid,
        draft.added,
        draft.dropped,
        draft.data_size,
        draft.padding,
    )


def _count_tensors(draft: Draft) -> Draft:
    """The first file of a split model counts the tensors of all."""
    entry = draft.survey.keys.get(SPLIT_TENSORS)
    if entry is None or not draft.added:
        return draft
    count = draft.value(SPLIT_TENSORS)  # of the original, where an extension of ours goes
    if type(count) is not int:
        raise CheckpointError(f"{SPLIT_TENSORS} of {draft.survey.path} is no count.")
    return draft.put({SPLIT_TENSORS: Value.of(entry.kind, count + len(draft.added))})


def _stands_already(survey: Survey, after: Rotation, target: int, trained: int) -> bool:
    now = read_rotation(Draft(survey))
    lengths = now.context_length == after.context_length
    return lengths and _same(now, after, target) and _same(now, after, trained)


def _same(one: Rotation, other: Rotation, length: int) -> bool:
    return one.frequencies(length) == other.frequencies(length)


def _difference(wanted: Frequencies, found: Frequencies) -> float:
    pairs = zip(wanted.inv_freq, found.inv_freq, strict=True)
    worst = max((abs(b - a) / a if a else abs(b) for a, b in pairs), default=0.0)
    return max(worst, abs(found.attention_factor / wanted.attention_factor - 1))


def _slowest(frequencies: Frequencies) -> float | None:
    waves = [w for f, w in zip(frequencies.inv_freq, frequencies.wavelengths(), strict=True) if f]
    return max(waves) if waves else None


def _advice(before: Rotation, after: Rotation, target: int) -> tuple[str, ...]:
    notes = []
    if before.window is not None and before.window < target:
        notes.append(
            f"layers with a window look back {before.window} tokens; the others gain from the "
            "change."
        )
    if after.long is not None and after.long != after.short:
        notes.append(
            "llama.cpp chooses the long factors when a context of more than "
            f"{after.original_length} tokens is made, not by the length of a prompt: short prompts "
            "want a small -c."
        )
    return tuple(notes)
