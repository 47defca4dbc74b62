"""The main job, joined: read a checkpoint, write the change, prove that it took effect.

The rooms below know either files or live models; this is where they meet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch.checkpoint.carry import How, Progress
from ropepatch.checkpoint.folder import read_checkpoint, read_config
from ropepatch.checkpoint.restore import Restored
from ropepatch.checkpoint.restore import restore as restore_folder
from ropepatch.checkpoint.rewrite import ExtensionRewrite
from ropepatch.checkpoint.source import Source, find_source
from ropepatch.checkpoint.staging import check_target
from ropepatch.checkpoint.write import Written, default_target, write_checkpoint
from ropepatch.config_json.converted import erase_conversion, read_conversion
from ropepatch.config_json.encodings import Encoding, encodings_of, plan_conversion
from ropepatch.config_json.layers import LayerGroup
from ropepatch.config_json.layout import Layout, read_layout
from ropepatch.config_json.plan import STAMP, erase_recipe, read_stamp
from ropepatch.config_json.write import AskedDialect, Change, write_recipe
from ropepatch.conversion import ConversionRecipe
from ropepatch.errors import CheckpointError, ConfigError, RopepatchError
from ropepatch.families.biases import native_of
from ropepatch.recipe import Recipe, as_recipe

if TYPE_CHECKING:
    from ropepatch.model.proof import Proof

Say = Callable[[str], None]
"""Called with a sentence when a slow step begins."""


@dataclass(frozen=True)
class Extension:
    """What `extend` did."""

    change: Change
    target: Path
    written: Written | None
    """None after a dry run."""
    proof: "Proof | None"
    """None without verification."""


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found."""

    source: Source
    config: dict[str, Any]
    rotary: Layout | None
    """The `layout`; None for a model that has linear biases of its own."""
    stamp: dict[str, Any] | None
    """What a recipe of ropepatch has written here before, if one has."""
    encodings: tuple[tuple[LayerGroup, Encoding], ...]
    """Groups of layers that are alike, each with how it places tokens."""
    conversion: dict[str, Any] | None = None
    """What a conversion has written, if there was one."""

    @property
    def layout(self) -> Layout:
        """How it turns, as it stands, or stood before it was converted.

        Raises:
            ConfigError: it has linear biases of its own, and nothing turns.
        """
        if self.rotary is None:
            raise ConfigError("this model has linear biases (ALiBi) of its own; nothing turns.")
        return self.rotary


@dataclass(frozen=True)
class Preview:
    """What a method would make of a model, or why it is refused."""

    change: Change | None
    refusal: str | None


def extend(
    model: str | Path,
    recipe: Recipe | Mapping[str, Any],
    output: str | Path | None = None,
    *,
    revision: str | None = None,
    how: How = "auto",
    replace: bool = False,
    dialect: AskedDialect = "auto",
    remote_code: bool = False,
    verify: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
) -> Extension:
    """Write a checkpoint that works at a longer context, and prove it.

    Args:
        model: A folder, an id of the hub, or a GGUF file (dequantised to safetensors once).
        recipe: What to do.
        output: A folder that does not exist; by default a clear name beside the model.
        revision: Branch, tag or commit on the hub.
        how: "auto" links weight files where possible and copies otherwise; "link", "copy".
        replace: Allow a model that is already scaled; factors count from the trained length.
        dialect: Words of the config: "auto" keeps what was found.
        remote_code: Carry the checkpoint's own Python files and let them run.
        verify: Read the result back through transformers before it gets its name.
        dry_run: Stop before anything is written.
        progress: Called while bytes are copied.
        say: Called when a slow step begins.

    Raises:
        RopepatchError: refused, by name; nothing was written.

    Example:
        >>> from ropepatch import Recipe, extend
        >>> extend("model", Recipe.named("yarn", factor=8), "model-64k")  # doctest: +SKIP
    """
    recipe = as_recipe(recipe)
    if output is not None and Path(output).suffix.lower() == ".gguf":
        raise CheckpointError(
            f"extend writes a folder, not {output}; extend_gguf changes a GGUF file's metadata."
        )
    source = find_source(str(model), revision, config_only=dry_run)
    called = source.folder
    if source.is_gguf and not dry_run:
        source = dequantised_source(source, say)
    checkpoint = None if dry_run else read_checkpoint(source.folder)
    config = checkpoint.config if checkpoint else config_of_source(source)
    change = write_recipe(config, recipe, dialect=dialect, replace=replace)
    rewrite = ExtensionRewrite(change)
    target = Path(output) if output else default_target(called, rewrite, parent_of(source, called))
    check_target(target, source.folder)
    if checkpoint is None:
        return Extension(change, target, None, None)
    proofs: list[Proof] = []

    def prove_stage(stage: Path) -> dict[str, Any]:
        proofs.append(_prove(stage, change, say, remote_code=remote_code))
        return proofs[0].to_dict()

    written = write_checkpoint(
        checkpoint,
        source,
        rewrite,
        target,
        how=how,
        remote_code=remote_code,
        progress=progress,
        verify=prove_stage if verify else None,
    )
    return Extension(change, target, written, proofs[0] if proofs else None)


