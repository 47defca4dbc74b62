"""What was done, as tables and sentences or as JSON."""

from collections.abc import Mapping
from dataclasses import fields
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
    from ropepatch.checkpoint.restore import Restored
    from ropepatch.extending import Extension
    from ropepatch.methods.base import Method
    from ropepatch.model.proof import Proof
    from ropepatch.verifying import Verification


def methods(rows: Mapping[str, "type[Method]"], *, as_json: bool, detail: bool) -> None:
    """The table of methods, or one with its parameters."""
    if as_json:
        print_json(
            {
                name: {
                    "title": cls.title,
                    "source": cls.source,
                    "use_when": cls.use_when,
                    "short_price": cls.short_price,
                    "rope_type": cls.rope_type,
                    "parameters": [f.name for f in fields(cls)],
                }
                for name, cls in rows.items()
            }
        )
        return
    listing = Listing("method", "use when", "price at short length", "rope_type")
    for name, cls in rows.items():
        listing.add(name, cls.use_when, cls.short_price, cls.rope_type or "none")
    if not detail:
        listing.show()
        return
    for name, cls in rows.items():
        line(f"{bold(name)}  {cls.title}\n")
        line(f"  source       {cls.source}")
        line(f"  use when     {cls.use_when}")
        line(f"  short price  {cls.short_price}")
        line(f"  rope_type    {cls.rope_type or 'none: live models only'}")
        defaults = [
            f.name if f.default is f.default_factory else f"{f.name} (default {f.default})"
            for f in fields(cls)
        ]
        line(f"  parameters   {', '.join(defaults)}")


def restored(what: "Restored") -> None:
    """What `restore` put back."""
    line(
        f"{what.folder}: {what.method} taken out again, original values "
        f"back in {', '.join(what.files)}."
    )


def wrote(path: Path, *, as_json: bool) -> None:
    """A picture was written."""
    line(f"picture: {path}", err=as_json)


def proof(found: "Proof", *, live: bool = False) -> None:
    """The evidence, one row per schedule."""
    listing = Listing("layers", ">changed", ">slowest wave", ">after", ">attention", ">error")
    for s in found.schedules:
        where = s.label or "all"
        state = "" if s.method else " kept"
        listing.add(
            f"{where} ({s.layers}){state}",
            f"{s.changed_pairs}/{s.pairs}",
            tokens(s.slowest_before),
            tokens(s.slowest_after),
            f"{s.attention_factor:.6f}",
            f"{s.worst_error:.0e}",
        )
    listing.show()
    whose = "with ropepatch.load, its" if live else "transformers'"
    line(
        f"{coloured('verified', 'green')} in {found.model_class} at {found.length:,} tokens: "
        f"{whose} frequencies equal the method's; applied to {found.layers_changed} of "
        f"{found.layer_count} layers."
    )
    if found.softmax_scale_ratio != 1:
        line(f"softmax scale × {found.softmax_scale_ratio:.6f} (mscale_all_dim squared).")


def verification(folder: Path, found: "Verification", *, as_json: bool) -> None:
    """What `verify` found."""
    if as_json:
        words: dict[str, Any] = {"proof": found.proof.to_dict()}
        if found.logits is not None:
            words["logits"] = {
                "max_change_short": found.logits.short,
                "max_change_long": found.logits.long,
                "long_length": found.logits.long_length,
            }
        print_json(words)
        return
    from ropepatch.model.proof import Proof

    if isinstance(found.proof, Proof):
        proof(found.proof, live=found.live)
    else:
        from ropepatch_cli import converting

        converting.encodings([(g, g.encoding) for g in found.proof.groups])
        converting.proved(found.proof)
    if found.logits is not None:
        line(
            f"logits with against without: largest change {found.logits.short:.4g} within 64 "
            f"tokens, {found.logits.long:.4g} across {found.logits.long_length:,}."
        )


def extension(done: "Extension", *, as_json: bool) -> None:
    """What `extend` did, or would do."""
    from ropepatch_cli.difference import config_difference

    change = done.change
    if as_json:
        print_json(_extension_words(done))
        return
    lengths = f"{change.layout.trained_length:,} → {change.target_length:,} tokens"
    title = f"{change.recipe.method}: {lengths} ({change.dialect} config)"
    if done.written is None:
        line(f"{bold(title)}, dry run; would write {done.target}")
        difference(config_difference(change.before, change.after))
        notes(change.advice)
        return
    line(bold(title))
    if done.proof is not None:
        proof(done.proof)
    else:
        line("not verified (--no-verify); `ropepatch verify` does it later.")
    ways = sorted(set(done.written.carried.values()))
    line(f"weights: {len(done.written.carried)} by {' and '.join(ways)}")
    if done.written.left_behind:
        line(f"left behind: {', '.join(done.written.left_behind)}")
    notes((*done.written.notes, *change.advice))
    line(f"written: {bold(str(done.target))}")


def _extension_words(done: "Extension") -> dict[str, Any]:
    change = done.change
    words: dict[str, Any] = {
        "target": str(done.target),
        "recipe": change.recipe.to_dict(),
        "dialect": change.dialect,
        "trained_length": change.layout.trained_length,
        "target_length": change.target_length,
        "notes": list(change.advice),
        "proof": done.proof.to_dict() if done.proof else None,
    }
    if done.written is None:
        return {"dry_run": True, **words, "config": change.after}
    return {
        **words,
        "weights": done.written.carried,
        "left_behind": list(done.written.left_behind),
        "notes": [*done.written.notes, *change.advice],
    }
