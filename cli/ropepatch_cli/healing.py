"""What `heal` does with its options, and what it shows."""

import dataclasses
import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch_cli.healing_bar import bar
from ropepatch_cli.terminal import Listing, bold, line, notes, print_json, tokens

if TYPE_CHECKING:
    from ropepatch.healing.plan import HealPlan
    from ropepatch.recovering.running import Healed

_NAMES = {
    "needle": "needles found",
    "needle_short": "needles found",
    "loss": "held-out loss",
    "loss_short": "held-out loss",
}


@dataclass(frozen=True)
class Asked:
    """A recipe file and what options say instead."""

    recipe: Path | None
    given: Mapping[str, Any]
    """Options by name; None where not given."""
    full: bool
    teacher: str | None
    text_column: str | None

    def plan(self) -> "HealPlan":
        """Both together; options win.

        Raises:
            HealingError: words are unknown or out of range.
        """
        from ropepatch.errors import HealingError, RecipeError
        from ropepatch.healing.plan import HealPlan
        from ropepatch.recipe_files import read_recipe

        try:
            words: dict[str, Any] = dict(read_recipe(self.recipe)) if self.recipe else {}
        except RecipeError as error:
            text = str(error).replace("at least 'method: NAME'", "seq_len, steps and the like")
            raise HealingError(text) from None
        for key in ("model", "data", "teacher", "output"):
            if key in words:
                raise HealingError(
                    f"{self.recipe}: '{key}' belongs to the command line (--{key}), so that a "
                    "recipe serves many models."
                )
        known = {field.name for field in dataclasses.fields(HealPlan)}
        said = {k: v for k, v in self.given.items() if k in known and v is not None}
        if "steps" in said and words.get("stages"):
            raise HealingError(
                f"{self.recipe} has stages, whose steps add up; leave out --steps, or change them "
                "there."
            )
        if self.full and "lora" in said:
            raise HealingError("--lora trains adapters, --full all weights; leave one of them out.")
        if self.full:
            words.pop("lora", None)
            words.pop("lora_alpha", None)
        return HealPlan.from_words(words | said)


def heal(
    model: str,
    data: list[str] | None,
    asked: Asked,
    output: Path | None,
    *,
    adapter: bool,
    dry_run: bool,
    device: str,
    attention: str | None,
    revision: str | None,
    remote_code: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run, and show what came out."""
    from ropepatch.errors import HealingError
    from ropepatch.recovering.case import Way
    from ropepatch.recovering.running import heal

    if not model:
        raise HealingError("--model is missing: what `extend` or `convert` wrote.")
    plan = asked.plan()
    if plot is not None and plot.suffix not in ("", ".png", ".svg", ".pdf"):
        raise HealingError(f"--plot {plot}: pictures are png, svg or pdf.")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise HealingError(f"--plot {plot}: its folder does not exist.")
    with bar(quiet=as_json) as shown:
        way = Way(
            device=device,
            attention=attention,
            remote_code=remote_code,
            command=shlex.join(["ropepatch", *sys.argv[1:]]),
            say=shown.say,
            report=shown.report,
            store_report=shown.stored,
        )
        done = heal(
            model,
            data or [],
            plan,
            output,
            teacher=asked.teacher,
            text_column=asked.text_column,
            adapter=adapter,
            revision=revision,
            dry_run=dry_run,
            way=way,
        )
    if dry_run:
        _foretold(done, as_json=as_json)
    elif done.training is not None:
        _told(done, done.training, as_json=as_json)
        if plot is not None:
            _drawn(plot, done.training, done.target, as_json=as_json)


def _drawn(plot: Path, training: Mapping[str, Any], target: Path, *, as_json: bool) -> None:
    from ropepatch.plots import save_training
    from ropepatch_cli.render import wrote

    plot = plot if plot.suffix else plot.parent / f"{plot.name}.png"
    lengths = training["measured"]["lengths"]
    save_training(plot, target.name, training["losses"], training["checks"], lengths)
    wrote(plot, as_json=as_json)


def _foretold(done: "Healed", *, as_json: bool) -> None:
    assert done.outlook is not None
    if as_json:
        print_json(
            {
                "dry_run": True,
                "target": str(done.target),
                "plan": done.plan.to_dict(),
                "estimate": done.outlook.to_dict(),
            }
        )
        return
    line(f"{bold('dry run')}; would write {done.target}")
    for sentence in done.outlook.sentences():
        line(sentence)
    lengths = " → ".join(
        f"{stage.steps} steps of {tokens(stage.seq_len or done.plan.seq_len)}"
        for stage in done.plan.stages
    )
    if len(done.plan.stages) > 1:
        line(f"stages: {lengths}")


def _told(done: "Healed", training: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"target": str(done.target), **training})
        return
    measured = training["measured"]
    reached = " (goal reached)" if training["reached"] else ""
    line(
        bold(f"{training['steps']} steps, {training['tokens']:,} tokens")
        + reached
        + ("" if training["best_step"] is None else f"; best after {training['best_step']}")
    )
    columns = [name for name in ("original", "before", "after") if measured.get(name)]
    listing = Listing("measured", ">tokens", *(f">{name}" for name in columns))
    lengths = {"short": measured["lengths"][0], "long": measured["lengths"][-1]}
    for name, words in _NAMES.items():
        if name.endswith("_short") and len(measured["lengths"]) == 1:
            continue
        if any(name in measured[column] for column in columns):
            length = lengths["short" if name.endswith("_short") else "long"]
            numbers = [_number(measured[column].get(name)) for column in columns]
            listing.add(words, tokens(length), *numbers)
    if columns:
        listing.show()
    proof = training.get("proof")
    if proof is not None:
        line(f"read back: logits within {proof['logits_error']:.0e} of the trained model's")
    notes(training["notes"])
    line(f"written: {bold(str(done.target))}")


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.3f}"
