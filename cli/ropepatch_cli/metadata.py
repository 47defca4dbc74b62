"""GGUF files: what was done to their metadata, or what these say, as tables or as JSON."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch_cli.terminal import (
    Listing,
    bold,
    coloured,
    difference,
    line,
    notes,
    print_json,
    tokens,
)

if TYPE_CHECKING:
    from ropepatch.geometry import Frequencies, RotaryGeometry
    from ropepatch.gguf_extending import GgufInspection, MetadataExtension
    from ropepatch.gguf_file.extension import MetadataChange

Previews = Mapping[str, "MetadataChange | str"]


def extended(done: "MetadataExtension", *, as_json: bool) -> None:
    """What `extend` did to a GGUF file, or would do."""
    change = done.change
    if as_json:
        print_json(_extension_words(done))
        return
    lengths = f"{change.geometry.trained_length:,} → {change.target_length:,} tokens"
    title = f"{change.recipe.method}: {lengths} (GGUF metadata, {change.before.architecture})"
    line(bold(title) + (f", dry run; would write {done.target}" if done.proof is None else ""))
    difference(metadata_difference(change))
    if (proof := done.proof) is not None:
        where = "the first file's header" if done.parts > 1 else "the header"
        line(
            f"{coloured('verified', 'green')} by {where} read back: llama.cpp turns by the "
            f"method's frequencies (largest difference {proof.worst_error:.0e}); changed "
            f"{proof.changed_pairs} of {proof.pairs} pairs, slowest wave "
            f"{tokens(proof.slowest_before)} → {tokens(proof.slowest_after)}, attention factor "
            f"{proof.attention_factor:.6f}."
        )
    notes(change.advice)
    if done.proof is not None:
        first = done.target / done.source.name if done.parts > 1 else done.target
        line(f"written: {bold(str(done.target))}")
        line(f"run it: {shlex.join(('llama-server', '-m', str(first)))} -c {change.target_length}")


def metadata_difference(change: "MetadataChange") -> list[str]:
    """Keys and tensors that change, a line each."""
    lines = []
    for key, (old, new) in change.keys.items():
        if old is not None:
            lines.append(f"-{key} = {_shown(old)}")
        if new is not None:
            lines.append(f"+{key} = {_shown(new)}")
    for tensor, how in change.tensors.items():
        pairs = change.before.pairs
        sign = "-" if how == "removed" else "+"
        lines.append(f"{sign}{tensor}: {pairs} factors, one per pair ({how})")
    return lines


def inspection(found: "GgufInspection", previews: Previews, *, as_json: bool) -> None:
    """How a GGUF file's metadata place its tokens."""
    if as_json:
        print_json(words(found, previews))
        return
    rotation = found.rotation
    files = f", {found.parts} files" if found.parts > 1 else ""
    line(f"{bold(str(found.path))}  GGUF, {rotation.architecture}{files}")
    name = found.survey.value("general.name")
    if isinstance(name, str):
        line(f"called {name!r}")
    line(
        f"context length {rotation.context_length:,}, original "
        + (f"{rotation.original_length:,}" if rotation.original_known else "not said")
    )
    if found.record is not None:
        line(
            f"extended by ropepatch: {found.record['recipe']['method']}, "
            f"{tokens(found.record['trained_length'])} → "
            f"{tokens(found.record['target_length'])} tokens"
        )
    listing = Listing("in force", ">θ", ">head", ">rotated", ">slowest wave", ">attention")
    frequencies = rotation.frequencies(rotation.context_length)
    listing.add(
        found.in_force,
        f"{rotation.freq_base:g}",
        str(rotation.head_dim),
        str(rotation.rotary_dim),
        tokens(_slowest(frequencies)),
        f"{frequencies.attention_factor:.6f}",
    )
    listing.show()
    if found.refused:
        notes((f"extend is refused for its metadata: {found.refused}.",))
    elif rotation.window is not None:
        notes((f"layers with a window look back {rotation.window} tokens.",))
    for method, preview in previews.items():
        _show_preview(method, preview, found)


def words(found: "GgufInspection", previews: Previews) -> dict[str, Any]:
    """The same as plain data."""
    rotation = found.rotation
    frequencies = rotation.frequencies(rotation.context_length)
    factors = {"freqs", "long", "short"}
    return {
        "model": str(found.path),
        "format": "gguf",
        "version": found.survey.version,
        "files": found.parts,
        "tensors": len(found.survey.tensors),
        **{k: v for k, v in asdict(rotation).items() if k not in factors},
        "factors": {k: getattr(rotation, k) for k in sorted(factors) if getattr(rotation, k)},
        "in_force": found.in_force,
        "scaled": rotation.scaled or found.record is not None,
        "slowest_wavelength": _slowest(frequencies),
        "attention_factor": frequencies.attention_factor,
        "refused": found.refused,
        "ropepatch": found.record,
        "extend": {
            method: {"refused": preview} if isinstance(preview, str) else _change_words(preview)
            for method, preview in previews.items()
        },
    }


def draw(path: Path, found: "GgufInspection", previews: Previews) -> None:
    """Wavelengths per pair: the base, what is in force, and each previewed method."""
    from ropepatch.plots import save_wavelengths

    rotation = found.rotation
    geometry: RotaryGeometry = found.before.geometry(rotation.original_length)
    curves: dict[str, Frequencies] = {
        f"pretrained (θ = {geometry.theta:g})": geometry.base_frequencies()
    }
    target = None
    if rotation.scaled or found.record is not None:
        target = rotation.context_length
        curves[f"in force: {found.in_force}"] = rotation.frequencies(target)
    for method, preview in previews.items():
        if isinstance(preview, str):
            continue
        target = preview.target_length
        curves[f"{method} ×{preview.method.factor:g}"] = preview.after.frequencies(target)
    name = found.path.name.replace("$", r"\$")  # no formula for matplotlib
    save_wavelengths(path, {name: (geometry, curves, target)})


def _show_preview(method: str, preview: "MetadataChange | str", found: "GgufInspection") -> None:
    if isinstance(preview, str):
        line(f"\n{bold(f'extend --method {method}')} is refused: {preview}")
        return
    scaled = found.rotation.scaled or found.record is not None
    replacing = " --replace" if scaled else ""
    line(
        f"\n{bold(f'extend --method {method}{replacing} --output NAME.gguf')}: "
        f"{preview.geometry.trained_length:,} → {preview.target_length:,} tokens"
    )
    difference(metadata_difference(preview), indent="  ")
    notes(preview.advice)


def _extension_words(done: "MetadataExtension") -> dict[str, Any]:
    proof = {"proof": asdict(done.proof) if done.proof else None}
    dry = {"dry_run": True} if done.proof is None else {}
    return {**dry, "target": str(done.target), **_change_words(done.change), **proof}


def _change_words(change: "MetadataChange") -> dict[str, Any]:
    return {
        "recipe": change.recipe.to_dict(),
        "trained_length": change.geometry.trained_length,
        "target_length": change.target_length,
        "metadata": {key: {"before": a, "after": b} for key, (a, b) in change.keys.items()},
        "tensors": change.tensors,
        "notes": list(change.advice),
    }


def _slowest(frequencies: "Frequencies") -> float | None:
    pairs = zip(frequencies.inv_freq, frequencies.wavelengths(), strict=True)
    return max((wave for f, wave in pairs if f), default=None)


def _shown(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
