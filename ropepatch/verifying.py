"""Checking a checkpoint, or a live model, against what was asked of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch.checkpoint.folder import read_config
from ropepatch.config_json.convert import convert_config
from ropepatch.config_json.converted import erase_conversion
from ropepatch.config_json.encodings import plan_conversion
from ropepatch.config_json.layout import Layout, read_layout
from ropepatch.config_json.live import LIVE_TYPE
from ropepatch.config_json.paths import text_part
from ropepatch.config_json.plan import STAMP, erase_recipe, read_stamp
from ropepatch.config_json.write import Change, write_recipe
from ropepatch.conversion import ConversionRecipe
from ropepatch.converting import STOCK_PREFIX, prove_folder
from ropepatch.errors import ConfigError, VerificationError
from ropepatch.recipe import Recipe
from ropepatch.runtime.words import MODEL_TYPE, MODULE, is_converted, on_disk

if TYPE_CHECKING:
    from ropepatch.methods.base import Method
    from ropepatch.model.encoding_proof import ConversionProof
    from ropepatch.model.logits import LogitChange
    from ropepatch.model.proof import Proof


@dataclass(frozen=True)
class Verification:
    """What `verify` found."""

    proof: "Proof | ConversionProof"
    logits: "LogitChange | None"
    live: bool = False
    """Whether it is of a patched model, not of what plain transformers reads."""


def verify(model: Any, *, logits: bool = False, remote_code: bool = False) -> Verification:
    """Check later what `extend` or `patch` checked; any scaled checkpoint will do.

    Args:
        model: A checkpoint folder, or a live model that carries a patch.
        logits: Also run the weights, under the config before and after (folders only).
        remote_code: Let the checkpoint's own Python files run.

    Raises:
        VerificationError: it does not do what it says.
        RopepatchError: it cannot be read, or carries nothing to verify.
    """
    if not isinstance(model, str | Path):
        return _verify_model(model)
    path = Path(model)
    config, _ = read_config(path)
    if is_converted(config):
        return _verify_converted(path, config, logits=logits)
    stamp = read_stamp(config)
    if stamp is not None and "live_only" in stamp:
        return _verify_live(path, config, stamp, logits=logits, remote_code=remote_code)
    return _verify_folder(path, config, logits=logits, remote_code=remote_code)


def _verify_model(model: Any) -> Verification:
    """A live model: patched, converted, or loaded as a converted one."""
    from ropepatch.model.conversions import conversion_of
    from ropepatch.model.encoding_proof import prove_conversion
    from ropepatch.model.patching import described
    from ropepatch.model.sites import root_of

    root: Any = root_of(model)
    conversion = conversion_of(root)
    if conversion is not None:
        return Verification(conversion.describe(), None, live=True)
    installed = root.__dict__.get("ropepatch_installed")
    if installed is None:
        return Verification(described(model).proof, None, live=True)
    config = root.config.to_dict()
    recipe = ConversionRecipe.from_words(config[STAMP]["conversion"])
    plan = plan_conversion(erase_conversion(config), recipe)
    return Verification(prove_conversion(root, installed, plan), None, live=True)


def _verify_converted(path: Path, config: dict[str, Any], *, logits: bool) -> Verification:
    """A checkpoint with other attention, as it loads where ropepatch is installed."""
    if config.get("model_type") != MODEL_TYPE:
        raise VerificationError(_taken_for("model_type", config.get("model_type"), MODEL_TYPE))
    before = erase_conversion(config)
    recipe = ConversionRecipe.from_words(config[STAMP]["conversion"])
    plan = plan_conversion(before, recipe)
    wanted = on_disk(convert_config(plan, config[STAMP]["base"]))
    _check_same(config, wanted, ("architectures", "auto_map"))
    stops = ("rope_parameters", "rope_scaling", "architectures", *plan.head_keys)
    texts = text_part(config, plan.path), text_part(wanted, plan.path)
    _check_same(*texts, tuple(key for key in stops if key in texts[1]))
    length = plan.length_key
    if texts[0].get(length) != texts[1].get(length):
        raise VerificationError(
            f"{length} is {texts[0].get(length)}, but {recipe.to_dict()} means "
            f"{texts[1].get(length)}; write it back, or convert the model again."
        )
    for key in ("layers", "slopes", "factor", "native"):
        if config[STAMP].get(key) != wanted[STAMP].get(key):
            raise VerificationError(
                f"the stamp says {key} {config[STAMP].get(key)!r}, but {recipe.to_dict()} means "
                f"{wanted[STAMP].get(key)!r}; convert the model again."
            )
    if not (path / f"{MODULE}.py").is_file():
        raise VerificationError(
            f"{MODULE}.py is missing beside the weights, so the model would not load where "
            "ropepatch is not installed; save it again."
        )
    proof = prove_folder(path, plan)
    if not logits:
        return Verification(proof, None)
    import torch

    from ropepatch.loading import load
    from ropepatch.model.converting import revert
    from ropepatch.model.logits import compare_patched

    real = load(path, dtype=torch.float32).eval()
    return _with_logits(proof, compare_patched(real, lambda: revert(real), plan.target_length))


def _check_same(
    config: Mapping[str, Any], wanted: Mapping[str, Any], keys: tuple[str, ...]
) -> None:
    for key in keys:
        if config.get(key) != wanted[key]:
            raise VerificationError(_taken_for(key, config.get(key), wanted[key]))


def _taken_for(key: str, found: Any, wanted: Any) -> str:
    return (
        f"{key} is {found!r}, but a converted model needs {wanted!r} there, so that nothing takes "
        "it for the original."
    )


def _verify_live(
    path: Path, config: dict[str, Any], stamp: dict[str, Any], *, logits: bool, remote_code: bool
) -> Verification:
    """A checkpoint that only `load` reads: as it patches, on a model without weights."""
    from ropepatch.loading import load
    from ropepatch.model.logits import compare_patched
    from ropepatch.model.patching import patch, patch_of
    from ropepatch.model.skeleton import config_of, meta_model, quiet

    before = erase_recipe(config)
    with quiet():
        parsed = config_of(before, path, remote_code=remote_code)
        model = meta_model(parsed, remote_code=remote_code)
    made = patch(model, Recipe.from_dict(stamp["recipe"]), replace=True)
    _check_length(config, made.change)
    _check_live_type(config, made.change)
    proof = made.describe().proof
    if not logits:
        return Verification(proof, None, live=True)
    import torch

    real = load(path, remote_code=remote_code, dtype=torch.float32).eval()
    handle = patch_of(real)
    if handle is None:
        raise VerificationError(f"{path} was loaded without its patch.")
    done = _with_logits(proof, compare_patched(real, handle.revert, proof.length))
    return replace(done, live=True)


def _verify_folder(
    path: Path, config: dict[str, Any], *, logits: bool, remote_code: bool
) -> Verification:
    """A checkpoint that plain transformers reads."""
    from ropepatch.model.logits import compare_logits
    from ropepatch.model.proof import prove

    methods: dict[str, Method]
    if STAMP in config:
        before = erase_recipe(config)
        recipe = Recipe.from_dict(config[STAMP].get("recipe"))
        change = write_recipe(before, recipe, replace=True)
        layout, methods, length = change.layout, dict(change.methods), change.target_length
        if "architectures" in config[STAMP]:
            renamed = [f"{STOCK_PREFIX}{name}" for name in config[STAMP]["architectures"]]
            _check_same(config, {"architectures": renamed}, ("architectures",))
        _check_length(config, change)
    else:
        before, layout = _unscaled(config)
        methods = {k: s.method for k, s in read_layout(config).schedules.items() if s.method}
        length = max(layout.configured_length, layout.trained_length + 1)
        methods = {label: m for label, m in methods.items() if not m.idle or m.length_dependent}
        if not methods:
            raise ConfigError(
                f"{path} is not scaled: plain RoPE, trained on {layout.trained_length} tokens; "
                "there is nothing to verify."
            )
    proof = prove(path, before, layout, methods, length, remote_code=remote_code)
    if not logits:
        return Verification(proof, None)
    return _with_logits(proof, compare_logits(path, before, length, remote_code=remote_code))


def _check_live_type(config: dict[str, Any], change: Change) -> None:
    """Refuse a block that plain transformers would read after all, as something else."""
    block = text_part(config, change.layout.path).get("rope_parameters") or {}
    for label in change.methods:
        found = (block.get(label) if label else block) or {}
        if found.get("rope_type") != LIVE_TYPE:
            raise VerificationError(
                f"rope_parameters{f' of {label}' if label else ''} says '{found.get('rope_type')}' "
                f"where '{LIVE_TYPE}' was written, so plain transformers would load the model "
                "without its patch; write it back, or save the patched model again."
            )


def _with_logits(proof: "Proof | ConversionProof", change: "LogitChange") -> Verification:
    if change.long == 0:
        raise VerificationError(
            f"logits at {change.long_length} tokens are the same with and without it."
        )
    return Verification(proof, change)


def _check_length(config: dict[str, Any], change: Change) -> None:
    """Refuse a length field that somebody has changed since."""
    key = "max_position_embeddings"
    found = text_part(config, change.layout.path).get(key)
    want = text_part(change.after, change.layout.path)[key]
    if found != want:
        raise VerificationError(
            f"{key} is {found}, but {change.recipe.method} needs {want} there; write it back, or "
            "extend again."
        )


def _unscaled(config: dict[str, Any]) -> tuple[dict[str, Any], Layout]:
    """The same config with plain RoPE, for a checkpoint that we did not scale."""
    from ropepatch.config_json.plain import without_scaling

    before = without_scaling(config)
    return before, read_layout(config)
