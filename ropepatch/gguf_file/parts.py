"""Models that are split into several GGUF files, `NAME-00001-of-00003.gguf` and so on."""

import re
from pathlib import Path

from ropepatch.errors import CheckpointError
from ropepatch.gguf_file.reading import read_survey
from ropepatch.gguf_file.survey import Survey

PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
_MOST_PARTS = 4096


def read_parts(path: Path) -> tuple[Survey, tuple[Path, ...]]:
    """The header that holds the metadata, and the other files of a split model.

    Args:
        path: A GGUF file; the first one of a split model.

    Raises:
        CheckpointError: it is a later one, or one is missing or does not belong.
    """
    survey = read_survey(path)
    count = survey.value("split.count") or 1
    if type(count) is not int or not 0 < count <= _MOST_PARTS:
        raise CheckpointError(f"split.count of {path} is {count!r}, which makes no sense.")
    if count == 1:
        return survey, ()
    named = PART.fullmatch(path.name)
    if named is None or int(named["parts"]) != count:
        raise CheckpointError(
            f"{path} is one of {count} files of a split model, and is not called "
            f"NAME-00001-of-{count:05d}.gguf as llama.cpp wants it."
        )
    names = [f"{named['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    if survey.value("split.no") != 0 or path.name != names[0]:
        raise CheckpointError(f"{path} is not the first of {count} files; give {names[0]}.")
    others = tuple(path.with_name(name) for name in names[1:])
    for number, other in enumerate(others, 1):
        if not other.is_file():
            raise CheckpointError(f"{other} is missing; the model is split into {count} files.")
        part = read_survey(other)
        if part.value("split.no") != number or part.value("split.count") != count:
            raise CheckpointError(f"{other} is not part {number + 1} of the model {path}.")
    return survey, others


def stem_of(path: Path) -> str:
    """The name of a model's file without `.gguf` and without its number."""
    named = PART.fullmatch(path.name)
    return named["stem"] if named else path.stem