def inspect(model: str | Path, revision: str | None = None) -> Inspection:
    """How a checkpoint places its tokens, from its config alone.

    Raises:
        RopepatchError: it cannot be read, or has neither rotary position embeddings nor linear
            biases.
    """
    source = find_source(str(model), revision, config_only=True)
    config = config_of_source(source)
    conversion = read_conversion(config)
    before = erase_conversion(config) if conversion is not None else config
    if native_of(before) is not None:
        return Inspection(source, config, None, None, _native_encodings(before), conversion)
    if conversion is not None:
        recipe = ConversionRecipe.from_words(conversion["conversion"])
        plan = plan_conversion(before, recipe)
        return Inspection(source, config, plan.layout, None, plan.encodings, conversion)
    stamp = read_stamp(config)
    trained = stamp["trained_length"] if stamp else None
    live = stamp is not None and "live_only" in stamp  # its type is none that could be read
    plain = erase_recipe(config) if live else {k: v for k, v in config.items() if k != STAMP}
    layout = read_layout(plain, trained)
    return Inspection(source, config, layout, stamp, encodings_of(layout, (), None))


def _native_encodings(config: Mapping[str, Any]) -> tuple[tuple[LayerGroup, Encoding], ...]:
    """Of a family with linear biases of its own: one group, as far as its config counts layers."""
    count = next(
        (config[k] for k in ("n_layer", "n_layers", "num_hidden_layers") if k in config), 0
    )
    layers = tuple(range(count)) if isinstance(count, int) else ()
    return ((LayerGroup("full_attention", "", layers, rotates=False, window=None), "ALiBi"),)


def preview(found: Inspection, methods: tuple[str, ...], factor: float) -> dict[str, Preview]:
    """What `extend --replace` would make of an inspected model, by method.

    Raises:
        RecipeError: a method is unknown, or the factor out of range.
    """
    previews = {}
    for name in methods:
        recipe = Recipe.named(name, factor=factor)
        try:
            change = write_recipe(found.config, recipe, replace=True)
        except RopepatchError as error:
            previews[recipe.method] = Preview(None, str(error))
        else:
            previews[recipe.method] = Preview(change, None)
    return previews


def restore(folder: str | Path) -> Restored:
    """Give an extended folder its original config back, in place.

    Raises:
        RopepatchError: ropepatch did not write it, or it cannot be written.
    """
    return restore_folder(Path(folder))


def _prove(stage: Path, change: Change, say: Say | None, *, remote_code: bool) -> "Proof":
    from ropepatch.model.proof import prove

    if say is not None:
        say("reading the result back through transformers")
    return prove(
        stage,
        change.before,
        change.layout,
        change.methods,
        change.target_length,
        remote_code=remote_code,
    )


def config_of_source(source: Source) -> dict[str, Any]:
    """The config of a folder, or what transformers makes of a GGUF file."""
    if source.is_gguf:
        from ropepatch.model.gguf import gguf_config

        return gguf_config(source.folder)
    return read_config(source.folder)[0]


def parent_of(source: Source, called: Path) -> Path | None:
    """Beside the model; for one from the hub's cache, the working directory."""
    return Path.cwd() if source.revision is not None else called.absolute().parent


def dequantised_source(source: Source, say: Say | None) -> Source:
    """A GGUF file as a folder of safetensors, made once."""
    from ropepatch.model.gguf import dequantised

    return Source(dequantised(source.folder, say), source.name, source.revision)
