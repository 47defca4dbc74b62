"""The tables of engines, held to what `export` does: neither may say what the other does not."""

from pathlib import Path

import pytest

from ropepatch.errors import NotExpressibleError, RecipeError
from ropepatch.exporting import export
from ropepatch.methods.table import METHODS
from ropepatch.serving.base import ROWS
from ropepatch.serving.table import ENGINES, engine_of, support_table
from tests.serving.folders import (
    CHATGLM,
    TARGET,
    converted,
    extended,
    found,
    nearest,
    refusal,
)
from tests.tiny import TRAINED, read_json, write_json

WRITABLE = [method for method in METHODS if method != "dynamic-yarn"]
CELLS = [(engine, row) for engine in ENGINES for row in ROWS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny Llama by every method that a config can say, and by both conversions."""
    place = tmp_path_factory.mktemp("rows")
    made = {method: extended(place / method, method) for method in WRITABLE}
    return made | {to: converted(place / to, to) for to in ("nope", "alibi")}


@pytest.mark.parametrize(("engine", "row"), CELLS)
def test_every_row_is_answered(engine: str, row: str) -> None:
    support = ENGINES[engine].methods[row]
    if support.how == "native":
        assert not support.instead
    else:
        assert support.why


@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_answers_for_what_is_no_row(engine: str) -> None:
    assert set(ENGINES[engine].methods) == set(ROWS)
    assert ENGINES[engine].name == engine
    assert ENGINES[engine].checked


@pytest.mark.parametrize(("engine", "row"), CELLS)
def test_what_is_refused_has_neighbours_that_are_not(engine: str, row: str) -> None:
    support = ENGINES[engine].methods[row]
    if support.how != "refused":
        return
    assert support.instead
    for near in support.instead:
        assert near in METHODS
        assert ENGINES[engine].methods[near].how != "refused"


@pytest.mark.parametrize("row", [*WRITABLE, "nope", "alibi"])
@pytest.mark.parametrize("engine", ENGINES)
def test_export_does_what_the_table_says(engine: str, row: str, folders: dict[str, Path]) -> None:
    support = ENGINES[engine].methods[row]
    if support.how == "refused":
        with pytest.raises(NotExpressibleError):
            export(folders[row], engine)
        return
    done = export(folders[row], engine)
    assert (done.words.how, done.row, done.engine.name) == (support.how, row, engine)
    longer = TRAINED if row == "nope" else TARGET
    assert (done.trained_length, done.target_length) == (TRAINED, longer)


@pytest.mark.parametrize("row", [*WRITABLE, "nope"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_refusal_says_why_what_is_near_and_its_price(
    engine: str, row: str, folders: dict[str, Path]
) -> None:
    support = ENGINES[engine].methods[row]
    if support.how != "refused":
        return
    near = (
        f"Nearest: ropepatch extend --model {folders[row].parent / 'model'} --method yarn "
        f"--factor 4 (or ntk, llama3); its price at short length: {METHODS['yarn'].short_price}."
    )
    if row == "nope":
        near = "Nothing that it reads comes near; vLLM, SGLang can."
    title = ENGINES[engine].title
    wanted = f"{title} cannot serve '{row}' as it is meant: {support.why}. {near}"
    assert refusal(folders[row], engine) == wanted


@pytest.mark.parametrize("method", ["yarn", "ntk", "llama3"])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_named_is_served(engine: str, method: str, folders: dict[str, Path]) -> None:
    """What every refusal above names."""
    done = export(folders[method], engine)
    assert (done.row, done.target_length) == (method, TARGET)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_linear_bias_is_refused_with_its_price(engine: str, folders: dict[str, Path]) -> None:
    assert refusal(folders["alibi"], engine) == (
        f"{ENGINES[engine].title} cannot serve 'alibi' as it is meant: "
        f"{ENGINES[engine].methods['alibi'].why}. It runs in ropepatch.load alone. Nearest: "
        "`ropepatch extend --method yarn` on the original; what was trained since the conversion "
        "is then lost."
    )


def test_no_other_engine_does(tmp_path: Path) -> None:
    """Stopped pairs alone, on a class that none of them knows them for."""
    block = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    folder = found(tmp_path, {**CHATGLM, "rope_parameters": block})
    for engine in ENGINES:
        said = refusal(folder, engine)
        if engine in ("llama.cpp", "ollama"):
            assert said.startswith(f"nothing is printed for {ENGINES[engine].title} that may be ")
            continue
        assert said.endswith(
            ". Nothing that it reads comes near, and no other engine does; ropepatch.load runs it."
        )


def test_a_trained_model_has_no_original_to_name(tmp_path: Path) -> None:
    folder = extended(tmp_path, "dynamic-ntk")
    record = read_json(folder / "ropepatch.json")
    write_json(folder / "ropepatch.json", record | {"training": {"steps": 1}})
    assert "Nearest: ropepatch extend --model ORIGINAL --method yarn" in refusal(folder, "vllm")


def test_a_named_command_is_quoted(tmp_path: Path) -> None:
    folder = extended(tmp_path / "it's; a folder", "dynamic-ntk")
    assert nearest(refusal(folder, "vllm")) == ("yarn", "ntk", "llama3")


def test_aliases_and_spelling() -> None:
    assert engine_of(" vLLM ").name == "vllm"
    assert {engine_of(word).name for word in ("llamacpp", "llama-cpp", "GGUF")} == {"llama.cpp"}
    with pytest.raises(RecipeError, match=r"called 'vlm'\. Did you mean 'vllm'\? Known: vllm, sg"):
        engine_of("vlm")
    with pytest.raises(RecipeError, match=r"called 'x'\. Known: "):
        engine_of("x")


def test_the_printed_table_has_every_cell() -> None:
    head, rule, *rows = support_table().splitlines()
    assert head.count("|") == rule.count("|") == len(ENGINES) + 2
    for row, line in zip(ROWS, rows, strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells == [f"`{row}`", *(engine.methods[row].how for engine in ENGINES.values())]
