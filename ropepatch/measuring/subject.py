"""The model that is measured: looked at, weighed, then loaded."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropepatch.checkpoint.fingerprint import fingerprint
from ropepatch.checkpoint.folder import read_config
from ropepatch.checkpoint.source import find_source
from ropepatch.config_json.layout import Layout
from ropepatch.errors import CheckpointError, EvaluationError
from ropepatch.extending import inspect
from ropepatch.loading import load
from ropepatch.measuring.identity import as_it_was, layout_of, print_of
from ropepatch.measuring.ranks import Ranks, ranks
from ropepatch.runtime.words import is_converted

if TYPE_CHECKING:
    from ropepatch.evaluate.tokens import Tokens

_DTYPES = ("auto", "float32", "float16", "bfloat16")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Opening:
    """How a model is loaded."""

    model: str
    revision: str | None = None
    tokenizer: str | None = None
    """Of another folder or id; None for the model's own."""
    dtype: str = "auto"
    """On a CPU float32, elsewhere the checkpoint's own."""
    device: str = "auto"
    device_map: str | None = None
    """As of transformers: "auto" spreads the model over all devices."""
    attention: str | None = None
    remote_code: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise EvaluationError(f"dtype '{self.dtype}' is none of: {', '.join(_DTYPES)}.")


@dataclass
class Subject:
    """A loaded model with all that an evaluation asks of it."""

    name: str
    model: Any
    tokens: "Tokens"
    layout: Layout | None
    """None where nothing turns."""
    fingerprint: str
    """Of the config and the weights, without reading those."""
    ranks: Ranks = field(default_factory=Ranks)

    @classmethod
    def of(cls, model: Any, tokenizer: Any, name: str | None = None) -> "Subject":
        """A live model of transformers, patched or not, as it stands.

        Args:
            model: With a language-model head; it is measured in evaluation mode.
            tokenizer: Of transformers.
            name: For reports; None for the class's.

        Raises:
            EvaluationError: it has no language-model head.
        """
        from ropepatch.evaluate.tokens import Tokens

        name = name or type(model).__name__
        if getattr(model, "get_output_embeddings", lambda: None)() is None:
            raise EvaluationError(f"{name} has no language-model head to measure.")
        found = cls(name, model.eval(), Tokens(tokenizer), layout_of(model), print_of(model))
        return found

    @property
    def trained_length(self) -> int | None:
        """Tokens of pretraining."""
        return None if self.layout is None else self.layout.trained_length

    @property
    def vocabulary(self) -> int:
        """Token ids that the model can read."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def device(self) -> str:
        """In words."""
        import torch

        kind = self.model.get_input_embeddings().weight.device
        return torch.cuda.get_device_name(kind) if kind.type == "cuda" else str(kind.type)

    @property
    def dtype(self) -> str:
        """Of its parameters."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def attention(self) -> str:
        """What computes attention."""
        return str(self.model.config.get_text_config(decoder=True)._attn_implementation)

    def ends(self) -> tuple[int, ...]:
        """Token ids that end generation."""
        found = getattr(self.model.generation_config, "eos_token_id", None)
        ends = [] if found is None else list(found) if isinstance(found, list) else [int(found)]
        own = self.tokens.end()
        return tuple(dict.fromkeys([*ends, *([] if own is None else [own])]))


