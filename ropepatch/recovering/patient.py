"""The checkpoint that is to be trained, and its teacher: looked at before anything is loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropepatch.checkpoint.fingerprint import fingerprint
from ropepatch.checkpoint.folder import Checkpoint, read_checkpoint
from ropepatch.checkpoint.source import Source, find_source
from ropepatch.config_json.converted import erase_conversion, read_conversion
from ropepatch.config_json.encodings import plan_conversion
from ropepatch.config_json.live import write_live
from ropepatch.config_json.paths import text_part
from ropepatch.config_json.plan import STAMP, erase_recipe
from ropepatch.conversion import ConversionRecipe
from ropepatch.errors import ConfigError, HealingError
from ropepatch.extending import Inspection, dequantised_source, inspect
from ropepatch.healing.plan import HealPlan
from ropepatch.methods.table import METHODS
from ropepatch.recipe import Recipe

Say = Callable[[str], None]


@dataclass(frozen=True)
class Patient:
    """A checkpoint, by its config and its files."""

    name: str
    source: Source
    checkpoint: Checkpoint
    inspection: Inspection
    window: int | None
    """Tokens it is meant for; None where nothing in it ends at a length."""

    @classmethod
    def find(cls, model: str, revision: str | None, say: Say) -> "Patient":
        """A folder, an id of the hub, or a GGUF file.

        Raises:
            RopepatchError: it is none, or not whole.
        """
        found = inspect(model, revision)
        source = find_source(model, revision)
        if source.is_gguf:
            source = dequantised_source(source, say)
        checkpoint = read_checkpoint(source.folder)
        return cls(model, source, checkpoint, found, _window(found))

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.checkpoint.path

    def beside(self, word: str) -> Path:
        """A folder named after it: beside a local one, else in the working directory."""
        name = Path(self.name).absolute().name.removesuffix(".gguf")
        local = self.source.revision is None and Path(self.name).expanduser().exists()
        parent = Path(self.name).expanduser().absolute().parent if local else Path.cwd()
        return parent / f"{name}-{word}"

    @property
    def follows_length(self) -> bool:
        """Whether its frequencies depend on how long a text is."""
        stamp = self.inspection.stamp or {}
        recipe = stamp.get("recipe")
        if isinstance(recipe, dict) and recipe.get("short_exact"):
            return True
        layout = self.inspection.rotary
        methods = [s.method for s in layout.schedules.values()] if layout is not None else []
        named = [recipe.get("method")] if isinstance(recipe, dict) else []
        return any(m is not None and (m.length_dependent or m.grows) for m in methods) or any(
            METHODS[n].grows or METHODS[n].length_dependent for n in named if n in METHODS
        )

    @property
    def trained_length(self) -> int:
        """Tokens of pretraining."""
        return self.inspection.layout.trained_length

    @property
    def is_changed(self) -> bool:
        """Whether its positions are other than they were in pretraining."""
        if self.inspection.conversion is not None or self.inspection.stamp is not None:
            return True
        layout = self.inspection.rotary
        return layout is not None and any(
            schedule.method is not None and not schedule.method.idle
            for schedule in layout.schedules.values()
        )

    @property
    def vocabulary(self) -> int | None:
        """Token ids that it can read, as its config says."""
        text = text_part(self.checkpoint.config, self.inspection_path)
        size = text.get("vocab_size", self.checkpoint.config.get("vocab_size"))
        return size if isinstance(size, int) else None

    @property
    def inspection_path(self) -> tuple[str, ...]:
        """Where in the config its text part lies."""
        return () if self.inspection.rotary is None else self.inspection.rotary.path

    def fingerprint(self) -> str:
        """What tells it from others, without reading all of it."""
        return fingerprint(self.folder)

    def tokenizer(self) -> Any:
        """Of transformers.

        Raises:
            CheckpointError: there is none.
        """
        from ropepatch.measuring.subject import tokens_of

        return tokens_of(str(self.folder)).tokenizer

    def config(self) -> Any:
        """Of its text part, transformers' own."""
        from ropepatch.measuring.subject import Candidate, Opening

        return Candidate(Opening(str(self.folder), device="cpu")).config()

    def parameters(self) -> int:
        """Numbers in its weights, counted without reading them."""
        from ropepatch.measuring.subject import Candidate, Opening

        return Candidate(Opening(str(self.folder), device="cpu")).parameters()


