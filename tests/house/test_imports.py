"""Who may import whom: the contracts hold, they bite, and light imports stay light."""

import graphlib
import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest

from ropepatch.methods.table import METHODS

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "accelerate", "matplotlib", "numpy")


def contracts() -> list[dict[str, Any]]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return found


def run(*arguments: str, cwd: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter in `cwd`; it imports both packages from `root`."""
    path = os.pathsep.join([str(root), str(root / "cli")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=dict(os.environ, PYTHONPATH=path),
        capture_output=True,
        text=True,
        check=False,
    )


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\n"
        "from importlinter.cli import lint_imports\n"
        "sys.exit(lint_imports('pyproject.toml', no_cache=True, no_logo=True))"
    )
    return run("-c", code, cwd=root, root=root)


def loaded_by(code: str, cwd: Path) -> set[str]:
    """The top-level packages in memory after `code` ran, whatever it printed."""
    code += "\nimport sys\nprint('\\n' + ' '.join({m.partition('.')[0] for m in sys.modules}))"
    answer = run("-c", code, cwd=cwd)
    assert answer.returncode == 0, answer.stderr
    return set(answer.stdout.splitlines()[-1].split())


def test_contracts_hold() -> None:
    answer = lint(ROOT)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("ropepatch/geometry.py", "import ropepatch.recipe", "A floor of the library"),
        ("ropepatch/checkpoint/planted.py", "import ropepatch.model", "A floor of the library"),
        ("ropepatch/planted.py", "", "A floor of the library"),
        ("ropepatch/extending.py", "import ropepatch_cli.app", "The library does not know"),
        ("ropepatch/model/planted.py", "import ropepatch.checkpoint", "Files on disk, live models"),
        ("ropepatch/methods/pi.py", "import typer", "Everything below the live model"),
        ("ropepatch/checkpoint/planted.py", "import torch", "Everything below the live model"),
        ("ropepatch/methods/pi.py", "import ropepatch.methods.yarn", "No method imports another"),
    ],
)
def test_contracts_bite(tmp_path: Path, file: str, line: str, broken: str) -> None:
    for folder in ("ropepatch", "cli"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / file).open("a", encoding="utf-8") as module:
        module.write(f"\n{line}\n")
    answer = lint(tmp_path)
    assert answer.returncode != 0, f"'{line}' in {file} went unnoticed"
    said = " ".join((answer.stdout + answer.stderr).split())
    assert broken in said
    assert Path(file).stem in said


def test_no_import_cycle() -> None:
    graph = grimp.build_graph("ropepatch", "ropepatch_cli", cache_dir=None)
    order = graphlib.TopologicalSorter(
        {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    )
    try:
        order.prepare()
    except graphlib.CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


def test_every_method_is_under_the_contract() -> None:
    named = next(c["modules"] for c in contracts() if c["name"] == "No method imports another")
    assert set(named) == {method.__module__ for method in METHODS.values()}


HELP = """
import contextlib, runpy, sys
sys.argv = ["ropepatch", "--help"]
with contextlib.suppress(SystemExit):
    runpy.run_module("ropepatch_cli", run_name="__main__")
"""


@pytest.mark.parametrize(
    "code",
    ["import ropepatch", "import ropepatch_cli.app", HELP],
    ids=["library", "cli", "help"],
)
def test_light_imports_stay_light(tmp_path: Path, code: str) -> None:
    assert loaded_by(code, tmp_path).isdisjoint(HEAVY)


def test_help_speaks(tmp_path: Path) -> None:
    answer = run("-m", "ropepatch_cli", "--help", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "Usage" in answer.stdout


def test_torch_free_modules_load_no_torch(tmp_path: Path) -> None:
    """Every module that the contract calls torch-free, at run time and through third parties."""
    contract = next(c for c in contracts() if "torch" in c.get("forbidden_modules", ()))
    graph = grimp.build_graph("ropepatch", cache_dir=None)
    modules = sorted(
        module
        for package in contract["source_modules"]
        for module in {package} | graph.find_descendants(package)
    )
    loaded = loaded_by("\n".join(f"import {module}" for module in modules), tmp_path)
    assert loaded.isdisjoint(contract["forbidden_modules"])


def test_public_names_resolve() -> None:
    package = importlib.import_module("ropepatch")
    for name in package.__all__:
        assert getattr(package, name) is not None
