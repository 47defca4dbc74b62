"""What no file of the repository may say."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Written in two halves, so that this file does not hold them.
NEEDLES = [
    # folders of the machine that ropepatch was written on
    "/wo" + "rk/",
    "bash_jo" + "bs",
    ".libr" + "ary",
    # package indexes: where packages come from is the reader's own pip setting
    "pypi" + ".org",
    "python" + "hosted.org",
    "download.py" + "torch.org",
]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Every file that is tracked, or would be by `git add --all`; binary files left out."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    found = {}
    for name in listing.stdout.decode().split("\0"):
        path = ROOT / name
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        if b"\0" not in data:
            found[name] = data.decode("utf-8", errors="replace")
    return found


def test_the_listing_is_complete(texts: dict[str, str]) -> None:
    assert {"pyproject.toml", "tests/house/test_text.py", "ropepatch/__init__.py"} <= texts.keys()


@pytest.mark.parametrize("needle", NEEDLES)
def test_nothing_names_this_workplace(texts: dict[str, str], needle: str) -> None:
    assert [name for name, text in texts.items() if needle in text] == []
