"""`recipes/fetch_engines.py`, without an index: nothing leaves the folder, faults are one line."""

import importlib.util
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "recipes" / "fetch_engines.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_engines", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(files: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def sdist(files: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"x-1.0/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
        link = tarfile.TarInfo("x-1.0/x/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return data.getvalue()


@pytest.mark.parametrize("is_wheel", [True, False])
def test_only_the_packages_python_files_are_written(
    tmp_path: Path, script: ModuleType, is_wheel: bool
) -> None:
    pack = wheel if is_wheel else sdist
    files = {"x/a.py": "A", "x/b/c.py": "C", "x/d.so": "D", "setup.py": "S", "y/e.py": "E"}
    assert script.unpack("x", pack(files), tmp_path / "x", wheel=is_wheel) == 2
    written = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert written == {"x/x/a.py", "x/x/b/c.py"}
    assert (tmp_path / "x" / "x" / "a.py").read_text() == "A"


@pytest.mark.parametrize("name", ["x/../../evil.py", "x/..\\evil.py"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, script: ModuleType, name: str) -> None:
    place = tmp_path / "inside"
    place.mkdir()
    with pytest.raises(ValueError, match="would leave its folder"):
        script.unpack("x", wheel({"x/a.py": "A", name: "evil"}), place / "x", wheel=True)
    assert list(tmp_path.rglob("*")) == [place]


def test_an_empty_archive_is_said_to_be(tmp_path: Path, script: ModuleType) -> None:
    with pytest.raises(ValueError, match="holds no Python files"):
        script.unpack("x", wheel({"y/a.py": ""}), tmp_path / "x", wheel=True)


def test_it_says_how_it_is_called() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "usage: python recipes/fetch_engines.py FOLDER\n"


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    for name in ("vllm", "sglang"):
        (tmp_path / name).mkdir()
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("there already") == 2


def test_a_fault_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "file"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("fetch_engines: ")
