"""Unpack the Python sources of serving engines, for tests that run their rotary code on a CPU.

    python recipes/fetch_engines.py FOLDER
    ROPEPATCH_ENGINES=FOLDER pytest -m slow tests/serving

Nothing is installed and nothing of the packages runs. They come from the index that pip is set to,
through pip's own finder and session, and are checked against the hash that the index names.
"""

import hashlib
import io
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ENGINES = {"vllm": ("0.33.0", False), "sglang": ("0.5.23", True)}
"""Version, and whether it is a wheel (SGLang has no other file)."""


def fetch(name: str, version: str, *, wheel: bool) -> bytes:
    """The one file of a version, as the index describes it.

    Raises:
        ValueError: there is none, or it is not what the index says.
    """
    from pip._internal.commands import create_command  # late: it takes setuptools' place in turns

    command: Any = create_command("download")
    with command.main_context():
        options, _ = command.parse_args(["--quiet", "--no-deps"])
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        links = [
            found.link
            for found in finder.find_all_candidates(name)
            if str(found.version) == version and found.link.is_wheel == wheel
        ]
        if not links:
            raise ValueError(f"the index has no {name} {version} for this Python")
        link = links[0]
        if link.hash_name != "sha256":
            raise ValueError(f"the index names no sha256 of {link.filename}")
        answer = session.get(link.url_without_fragment)
        answer.raise_for_status()
    data: bytes = answer.content
    if hashlib.sha256(data).hexdigest() != link.hash:
        raise ValueError(f"{link.filename} is not what the index says: its sha256 differs")
    return data


def members(data: bytes, *, wheel: bool) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the Python files of a wheel or a source archive."""
    if wheel:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".py"):
                    yield info.filename, archive.read(info)
        return
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None and member.name.endswith(".py"):
                yield member.name.partition("/")[2], file.read()


def unpack(name: str, data: bytes, target: Path, *, wheel: bool) -> int:
    """Write the package's Python files below `target`, which appears whole or not at all.

    Raises:
        ValueError: there are none, or a name leads out of the folder.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        stage, count = Path(folder) / name, 0
        for member, content in members(data, wheel=wheel):
            path = PurePosixPath(member)
            if path.parts[:1] != (name,):
                continue
            if ".." in path.parts or "\\" in member:
                raise ValueError(f"a file of {name} would leave its folder: {member!r}")
            place = stage.joinpath(*path.parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            count += 1
        if not count:
            raise ValueError(f"{name} holds no Python files")
        shutil.move(stage, target)
    return count


def main() -> None:
    """Fetch what is not there yet."""
    if len(sys.argv) != 2:
        sys.exit("usage: python recipes/fetch_engines.py FOLDER")
    folder = Path(sys.argv[1])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (version, wheel) in ENGINES.items():
            target = folder / name
            if target.exists():
                print(f"{target}: there already")
                continue
            data = fetch(name, version, wheel=wheel)
            count = unpack(name, data, target, wheel=wheel)
            print(f"{target}: {count} files of {name} {version}")
    except Exception as error:  # pip's own errors have no common class
        message = " ".join(str(error).split()) or type(error).__name__
        sys.exit(f"fetch_engines: {message}")


if __name__ == "__main__":
    main()
