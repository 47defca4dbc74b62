"""Converting a checkpoint: read it, write the conversion, prove that it took effect."""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch.checkpoint.carry import How, Progress
from ropepatch.checkpoint.conversion import ConversionRewrite
from ropepatch.checkpoint.folder import read_checkpoint
from ropepatch.checkpoint.source import find_source
from ropepatch.checkpoint.staging import check_target
from ropepatch.checkpoint.write import Written, default_target, write_checkpoint
from ropepatch.config_json.convert import convert_config
from ropepatch.config_json.converted import read_conversion
from ropepatch.config_json.encodings import ConversionPlan, plan_conversion
from ropepatch.config_json.plan import writable_text
from ropepatch.config_json.write import Change, write_recipe
from ropepatch.conversion import ConversionRecipe
from ropepatch.errors import (
    GeometryError,
    NoEffectError,
    NotExpressibleError,
    RopepatchError,
)
from ropepatch.extending import (
    Say,
    config_of_source,
    dequantised_source,
    parent_of,
)
from ropepatch.recipe import Recipe
from ropepatch.runtime.words import MODULE, STAMP, on_disk

if TYPE_CHECKING:
    from ropepatch.model.encoding_proof import ConversionProof
    from ropepatch.model.proof import Proof

_SCALED_BY_OLD_WORDS = ("gemma3_text", "gemma3n_text", "olmo3", "modernbert-decoder", "step3p5")
"""Families with a block per layer type that also read `rope_scaling`, for their global layers."""
STOCK_PREFIX = "NoPE"
"""Before a class's name: engines that go by it would run on with rotation, in silence."""


@dataclass(frozen=True)
class Converted:
    """What `convert_checkpoint` did."""

    rewrite: ConversionRewrite
    target: Path
    written: Written | None
    """None after a dry run."""
    proof: "ConversionProof | Proof | None"
    """None without verification; a `Proof` of frequencies where transformers' own words do."""

    @property
    def plan(self) -> ConversionPlan:
        """Which layers get which encoding."""
        return self.rewrite.plan


def convert_checkpoint(
    model: str | Path,
    recipe: ConversionRecipe | Mapping[str, Any],
    output: str | Path | None = None,
    *,
    revision: str | None = None,
    how: How = "auto",
    replace: bool = False,
    verify: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
) -> Converted:
    """Write a checkpoint with linear biases (ALiBi), or without position encoding; and prove it.

    Where a class of transformers can be told so by its config (no position encoding in all
    layers of most families), it is; else the checkpoint gets a model type of its own and a Python
    file beside the weights, and nothing takes it for the original.

    Args:
        model: A folder, an id of the hub, or a GGUF file (dequantised to safetensors once).
        recipe: What to convert to.
        output: A folder that does not exist; by default a clear name beside the model.
        revision: Branch, tag or commit on the hub.
        how: "auto" links weight files where possible and copies otherwise; "link", "copy".
        replace: Convert a model that was converted or extended anew, from the original; of a
            conversion to the same encoding, what `recipe` does not say (as a mapping) stays.
        verify: Read the result back through transformers before it gets its name.
        dry_run: Stop before anything is written.
        progress: Called while bytes are copied.
        say: Called when a slow step begins.

    Raises:
        RopepatchError: refused, by name; nothing was written.

    Example:
        >>> from ropepatch import convert_checkpoint
        >>> convert_checkpoint("model", {"to": "alibi"}, "model-alibi")  # doctest: +SKIP
    """
    words: Mapping[str, Any] | None = None
    if isinstance(recipe, ConversionRecipe):
        asked = recipe
    else:
        words, asked = recipe, ConversionRecipe.from_words(recipe)
    source = find_source(str(model), revision, config_only=dry_run)
    called = source.folder
    if source.is_gguf and not dry_run:
        source = dequantised_source(source, say)
    checkpoint = None if dry_run else read_checkpoint(source.folder)
    config = checkpoint.config if checkpoint else config_of_source(source)
    if words is not None and replace and STAMP in config:
        asked = ConversionRecipe.from_words(words, _earlier(config))
    plan = plan_conversion(config, asked, replace=replace)
    change = _in_stock_words(plan)
    rewrite = _rewrite(plan, change)
    target = Path(output) if output else default_target(called, rewrite, parent_of(source, called))
    check_target(target, source.folder)
    if checkpoint is None:
        return Converted(rewrite, target, None, None)
    proofs: list[Any] = []

    def prove_stage(stage: Path) -> dict[str, Any]:
        if say is not None:
            say("reading the result back through transformers")
        proofs.append(_prove(stage, plan, change))
        found: dict[str, Any] = proofs[0].to_dict()
        return found

    written = write_checkpoint(
        checkpoint,
        source,
        rewrite,
        target,
        how=how,
        progress=progress,
        verify=prove_stage if verify else None,
    )
    return Converted(rewrite, target, written, proofs[0] if proofs else None)


