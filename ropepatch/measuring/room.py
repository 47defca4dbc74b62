"""Whether a run fits into memory, and in chunks of what size."""

from typing import Any

from ropepatch.errors import EvaluationError
from ropepatch.measuring.settings import Settings
from ropepatch.measuring.subject import Candidate, Subject


def reader_of(subject: Subject, longest: int, settings: Settings, *, whole: bool = False) -> Any:
    """A reader of the model, its chunk chosen by the memory that is free.

    Args:
        subject: Whose model.
        longest: Tokens of the longest text.
        settings: As asked.
        whole: Whether a text is best read in one go, which then needs no cache.
    """
    from ropepatch.evaluate.reader import LEAST_CHUNK, Reader
    from ropepatch.model.length_pins import length_pin

    if settings.chunk is not None and settings.chunk < LEAST_CHUNK:
        raise EvaluationError(f"a prefill chunk has at least {LEAST_CHUNK} tokens.")
    chunk = settings.chunk or chunk_of(
        subject.model.config.get_text_config(decoder=True),
        longest,
        subject.model.get_input_embeddings().weight,
        eager=subject.attention == "eager",
        most=longest if whole else 0,
    )
    return Reader(subject.model, chunk=chunk, at_length=length_pin(subject.model))


def chunk_of(config: Any, longest: int, weight: Any, *, eager: bool, most: int = 0) -> int:
    """Tokens per forward that take at most a quarter of the memory that is free."""
    from ropepatch.evaluate.memory import fitting_chunk, free_bytes, need
    from ropepatch.evaluate.reader import DEFAULT_CHUNK, LEAST_CHUNK

    room = free_bytes(weight.device.type) / 4

    def fits(chunk: int) -> bool:
        found = need(
            config,
            parameters=0,
            length=longest,
            chunk=chunk,
            dtype_bytes=weight.dtype.itemsize,
            eager=eager,
        )
        return found.chunk <= room

    return fitting_chunk(max(DEFAULT_CHUNK, most), fits) or LEAST_CHUNK


def check_memory(candidate: Candidate, longest: int, settings: Settings, copies: int) -> str:
    """What a run will need at its peak, in words; before any weight is read.

    Raises:
        EvaluationError: more than is free.
    """
    from ropepatch.evaluate.memory import Need, check, free_bytes, gib, need
    from ropepatch.evaluate.reader import LEAST_CHUNK

    config = candidate.config().get_text_config(decoder=True)
    device = candidate.device()
    spread = candidate.opening.device_map is not None or ":" in device or device != "cuda"
    size, free = candidate.dtype_bytes(), free_bytes(device if spread else f"{device}:0")
    words: dict[str, Any] = {
        "parameters": candidate.parameters(),
        "dtype_bytes": size,
        "eager": candidate.opening.attention == "eager",
    }

    def least(length: int) -> Need:
        chunk = settings.chunk or 8 * LEAST_CHUNK
        return need(config, length=length, chunk=chunk, copies=1, **words)

    check(least, free, length=longest, dtype_bytes=size)
    usual = need(config, length=longest, chunk=settings.chunk or 1024, copies=copies, **words)
    return f"memory at the peak: about {usual}, {gib(free)} free"
