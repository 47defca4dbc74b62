"""Putting a trained adapter into the weights of the checkpoint it was trained on."""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropepatch.checkpoint.fingerprint import fingerprint
from ropepatch.checkpoint.folder import read_checkpoint, read_json
from ropepatch.checkpoint.record import RECORD
from ropepatch.checkpoint.source import find_source
from ropepatch.checkpoint.staging import check_target
from ropepatch.checkpoint.trained import write_trained
from ropepatch.errors import CheckpointError, HealingError, VerificationError

_TOLERANCE = 1e-4
"""Of the largest logit, between the model with its adapter and the merged one."""
_PROBE = 64


@dataclass(frozen=True)
class Merged:
    """What `merge` did."""

    target: Path
    model: str
    """That the adapter was put into."""
    error: float
    """Largest difference of logits between adapter applied and adapter merged."""


def merge(
    adapter: str | Path,
    output: str | Path,
    *,
    model: str | Path | None = None,
    remote_code: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Merged:
    """Write the checkpoint with the adapter in its weights, as plain safetensors.

    Args:
        adapter: What `heal` wrote with `adapter`, or any adapter of PEFT.
        output: A folder that does not exist.
        model: The checkpoint it was trained on; by default the one that the adapter names.
        remote_code: Let the checkpoint's own Python files run, and carry them.
        say: Called when a slow step begins.

    Raises:
        RopepatchError: the adapter does not fit, or the merged model is not the same; nothing was
            written.

    Example:
        >>> from ropepatch import merge
        >>> merge("model-64k-adapter", "model-64k-healed")  # doctest: +SKIP
    """
    import torch

    from ropepatch.healing.weights import dtype_of, put_into, shards_of
    from ropepatch.loading import load
    from ropepatch.model.skeleton import quiet

    place, target = Path(adapter), Path(output)
    record = _record(place)
    name = str(model or _base_of(place))
    source = find_source(name)
    checkpoint = read_checkpoint(source.folder)
    _check_base(place, record, source.folder, name)
    check_target(target, source.folder)
    stage = _stage(target, place)
    try:
        with quiet():
            say("merging the adapter")
            wanted = merged_weights(source.folder, place, stage / "merged", probe=True)
            put_into(source.folder, stage / "merged", stage / "weights")
            dtype = dtype_of(shards_of(source.folder))
            errors: list[float] = []

            def proved(folder: Path) -> Mapping[str, Any]:
                say("reading the result back")
                reloaded: Any = load(folder, remote_code=remote_code, dtype=torch.float32).eval()
                error = float((_logits(reloaded) - wanted).abs().max())
                least = _TOLERANCE if dtype == torch.float32 else 0.5
                if not error <= least * max(float(wanted.abs().max()), 1.0):
                    raise VerificationError(
                        f"the merged model gives other logits than the adapter (by {error:.2g}); "
                        "nothing was written."
                    )
                errors.append(error)
                words = dict(record.get("training", {}))
                return {**words, "merged": str(place), "proof": {"logits_error": error}}

            write_trained(
                checkpoint,
                source,
                stage / "weights",
                target,
                proved=proved,
                lines=_card_lines,
                remote_code=remote_code,
            )
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Merged(target, name, errors[0])


def merged_weights(base: Path, adapter: Path, into: Path, *, probe: bool = False) -> Any:
    """Write the weights of a checkpoint with an adapter in them.

    Args:
        base: Folder of the checkpoint.
        adapter: Folder of the adapter.
        into: A folder for the weights.
        probe: Whether to read a few tokens with the adapter applied, not merged.

    Returns:
        Logits of those, (16, vocabulary), or None.

    Raises:
        HealingError: the adapter does not fit.
    """
    import torch

    from ropepatch.healing.adapters import applied
    from ropepatch.loading import load

    model: Any = load(base, dtype=torch.float32).eval()
    wrapped = applied(model, adapter)
    found = _logits(wrapped.eval()) if probe else None
    wrapped.merge_and_unload(safe_merge=True).save_pretrained(into)
    return found


def _stage(target: Path, adapter: Path) -> Path:
    """A folder for the weights, on the disk that they will stay on."""
    if target.absolute().is_relative_to(adapter.absolute()):
        raise CheckpointError(f"the output {target} lies inside the adapter's own folder.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".ropepatch-merge-", dir=target.parent))
    except OSError as error:
        raise CheckpointError(f"cannot write {target}: {error.strerror}.") from None


def _logits(model: Any) -> Any:
    import torch

    size = int(model.get_input_embeddings().weight.shape[0])
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(size, (1, _PROBE), generator=generator)
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0, -16:].float()


def _record(adapter: Path) -> dict[str, Any]:
    if not (adapter / "adapter_config.json").is_file():
        raise CheckpointError(f"{adapter} holds no adapter (adapter_config.json).")
    if not (adapter / "adapter_model.safetensors").is_file():
        raise CheckpointError(
            f"{adapter} has no adapter_model.safetensors; pickled adapters are not read."
        )
    if not (adapter / RECORD).is_file():
        return {}
    return read_json(adapter / RECORD)[0]


def _base_of(adapter: Path) -> str:
    words, _ = read_json(adapter / "adapter_config.json")
    name = words.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise HealingError(f"{adapter} does not say what it was trained on; name it with --model.")
    return name


def _check_base(adapter: Path, record: Mapping[str, Any], base: Path, name: str) -> None:
    wanted = record.get("base", {}).get("fingerprint")
    if wanted is not None and wanted != fingerprint(base):
        raise HealingError(
            f"{adapter} was trained on another checkpoint than {name}; name the one it was trained "
            f"on ({record['base'].get('model')})."
        )


def _card_lines(training: Mapping[str, Any]) -> list[str]:
    return ["## Recovery training", "", "A trained adapter was merged into the weights."]