def _earlier(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What an earlier conversion of this model was asked for."""
    stamp = read_conversion(config)
    if stamp is not None:
        words: Mapping[str, Any] = stamp["conversion"]
        return words
    asked = config[STAMP].get("asked") if isinstance(config[STAMP], Mapping) else None
    return asked if isinstance(asked, Mapping) else None


def _in_stock_words(plan: ConversionPlan) -> Change | None:
    """No position encoding as transformers' `proportional` rotation of no pair, where it can."""
    if plan.recipe.to != "nope" or not plan.is_whole or plan.factor != 1 or plan.native:
        return None
    recipe = Recipe.from_dict({"method": "p-rope", "keep": 0.0, "layers": "all"})
    try:
        change = write_recipe(plan.before, recipe, dialect="v5", replace=True)
    except (NotExpressibleError, GeometryError, NoEffectError):
        return None
    names = change.before.get("architectures") or []
    if plan.path and writable_text(change.after, plan.path).get("architectures"):
        return None  # named twice; the converted classes take care of both
    stamp = {**change.after[STAMP], "architectures": names, "asked": plan.recipe.to_dict()}
    renamed = [f"{STOCK_PREFIX}{name}" for name in names]
    after = copy.deepcopy({**change.after, "architectures": renamed, STAMP: stamp})
    text = writable_text(after, plan.path)
    block = text["rope_parameters"]
    if "rope_type" not in block:
        if plan.model_type not in _SCALED_BY_OLD_WORDS:
            return None  # transformers 4 would turn in silence
        block = block["full_attention"]
    text["rope_scaling"] = copy.deepcopy(block)  # transformers 4 looks here, to stop
    return dataclasses.replace(change, after=after) if names else None


def _rewrite(plan: ConversionPlan, change: Change | None) -> ConversionRewrite:
    if change is not None:
        notes = (
            f"transformers 5 loads it as it is; its class is called "
            f"'{change.after['architectures'][0]}' so that engines which would turn all the same "
            "refuse it.",
        )
        return ConversionRewrite(plan, change.after, None, (*plan.advice, *notes))
    from ropepatch.runtime.made import base_names, family_classes
    from ropepatch.runtime.module import module_text

    config, models = family_classes(str(plan.before["model_type"]))
    names = plan.before.get("architectures") or []
    model = next((one for one in models if one.__name__ in names), None)
    after = on_disk(convert_config(plan, base_names(config, model)))
    text = module_text(config, models)
    notes = (
        f"it loads with `import ropepatch`, or with trust_remote_code=True ({MODULE}.py beside the "
        "weights); everything else refuses it.",
    )
    return ConversionRewrite(plan, after, text, (*plan.advice, *notes))


def _prove(stage: Path, plan: ConversionPlan, change: Change | None) -> Any:
    if change is not None:
        from ropepatch.model.proof import prove

        return prove(stage, change.before, change.layout, change.methods, change.target_length)
    return prove_folder(stage, plan)


def prove_folder(folder: Path, plan: ConversionPlan) -> "ConversionProof":
    """What a converted folder becomes where ropepatch is installed; its weights are not read.

    Raises:
        VerificationError: transformers does not build it, or its biases are not as they should be.
    """
    from transformers import AutoConfig

    from ropepatch.errors import VerificationError
    from ropepatch.model.encoding_proof import prove_conversion
    from ropepatch.model.skeleton import meta_model, quiet

    with quiet():
        try:
            model = meta_model(AutoConfig.from_pretrained(str(folder)))
        except RopepatchError:
            raise
        except Exception as error:  # whatever transformers throws is the finding
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise VerificationError(f"the converted model cannot be built: {reason}") from error
    return prove_conversion(model, model.ropepatch_installed, plan)
