"""README's first command, on the real checkpoint it fetches."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_quickstart(tmp_path: Path) -> None:
    environment = os.environ | {"ROPEPATCH_CACHE": str(tmp_path), "OMP_NUM_THREADS": "2"}
    if sys.prefix != sys.base_prefix:  # reuse the environment that runs the tests
        environment["ROPEPATCH_VENV"] = sys.prefix
    done = subprocess.run(
        ["bash", str(ROOT / "recipes" / "quickstart.sh")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "applied to 30 of 30 layers" in done.stdout
    assert "21/32" in done.stdout  # pairs that YaRN x4 changes in SmolLM2
    assert "30 attentions changed" in done.stdout
    found = re.search(r"([\d,.]+) before, ([\d,.]+) now", done.stdout)
    assert found
    before, now = (float(number.replace(",", "")) for number in found.groups())
    assert 20 < before < 40, "SmolLM2's perplexity on the passage"
    assert now > 10 * before, "a conversion alone breaks it"
    (written,) = tmp_path.glob("quickstart/*yarn*/ropepatch.json")
    assert written.is_file()
    compared = tmp_path / "quickstart" / "tiny-compare"
    assert (compared / "report.html").is_file()
    assert (compared / "needle-niah_single.png").is_file()
    scores = re.search(r"^none +\*1\.00 +\*1\.00 +\S+ +(\S+)$", done.stdout, re.MULTILINE)
    assert scores, "within its window the tiny model finds everything"
    assert float(scores[1]) < 0.3
    plain, patched = _losses_at("16,384", done.stdout)
    assert plain > 3 * patched, "at twice the trained length only the extended model can copy"


def _losses_at(place: str, output: str) -> tuple[float, float]:
    """Losses without and with the extension where the second reading ends at `place`."""
    row = re.search(rf"^ *{place}  +(\d+\.\d+)  +(\d+\.\d+)$", output, re.MULTILINE)
    assert row, output[-3000:]
    return float(row[1]), float(row[2])
