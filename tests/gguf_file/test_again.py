"""A file that we have extended, once more: what goes, what stands there already, what is shown."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from ropepatch.errors import CheckpointError, NoEffectError, RecipeError
from ropepatch.exporting import export
from ropepatch.gguf_extending import extend_gguf, inspect_gguf
from ropepatch.gguf_file.rotation import FREQS, LONG, SHORT
from tests.end_to_end.program import Run, line_of
from tests.gguf_file.made import (
    EXPRESSIBLE,
    LLAMA3,
    LONGROPE,
    NTK,
    TRAINED,
    YARN,
    make_model,
    one_line,
    tensors_of,
)

BASE = {"rope.freq_base": 100000.0}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_model(tmp_path / "x.gguf", keys=BASE)


# --- tensors that go --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "change"),
    [
        (LLAMA3, NTK, {FREQS: "removed"}),
        (LLAMA3, EXPRESSIBLE["ntk-by-parts"], {FREQS: "added"}),
        (LONGROPE, YARN, {LONG: "removed", SHORT: "removed"}),
        (LONGROPE, LLAMA3, {LONG: "removed", SHORT: "removed", FREQS: "added"}),
        (YARN, NTK, {}),
    ],
)
def test_a_tensor_of_ours_goes(
    source: Path, tmp_path: Path, first: Any, then: Any, change: dict[str, str]
) -> None:
    once = extend_gguf(source, first, tmp_path / "y.gguf").target
    done = extend_gguf(once, then, tmp_path / "z.gguf", replace=True)
    assert done.change.tensors == change
    there = {name for name, how in change.items() if how != "removed"}
    assert set(tensors_of(done.target)) - set(tensors_of(source)) == there


def test_a_tensor_that_goes_is_shown(source: Path, tmp_path: Path, run: Run) -> None:
    once = extend_gguf(source, LLAMA3, tmp_path / "y.gguf").target
    words = ("extend", "-m", once, "--method", "ntk", "-f", "4", "--replace", "-o")
    done = run(*words, tmp_path / "z.gguf")
    assert (done.code, done.err) == (0, "")
    assert "-rope_freqs.weight: 32 factors, one per pair (removed)" in done.out.splitlines()
    dry = run(*words, tmp_path / "a.gguf", "--dry-run", "--json")
    assert dry.json["tensors"] == {FREQS: "removed"}


# --- what stands there already ----------------------------------------------------------------


@pytest.mark.parametrize("case", EXPRESSIBLE)
def test_the_same_again(source: Path, tmp_path: Path, case: str) -> None:
    target = extend_gguf(source, EXPRESSIBLE[case], tmp_path / "y.gguf").target
    with pytest.raises(NoEffectError) as caught:
        extend_gguf(target, EXPRESSIBLE[case], tmp_path / "z.gguf", replace=True)
    method = EXPRESSIBLE[case]["method"]
    assert one_line(caught.value) == (
        f"{target} turns by {method} with these parameters already; nothing would change."
    )
    assert not (tmp_path / "z.gguf").exists()


def test_another_length_or_another_number_is_not_the_same(source: Path, tmp_path: Path) -> None:
    target = extend_gguf(source, YARN, tmp_path / "y.gguf").target
    others: list[dict[str, Any]] = [
        {"factor": 2},
        {"beta_fast": 16},
        {"attention_factor": 1.0},
        {"truncate": False},
    ]
    for words in (*others, {"trained_length": TRAINED // 2}):
        extend_gguf(target, YARN | words, tmp_path / "z.gguf", replace=True, dry_run=True)


# --- how the other files travel ---------------------------------------------------------------


@pytest.mark.parametrize("how", ["link", "copy"])
def test_one_file_has_no_others(source: Path, tmp_path: Path, run: Run, how: Any) -> None:
    said = "--link and --copy are for the other files of a split model."
    with pytest.raises(RecipeError) as caught:
        extend_gguf(source, YARN, tmp_path / "y.gguf", how=how)
    assert one_line(caught.value) == said
    words = ("extend", "-m", source, "--method", "yarn", "-f", "4", "-o", tmp_path / "y.gguf")
    assert line_of(run(*words, f"--{how}")) == said
    assert not (tmp_path / "y.gguf").exists()


@pytest.mark.parametrize("how", ["", "move", None, []])
def test_no_way_to_travel(source: Path, how: Any) -> None:
    with pytest.raises(RecipeError) as caught:
        extend_gguf(source, YARN, how=how)
    assert one_line(caught.value) == f"how is auto, link, copy, not {how!r}."


@pytest.mark.parametrize(("how", "links"), [("link", 2), ("copy", 1)])
def test_a_split_model_has(tmp_path: Path, how: Any, links: int) -> None:
    make_model(tmp_path / "m.gguf", part_size=2)
    done = extend_gguf(tmp_path / "m-00001-of-00002.gguf", YARN, tmp_path / "out", how=how)
    assert (done.target / "m-00002-of-00002.gguf").stat().st_nlink == links


# --- what is shown ----------------------------------------------------------------------------


def test_a_name_is_quoted_for_a_shell(source: Path, tmp_path: Path, run: Run) -> None:
    target = tmp_path / "it's (a) $name.gguf"
    done = run("extend", "-m", source, "--method", "yarn", "-f", "4", "-o", target)
    (line,) = [text for text in done.out.splitlines() if text.startswith("run it: ")]
    words = ["llama-server", "-m", str(target), "-c", "32768"]
    assert shlex.split(line.removeprefix("run it: ")) == words


def test_inspect_tells_the_base(source: Path, tmp_path: Path, run: Run) -> None:
    target = extend_gguf(source, NTK, tmp_path / "y.gguf").target
    found = run("inspect", target, "--json").json
    assert found["scaled"] is True
    assert found["in_force"] == "plain, θ 100000 → 418294"
    assert "θ 100000 → 418294" in run("inspect", target).out
    plain = run("inspect", source, "--json").json
    assert (plain["scaled"], plain["in_force"]) == (False, "plain")


@pytest.mark.parametrize("case", ["ntk", "yarn", "llama3", "longrope"])
def test_an_inspection_knows_what_was_before(source: Path, tmp_path: Path, case: str) -> None:
    target = extend_gguf(source, EXPRESSIBLE[case], tmp_path / "y.gguf").target
    plain, found = inspect_gguf(source), inspect_gguf(target)
    assert plain.before == plain.rotation == found.before
    assert found.before.freq_base == 100000.0
    assert found.rotation != found.before


def test_a_picture_starts_from_before(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("ropepatch.plots.save_wavelengths", lambda _, models: drawn.append(models))
    target = extend_gguf(source, NTK, tmp_path / "y.gguf").target
    assert run("inspect", target, "--plot", tmp_path / "p.png").code == 0
    (geometry, curves, length) = drawn[0]["y.gguf"]
    first, second = list(curves)[:2]
    assert first == "pretrained (θ = 100000)"
    assert second == "in force: plain, θ 100000 → 418294"
    assert curves[first] == inspect_gguf(source).rotation.frequencies(TRAINED)
    assert (geometry.theta, length) == (100000.0, 4 * TRAINED)


# --- export -----------------------------------------------------------------------------------


def test_longrope_goes_by_the_context(source: Path, tmp_path: Path) -> None:
    note = (
        f"llama.cpp takes the long factors when -c is above {TRAINED}, whatever the length of a "
        "prompt."
    )
    long = extend_gguf(source, LONGROPE, tmp_path / "y.gguf").target
    assert export(long, "llama.cpp").words.notes == (note,)
    for words in (YARN, LLAMA3):
        other = extend_gguf(source, words, tmp_path / f"{words['method']}.gguf").target
        assert export(other, "llama.cpp").words.notes == ()


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama"])
@pytest.mark.parametrize("name", ["a\nb.gguf", "a\tb.gguf", "\x1b[1m.gguf"])
def test_names_that_fit_in_no_command(source: Path, tmp_path: Path, engine: str, name: str) -> None:
    target = extend_gguf(source, YARN, tmp_path / name).target
    with pytest.raises(CheckpointError) as caught:
        export(target, engine)
    said = f"the name {str(target)!r} fits in no command; rename the file."
    assert one_line(caught.value) == said