def check_lengths(patient: Patient, plan: HealPlan) -> int:
    """Tokens of a short sequence.

    Raises:
        HealingError: sequences are longer than the patched window, or cannot be cut evenly.
    """
    if patient.window is not None and plan.seq_len > patient.window:
        raise HealingError(
            f"seq_len {plan.seq_len:,} is over the {patient.window:,} tokens that {patient.name} "
            f"is patched for; take at most that, or extend it further first."
        )
    short = plan.short_len or patient.trained_length
    wants_short = plan.short_share > 0 or any(s.short_share for s in plan.stages)
    if wants_short and (short > plan.seq_len or plan.seq_len % short):
        raise HealingError(
            f"short sequences of {short:,} tokens do not divide seq_len {plan.seq_len:,}; give "
            "--short-len a part of it."
        )
    return short


def check_method(patient: Patient, plan: HealPlan) -> None:
    """Refuse what the patch of a model cannot do.

    Raises:
        HealingError: as said.
    """
    if plan.fade and patient.follows_length:
        raise HealingError(
            f"the frequencies of {patient.name} follow the length of the text, so the change "
            "cannot come in little by little; leave out fade."
        )
    if plan.short_original and not patient.follows_length:
        raise HealingError(
            "short_original reads short sequences under the frequencies from before the patch, "
            f"which {patient.name} does not keep; patch with short_exact, or longrope."
        )


def check_changed(patient: Patient) -> None:
    """Refuse a model whose positions are as they were in pretraining.

    Raises:
        HealingError: as said.
    """
    if not patient.is_changed:
        raise HealingError(
            f"{patient.name} is not patched (plain RoPE, trained on {patient.trained_length:,} "
            "tokens), so there is nothing to recover from; `ropepatch extend` or `ropepatch "
            "convert` it first."
        )


def check_teacher(patient: Patient, teacher: Patient) -> None:
    """Refuse a teacher that cannot teach this model.

    Raises:
        HealingError: it is the model itself, or reads other tokens.
    """
    if patient.fingerprint() == teacher.fingerprint():
        raise HealingError(
            f"the teacher {teacher.name} is the model itself; name the model from before its patch."
        )
    ours, theirs = patient.vocabulary, teacher.vocabulary
    if ours != theirs:
        raise HealingError(
            f"the teacher {teacher.name} has a vocabulary of {theirs} tokens, {patient.name} "
            f"one of {ours}; a teacher must be of the same tokenizer, best the model before its "
            "patch."
        )
    probe = "The 12th of May: naïve readers, 北京, don't\n\n  stop."
    own, other = (p.tokenizer()(probe).input_ids for p in (patient, teacher))
    if list(own) != list(other):
        raise HealingError(
            f"the tokenizers of {patient.name} and of the teacher {teacher.name} cut a text "
            "differently; a teacher must be of the same tokenizer."
        )


def _window(found: Inspection) -> int | None:
    if found.conversion is not None:
        recipe = ConversionRecipe.from_words(found.conversion["conversion"])
        plan = plan_conversion(erase_conversion(found.config), recipe)
        return None if plan.is_whole else plan.target_length
    stamp = found.config.get(STAMP)
    if isinstance(stamp, dict) and "asked" in stamp and read_conversion(found.config) is None:
        return None  # no position encoding at all, in transformers' own words
    if isinstance(stamp, dict) and "recipe" in stamp:
        recipe_ = Recipe.from_dict(stamp["recipe"])
        return write_live(erase_recipe(found.config), recipe_, replace=True).target_length
    if found.rotary is None:
        return None
    try:
        return max(found.rotary.configured_length, found.rotary.trained_length)
    except ConfigError:
        return None
