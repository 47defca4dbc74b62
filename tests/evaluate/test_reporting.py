"""The report: every number is in it, nothing is fetched, damage is one line."""

import html
import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ropepatch.errors import EvaluationError
from ropepatch.geometry import RotaryGeometry
from ropepatch.reporting import numbers
from ropepatch.reporting.collect import collect
from ropepatch.reporting.headline import headline
from ropepatch.reporting.page import Written, write_report
from ropepatch_cli import measuring
from ropepatch_cli.commands import report

LENGTHS = [256, 512, 1024]
DEPTHS = [0.0, 50.0, 100.0]
GEOMETRY = RotaryGeometry(8, 8, 10000.0, 512)


def about(label: str, factor: float, **more: Any) -> dict[str, Any]:
    base = list(GEOMETRY.inverse_frequencies())
    frequencies = {
        "geometry": {"head_dim": 8, "rotary_dim": 8, "theta": 10000.0, "trained_length": 512},
        "base": base,
        "now": [f / factor for f in base],
        "attention_factor": 1.0,
    }
    return {
        "label": label,
        "model": "org/tiny",
        "trained_length": 512,
        "target_length": 1024,
        "command": f"ropepatch compare --methods '{label}' --output out",
        "versions": {"ropepatch": "0.1.0", "transformers": "5.1.2", "torch": "2.9.3"},
        "device": "cpu",
        "documents": 4711,
        "recipe": {"method": "pi", "factor": factor},
        "frequencies": {"": frequencies},
        **more,
    }


def write_run(
    folder: Path, asked: dict[str, Any], words: dict[str, Any], records: list[dict[str, Any]]
) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"asked": asked, "about": words}))
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "results.jsonl").write_text("".join(lines))
    return folder


