"""A conversion, as tables and sentences or as JSON."""

from typing import TYPE_CHECKING, Any

from ropepatch_cli.difference import config_difference
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
    from ropepatch.converting import Converted
    from ropepatch.damage import Damage
    from ropepatch.model.encoding_proof import ConversionProof

_MOST_NUMBERS = 12


def conversion(
    done: "Converted", damage: "Damage | None", failed: str | None, *, as_json: bool
) -> None:
    """What `convert` did, or would do; `failed` says why nothing was measured, if so."""
    if as_json:
        print_json(_words(done, damage, failed))
        return
    plan, rewrite = done.plan, done.rewrite
    title = f"{plan.recipe.to} in place of RoPE"
    if plan.native is not None:
        title = f"alibi, slopes divided by {plan.recipe.factor:g}"
    if plan.target_length != plan.trained_length:
        title += f": {plan.trained_length:,} → {plan.target_length:,} tokens"
    if done.written is None:
        line(f"{bold(title)}, dry run; would write {done.target}")
        encodings(plan.encodings)
        difference(config_difference(plan.before, rewrite.after))
        notes(rewrite.advice)
        return
    line(bold(title))
    encodings(plan.encodings)
    if done.proof is None:
        line("not verified (--no-verify); `ropepatch verify` does it later.")
    else:
        proved(done.proof)
    if damage is not None:
        before, after = damage.perplexities
        line(
            f"perplexity over {damage.tokens} tokens: {before:,.2f} before, "
            f"{coloured(f'{after:,.2f}', 'red')} now, without any training"
        )
    ways = sorted(set(done.written.carried.values()))
    line(f"weights: {len(done.written.carried)} by {' and '.join(ways)}")
    if done.written.left_behind:
        line(f"left behind: {', '.join(done.written.left_behind)}")
    notes((*done.written.notes, *rewrite.advice, *([failed] if failed else ())))
    line(f"written: {bold(str(done.target))}")


def encodings(groups: Any) -> None:
    """One row per group of layers that are alike."""
    if not groups:
        return
    listing = Listing("layer type", ">layers", "encoding", ">window", "numbers")
    for group, encoding in groups:
        listing.add(
            group.layer_type,
            str(len(group.layers)),
            encoding,
            tokens(group.window) if group.window else "-" if " " in encoding else "global",
            numbers(group.layers),
        )
    listing.show()


def numbers(layers: tuple[int, ...]) -> str:
    """Layer numbers, runs drawn together: 0-3, 7."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(words[:_MOST_NUMBERS]) + (", ..." if len(words) > _MOST_NUMBERS else "")


def proved(found: Any) -> None:
    """The evidence."""
    from ropepatch.model.encoding_proof import ConversionProof

    good = coloured("verified", "green")
    if not isinstance(found, ConversionProof):
        still = ", ".join(f"{s.pairs} of {s.pairs} pairs stand still" for s in found.schedules[:1])
        line(f"{good} in {found.model_class}: {still} in {found.layers_changed} layers.")
        return
    line(
        f"{good} in {found.model_class}: {found.attentions} attentions changed, "
        f"{found.layers_changed} of {found.layer_count} layers."
    )
    _slopes(found)


def _slopes(found: "ConversionProof") -> None:
    if found.kernel is None or found.steepest is None:
        return
    error = "" if found.worst_error is None else f", within {found.worst_error:.0e} of float64"
    line(
        f"slopes {found.steepest:.6g} to {found.flattest:.6g}; kernel: {found.kernel}{error} "
        "(attn_implementation='eager' takes a full mask)"
    )


def _words(done: "Converted", damage: "Damage | None", failed: str | None) -> dict[str, Any]:
    plan = done.plan
    words: dict[str, Any] = {
        "target": str(done.target),
        "conversion": plan.recipe.to_dict(),
        "trained_length": plan.trained_length,
        "target_length": plan.target_length,
        "encodings": encoding_words(plan.encodings),
        "own_code": bool(done.rewrite.files),
        "notes": list(done.rewrite.advice),
        "proof": done.proof.to_dict() if done.proof else None,
    }
    if done.written is None:
        return {"dry_run": True, **words, "config": done.rewrite.after}
    return {
        **words,
        "damage": damage.to_dict() if damage else None,
        "weights": done.written.carried,
        "left_behind": list(done.written.left_behind),
        "notes": [*done.written.notes, *done.rewrite.advice, *([failed] if failed else ())],
    }


def encoding_words(groups: Any) -> list[dict[str, Any]]:
    """The same rows as plain data."""
    return [
        {
            "layer_type": group.layer_type,
            "layers": list(group.layers),
            "window": group.window,
            "encoding": encoding,
        }
        for group, encoding in groups
    ]