class Candidate:
    """A model that was found and not loaded yet."""

    def __init__(self, opening: Opening, say: Say = lambda text: None) -> None:
        """Find it and read its config.

        Raises:
            RopepatchError: there is no such model, or its config is none of a text model.
        """
        self.opening = opening
        found = inspect(opening.model, opening.revision)
        self.layout = found.rotary
        source = find_source(opening.model, opening.revision)
        self.folder = source.folder
        if source.is_gguf:
            from ropepatch.model.gguf import dequantised

            self.folder = dequantised(source.folder, say)
        self.raw, _ = read_config(self.folder)
        self.ranks = ranks(opening.device)

    def device(self) -> str:
        """Where it will be: cpu, cuda, mps."""
        import torch

        if self.ranks.state is not None:
            device = self.ranks.state.device
            return "cpu" if device.type == "cpu" else str(device)
        asked = self.opening.device
        if asked.startswith("cuda"):
            number = asked.partition(":")[2] or "0"
            if not number.isdigit() or int(number) >= torch.cuda.device_count():
                raise EvaluationError(
                    f"there is no device '{asked}' here: torch finds {torch.cuda.device_count()} "
                    "CUDA devices."
                )
        if asked != "auto":
            return asked
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"

    def config(self) -> Any:
        """Of its text part, transformers' own."""
        from ropepatch.model.skeleton import config_of, quiet

        raw = dict(as_it_was(self.raw))
        with quiet():
            if is_converted(self.raw):  # the folder's own class is that of the converted model
                from transformers import CONFIG_MAPPING

                return CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
            config = config_of(raw, self.folder, remote_code=self.opening.remote_code)
        return config

    def parameters(self) -> int:
        """Numbers in its weights, counted without reading them."""
        from ropepatch.model.skeleton import meta_model, quiet

        with quiet():
            model = meta_model(self.config(), remote_code=self.opening.remote_code)
        return int(sum(p.numel() for p in model.parameters()))

    def dtype(self) -> Any:
        """What its weights will be, "auto" for what they are."""
        import torch

        if self.opening.dtype != "auto":
            return getattr(torch, self.opening.dtype)
        return torch.float32 if self.device() == "cpu" else "auto"

    def dtype_bytes(self) -> int:
        """Per number."""
        import torch

        dtype = self.dtype()
        if dtype == "auto":
            named = self.config().get_text_config(decoder=True).dtype
            dtype = named if isinstance(named, torch.dtype) else torch.float32
        return int(dtype.itemsize)

    def tokens(self) -> "Tokens":
        """Its tokenizer.

        Raises:
            CheckpointError: there is none.
        """
        return tokens_of(
            self.opening.tokenizer or str(self.folder), remote_code=self.opening.remote_code
        )

    def load(self) -> Subject:
        """With its weights.

        Raises:
            RopepatchError: it cannot be loaded, or is no causal language model.
        """
        from ropepatch.model.skeleton import quiet

        opening, tokens = self.opening, self.tokens()
        words: dict[str, Any] = {"dtype": self.dtype()}
        if opening.attention is not None:
            words["attn_implementation"] = opening.attention
        if opening.device_map is not None:
            words["device_map"] = opening.device_map
        with quiet():
            try:
                model: Any = load(self.folder, remote_code=opening.remote_code, **words).eval()
            except (ValueError, ImportError) as error:  # an attention that is not there, a map
                reason = " ".join(str(error).split())[:300]
                raise EvaluationError(f"{opening.model} cannot be loaded: {reason}") from error
            if opening.device_map is None:
                model = _moved(model, self.device())
        if model.get_output_embeddings() is None:
            raise EvaluationError(
                f"{opening.model} is a {type(model).__name__}, which has no language-model head "
                "to measure."
            )
        return Subject(
            opening.model, model, tokens, self.layout, fingerprint(self.folder), self.ranks
        )


def tokens_of(folder: str, *, remote_code: bool = False) -> "Tokens":
    """The tokenizer of a folder or id.

    Raises:
        CheckpointError: there is none.
    """
    from transformers import AutoTokenizer

    from ropepatch.evaluate.tokens import Tokens
    from ropepatch.model.skeleton import quiet

    if folder.startswith(("/", ".", "~")) and not Path(folder).expanduser().exists():
        raise CheckpointError(f"the tokenizer {folder} does not exist.")
    try:
        with quiet():
            return Tokens(AutoTokenizer.from_pretrained(folder, trust_remote_code=remote_code))
    except Exception as error:  # files of somebody else, by whatever reader
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{folder} has no tokenizer that can be read: {reason}") from error


def _moved(model: Any, device: str) -> Any:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise EvaluationError(f"device '{device}' cannot be used: {reason}") from error
