"""What a person installs: the two packages, their data, and nothing else."""

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    answer = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_only_the_two_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ropepatch", "ropepatch_cli"}
    assert len(tops) == 3


def test_every_source_file_is_in(wheel: zipfile.ZipFile) -> None:
    sources = {
        path.relative_to(base).as_posix()
        for base, package in ((ROOT, "ropepatch"), (ROOT / "cli", "ropepatch_cli"))
        for path in (base / package).rglob("*.py")
    }
    assert sources == {name for name in wheel.namelist() if name.endswith(".py")}


@pytest.mark.parametrize(
    "file",
    [
        "ropepatch/py.typed",
        "ropepatch/passage.txt",
        "ropepatch/families/defaults.json",
        "ropepatch/evaluate/texts/nouns.txt",
        "ropepatch/evaluate/texts/prose.txt",
        "ropepatch/evaluate/texts/words.txt",
        "ropepatch/reporting/report.html.j2",
    ],
)
def test_data_files_are_in(wheel: zipfile.ZipFile, file: str) -> None:
    assert file in wheel.namelist()


def test_program_and_licence(wheel: zipfile.ZipFile) -> None:
    (info,) = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    entry_points = configparser.ConfigParser()
    entry_points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert dict(entry_points["console_scripts"]) == {"ropepatch": "ropepatch_cli.app:main"}
    licence = wheel.read(f"{info}/licenses/LICENSE")
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0" in wheel.read(f"{info}/METADATA").decode()
