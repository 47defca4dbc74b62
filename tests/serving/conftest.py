"""The program in this process."""

import sys
from pathlib import Path

import pytest

from ropepatch_cli.app import main
from tests.end_to_end.program import Answer, Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call the program with these arguments."""

    def call(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["ropepatch", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        code = left.value.code
        return Answer(code if isinstance(code, int) else 0, said.out, said.err)

    return call