def needle_run(folder: Path, words: dict[str, Any], right: dict[int, int], **plan: Any) -> Path:
    """So many of the three depths are answered at each length; -1: all failed."""
    asked = {
        "kind": "needle",
        "plan": {
            "lengths": LENGTHS,
            "tasks": ["niah_single"],
            "depths": DEPTHS,
            "trials": 1,
            "seed": 7,
            "protocol": "independent",
            **plan,
        },
        "model": folder.as_posix(),
        "dtype": "float32",
        "attention": "sdpa",
        "scoring": "likelihood",
        "chat": False,
        "haystack": "plain",
    }
    records = []
    for length, count in right.items():
        for i, depth in enumerate(DEPTHS):
            record = {"task": "niah_single", "length": length, "depth": depth, "trial": 0}
            score: dict[str, Any] = {"failed": "out of memory"}
            if count >= 0:
                score = {"exact": int(i < count), "recall": float(i < count), "logprob": -0.125}
            records.append({**record, **score, "tokens": length, "forwarded": length // 2})
    return write_run(folder, asked, words, records)


def perplexity_run(folder: Path, words: dict[str, Any], losses: dict[int, float]) -> Path:
    plan = {"lengths": LENGTHS, "max_windows": 1, "stride": 128, "bos": "auto", "final_tokens": 16}
    asked = {"kind": "perplexity", "plan": plan, "model": folder.as_posix(), "dtype": "float32"}
    record = {
        "kind": "window",
        "document": "book",
        "window": 0,
        "length": 1024,
        "lengths": {str(n): [loss * n, n] for n, loss in losses.items()},
        "buckets": [[0, 512, 1.111 * 512, 512], [512, 1024, 2.222 * 512, 512]],
        "final": {str(n): [(loss + 0.5) * 16, 16] for n, loss in losses.items()},
        "key": {"tokens": 10, "judged": 500, "nats": 5.0},
        "forwarded": 3333,
    }
    sliding = {"kind": "sliding", "document": "book", "window": 0, "length": 256}
    return write_run(folder, asked, words, [record, {**sliding, "sliding": [300.0, 1023]}])


def compared(home: Path) -> Path:
    """What `ropepatch compare` leaves: a folder per method, one per kind in it."""
    none, pi = (
        about("none", 1.0, started="1"),
        about("<script>alert(1)</script> ×2", 2.0, started="2"),
    )
    needle_run(home / "z-none" / "needle", none, {256: 3, 512: 3, 1024: 0})
    perplexity_run(home / "z-none" / "perplexity", none, {256: 2.0, 512: 1.9, 1024: 4.0})
    needle_run(home / "pi" / "needle", pi, {256: 2, 512: 3, 1024: -1})
    perplexity_run(home / "pi" / "perplexity", pi, {256: 2.1, 512: 2.0, 1024: 1.8})
    return home


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return compared(tmp_path / "out")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A report that tests only read."""
    home = tmp_path_factory.mktemp("written")
    return write_report([compared(home / "out")], home / "deep" / "report.html", home / "pictures")


@pytest.fixture(scope="module")
def text(written: Written) -> str:
    return written.page.read_text(encoding="utf-8")


class Reader(HTMLParser):
    """What a browser would fetch, and what a person would read."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "href", "action", "data", "poster"):
                self.fetched.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_holds_every_number(text: str) -> None:
    read = " ".join(Reader(text).text.split())
    for number in (
        *(numbers.perplexity(math.exp(loss)) for loss in (2.0, 1.9, 4.0, 2.1, 1.8, 0.5)),
        *("2.500", "2.300", "1.111", "2.222", numbers.perplexity(math.exp(300 / 1023))),
        *("0.67", "1.00", "0.00", "0.44–1.00", "-0.125", "2.00%", "3,333"),
        "2,688 / 5,376 (50%)",
        "4,711",
        "6 of 9 asked",
        *(
            "5.1.2",
            "2.9.3",
            "float32",
            "sdpa",
            "512",
            "128",
            "independent",
            "factor: 2",
            "org/tiny",
        ),
        "ropepatch compare --methods 'none' --output out",
        "niah_single at 1,024 tokens, 3 ×: out of memory",
        "1 trial a cell, 0 to 3 answers a length",
        "even where far context is ignored",
    ):
        assert number in read, number


def test_the_page_needs_no_network_and_no_scripts(text: str) -> None:
    found = Reader(text)
    assert found.fetched
    assert [what[:30] for what in found.fetched if not what.startswith("data:")] == []
    assert "script" not in found.tags
    assert re.findall(r"url\(|@import", text) == []
    assert "default-src 'none'" in text


def test_labels_are_no_markup(text: str) -> None:
    assert "<script" not in text
    assert html.escape("<script>alert(1)</script> ×2") in text


def test_runs_of_one_method_are_one_row_in_the_order_they_were_started(runs: Path) -> None:
    subjects = collect([runs])
    assert [subject.label for subject in subjects] == ["none", "<script>alert(1)</script> ×2"]
    assert [[run.kind for run in subject.runs] for subject in subjects] == [
        ["needle", "perplexity"]
    ] * 2


def test_the_best_of_each_column_is_marked(runs: Path) -> None:
    table = headline(collect([runs]))
    assert [(column.kind, column.length) for column in table.columns] == [
        (kind, length) for kind in ("needle", "perplexity") for length in LENGTHS
    ]
    (_, none), (_, pi) = table.rows
    assert [cell.best for cell in none] == [True, False, False, True, True, False]
    assert [cell.best for cell in pi] == [False, False, False, False, False, True]
    assert [cell.beyond for cell in none] == [False, False, True] * 2
    assert pi[2].text == "failed"
    assert [table.marks(i) for i in range(6)] == ["kind", "", "edge"] * 2


def test_a_score_with_failures_is_never_the_best(tmp_path: Path) -> None:
    needle_run(tmp_path / "a", about("a", 1.0), {256: 1})
    folder = needle_run(tmp_path / "b", about("b", 2.0), {256: 3})
    with (folder / "results.jsonl").open("a") as file:
        again = {"task": "niah_single", "length": 256, "depth": 0.0, "trial": 0, "failed": "broke"}
        file.write(json.dumps(again) + "\n")
    (_, a), (_, b) = headline(collect([tmp_path])).rows
    assert (b[0].value, b[0].whole, b[0].best) == (1.0, False, False)
    assert (a[0].text, a[0].whole, a[0].best) == ("0.33", True, False)


def test_one_run_alone(tmp_path: Path) -> None:
    folder = needle_run(tmp_path / "run", {}, {256: 3})
    written = write_report([folder], folder / "report.html", tmp_path / "pictures")
    assert [subject.label for subject in written.subjects] == ["run"]
    assert [path.name for path in written.pictures] == ["needle-niah_single.png"]
    assert "★ 1.00" not in written.page.read_text(encoding="utf-8")


def test_pictures_lie_where_they_were_asked_for(written: Written) -> None:
    assert {path.parent.name for path in written.pictures} == {"pictures"}
    assert {path.name for path in written.pictures} == {
        "needle-niah_single.png",
        "perplexity.png",
        "final-tokens.png",
        "loss-by-place.png",
        "sliding-perplexity.png",
        "wavelengths.png",
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written.pictures)


def test_a_report_replaces_the_one_before_and_leaves_nothing_else(runs: Path) -> None:
    write_report([runs], runs / "report.html")
    (runs / "report.html").write_text("old")
    write_report([runs], runs / "report.html")
    assert (runs / "report.html").read_text(encoding="utf-8") != "old"
    assert {path.name for path in runs.iterdir()} == {"pi", "z-none", "report.html"}


def test_equal_labels_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name in ("a", "b"):
        needle_run(tmp_path / name / "yarn" / "needle", about("yarn", 2.0), {256: 1})
    subjects = collect([tmp_path / "b", tmp_path / "a", tmp_path / "a"])
    assert [subject.label for subject in subjects] == ["yarn (b/yarn)", "yarn (a/yarn)"]


def test_runs_that_were_asked_different_things_say_so(tmp_path: Path) -> None:
    needle_run(tmp_path / "a", about("a", 1.0), {256: 3})
    needle_run(tmp_path / "b", about("b", 2.0), {256: 3}, seed=8)
    page = write_report([tmp_path], tmp_path / "report.html").page.read_text(encoding="utf-8")
    assert "needle: plan.seed is 7 (a); 8 (b)" in Reader(page).text


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.json", "{", "run.json is damaged"),
        ("run.json", "[]", "run.json is damaged"),
        ("run.json", '{"asked": {"kind": "other"}}', "neither a needle nor a perplexity run"),
        ("run.json", '{"asked": {"kind": "needle", "plan": 3}}', "neither a needle"),
        (
            "run.json",
            '{"asked": {"kind": "needle"}, "about": {"frequencies": {"": {"base": []}}}}',
            "frequencies that cannot be read",
        ),
        ("results.jsonl", '{"a"\n', "line 1, cannot be read"),
        ("results.jsonl", '{"task": "niah_single"}\n', "does not read as results of a needle run"),
    ],
)
def test_damage_is_one_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    folder = needle_run(tmp_path / "run", about("a", 1.0), {256: 3})
    (folder / name).write_text(text)
    with pytest.raises(EvaluationError) as caught:
        write_report([folder], tmp_path / "report.html")
    assert said in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_folders_without_a_run(tmp_path: Path) -> None:
    needle_run(tmp_path / "1" / "2" / "3" / "4", about("a", 1.0), {256: 3})
    with pytest.raises(EvaluationError, match=r"holds no run: .*run\.json"):
        collect([tmp_path])
    assert len(collect([tmp_path / "1"])) == 1
    with pytest.raises(EvaluationError, match="holds no run"):
        collect([tmp_path / "missing"])


def test_places_that_cannot_be_written(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="is a folder; name a file"):
        write_report([runs], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(EvaluationError, match=r"^cannot write .*report\.html"):
        write_report([runs], tmp_path / "file" / "report.html")


def test_numbers_do_not_round_to_what_they_are_not() -> None:
    assert [numbers.share(v) for v in (1.0, 0.999, 0.001, 0.0, None)] == [
        "1.00",
        "0.99",
        "0.01",
        "0.00",
        "-",
    ]
    assert [numbers.perplexity(v) for v in (7.126, 1234.5, 2.5e9)] == ["7.13", "1,234", "2.5e+09"]


@pytest.fixture
def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(report.report)
    return app


def test_the_command_writes_into_the_folder(runs: Path, command: typer.Typer) -> None:
    answer = CliRunner().invoke(command, [str(runs)])
    assert answer.exit_code == 0, answer.output
    assert (runs / "report.html").exists()
    assert "needles found at" in answer.output
    assert "*7.39" in answer.output


def test_the_command_speaks_json(runs: Path, tmp_path: Path, command: typer.Typer) -> None:
    output = tmp_path / "page.html"
    answer = CliRunner().invoke(command, [str(runs), "-o", str(output), "--json"])
    words = json.loads(answer.output)
    assert words["page"] == str(output)
    none, pi = words["subjects"]
    assert none["perplexity"]["by_length"]["256"]["whole"]["loss"] == 2.0
    assert pi["needle"]["by_length"]["1024"]["exact"] is None


def test_one_run_alone_shows_its_tables(tmp_path: Path, command: typer.Typer) -> None:
    folder = needle_run(tmp_path / "run", about("yarn", 2.0), {256: 3, 512: -1})
    pictures = tmp_path / "pictures"
    answer = CliRunner().invoke(command, [str(folder), "--pictures", str(pictures)])
    assert answer.exit_code == 0, answer.output
    assert "depth" in answer.output
    assert answer.output.count("failed: niah_single at 512 tokens, 3 ×: out of memory") == 1
    assert (pictures / "needle-niah_single.png").exists()


def test_tables_of_one_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    none = collect([runs])[0]
    assert none.needle is not None
    assert none.perplexity is not None
    measuring.needle(none.needle, 512)
    measuring.perplexity(none.perplexity, 512)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["depth", "256", "512", "1k+"] in rows
    assert ["all", "1.00", "1.00", "0.00"] in rows
    assert ["512", "6.69", "2.400", "-", "512"] in rows
    assert ["1,024+", "54.60", "4.500", "-", "1,024"] in rows


def test_several_tasks_are_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = ["niah_single", "passkey"]
    folder = needle_run(tmp_path / "run", about("a", 1.0), {256: 3}, tasks=tasks)
    found = collect([folder])[0].needle
    assert found is not None
    measuring.needle(found)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["task", "256", "512", "1k"] in rows
    assert ["passkey", "-", "-", "-"] in rows


def run_apart(code: str) -> None:
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ, PYTHONPATH=path))


def test_a_report_is_written_without_torch(runs: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ropepatch.reporting.page import write_report\n"
        f"write_report([Path({str(runs)!r})], Path({str(tmp_path / 'r.html')!r}))\n"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    run_apart(code)


def test_the_command_is_light_to_load() -> None:
    code = (
        "import sys; import ropepatch_cli.commands.report, ropepatch_cli.measuring\n"
        "assert not {'torch', 'matplotlib', 'jinja2', 'numpy'} & sys.modules.keys()"
    )
    run_apart(code)
