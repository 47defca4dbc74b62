"""Stamps that nobody of ours wrote: every reader says so in one line, and nothing is followed."""

import copy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

import ropepatch
from ropepatch import convert_checkpoint
from ropepatch.errors import ConfigError, RopepatchError
from tests.converted.folders import bare_converted, converted, model_of, tamper
from tests.tiny import read_json, tree, write_json

READERS: dict[str, Callable[[Path], Any]] = {
    "inspect": ropepatch.inspect,
    "verify": ropepatch.verify,
    "restore": ropepatch.restore,
    "load": ropepatch.load,
}
BY_ALL = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real converted checkpoint; shared, so not to be changed."""
    place = tmp_path_factory.mktemp("whole")
    model_of("llama").save_pretrained(place / "plain")
    return converted(place / "plain", to="alibi", layers=[0])


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "out"))


def outcome(attempt: Callable[[], Any]) -> str:
    """How it ended, unless in a way that is none of ours."""
    try:
        attempt()
    except RopepatchError as error:
        return str(error)
    return "done"


def refusal(folder: Path, read: Callable[[Path], Any]) -> RopepatchError:
    before = tree(folder)
    with pytest.raises(RopepatchError) as caught:
        read(folder)
    assert tree(folder) == before
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


WRONG: dict[str, list[Any]] = {
    "conversion": [7, "alibi", [], [1], True],
    "before": [None, 7, "x", [1], {"architectures": ["Evil"]}, {"auto_map": {}}],
    "path": [None, 7, "text_config", {}, ["text_config"], ["architectures"], [0], [[]]],
    "base": [None, 7, "llama", [], {}, {"model_type": None}, {"model_type": 7}],
    "layers": [
        *(None, 7, "all", [], [0], {}, {"alibi": [0]}, {"alibi": "some", "nope": []}),
        *({"alibi": [layer], "nope": []} for layer in ("0", 0.5, True)),
    ],
    "slopes": [None, 7, "x", [], {}, {"heads": [2]}],
    "trained_length": [None, "256", -1, 0, 2.5, True, [256]],
    "target_length": [None, "256", -1, 0, 2.5, True, [256]],
}


@BY_ALL
@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, values in WRONG.items() for value in values],
    ids=str,
)
def test_a_key_is_damaged(
    key: str, value: Any, reader: Callable[[Path], Any], folder: Path
) -> None:
    tamper(folder, "ropepatch", key, value=value)
    error = refusal(folder, reader)
    assert isinstance(error, ConfigError)
    assert "stamp of ropepatch" in str(error)


DEEPER: list[tuple[tuple[str, ...], Any]] = [
    (("base", "classes"), None),
    (("base", "classes"), 7),
    (("base", "classes"), {}),
    (("base", "classes"), {"AutoConfig": 7}),
    (("base", "class"), None),
    (("base", "class"), 7),
    (("base", "architectures"), None),
    (("base", "architectures"), 7),
    (("blocks",), None),
    (("blocks",), 7),
    (("blocks",), {"rope_parameters": 7}),
    (("slopes", "heads"), "2"),
    (("slopes", "heads"), ["2"]),
    (("slopes", "scale"), "1"),
    (("slopes", "scale"), {}),
    (("slopes", "bias_max"), []),
    (("kernel",), 7),
    (("kernel",), None),
    (("kernel",), "none-such"),
    (("factor",), "1"),
    (("factor",), None),
    (("native",), 7),
    (("native",), {"classes": 7}),
    (("conversion",), {}),
    (("conversion",), {"to": "rope"}),
    (("conversion",), {"to": "alibi", "x": 1}),
    (("conversion",), {"to": 7}),
    (("conversion",), {"to": "alibi", "layers": 7.5}),
    (("conversion",), {"to": "alibi", "layers": [99]}),
    (("layers", "alibi"), [99]),
    (("layers", "alibi"), [-1]),
    (("layers", "nope"), [10**30]),
]


@pytest.mark.parametrize("reader", ["inspect", "verify", "restore", "load"])
@pytest.mark.parametrize(("path", "value"), DEEPER, ids=str)
def test_no_damage_is_a_traceback(
    path: tuple[str, ...], value: Any, reader: str, folder: Path
) -> None:
    """Refused in our words, or of no concern to who reads it; never any other exception."""
    tamper(folder, "ropepatch", *path, value=value)
    said = outcome(lambda: READERS[reader](folder))
    assert len(said.splitlines()) == 1
    if reader == "verify" and path[0] != "base":
        assert said != "done"


@BY_ALL
@pytest.mark.parametrize("key", ["architectures", "auto_map"])
def test_blocks_put_back_nothing_but_rotary_words(
    key: str, reader: Callable[[Path], Any], folder: Path
) -> None:
    stamp = read_json(folder / "config.json")["ropepatch"]
    tamper(folder, "ropepatch", "blocks", value=stamp["blocks"] | {key: {"x": "evil.Evil"}})
    assert isinstance(refusal(folder, reader), ConfigError)


@BY_ALL
@pytest.mark.parametrize(
    "kind",
    [
        *("ropepatch_converted", "no_such_model", "", "..", "../llama", "/etc/passwd", "llama/"),
        *("llama\x00", "LLAMA", "os", "gpt2", "ropepatch.errors"),
    ],
)
def test_a_base_that_is_no_family(kind: str, reader: Callable[[Path], Any], folder: Path) -> None:
    """Nothing is imported or opened by it, and nothing is shown on several lines."""
    tamper(folder, "ropepatch", "base", "model_type", value=kind)
    if reader is ropepatch.restore:
        return  # it puts back whatever stood there
    refusal(folder, reader)


@pytest.mark.parametrize("kind", ["ropepatch_converted", "no_such_model", "../llama", 7, None])
def test_a_base_that_is_no_family_for_transformers(kind: Any, folder: Path) -> None:
    """Its auto classes ask us for the config."""
    tamper(folder, "ropepatch", "base", "model_type", value=kind)
    with pytest.raises(RopepatchError):
        AutoConfig.from_pretrained(folder)


@pytest.mark.parametrize(
    "path", [["__class__"], ["ropepatch"], ["base"], ["..", ".."], ["auto_map"]]
)
@BY_ALL
def test_a_path_that_leads_elsewhere(
    path: list[str], reader: Callable[[Path], Any], folder: Path
) -> None:
    tamper(folder, "ropepatch", "path", value=path)
    assert isinstance(refusal(folder, reader), ConfigError)


def test_a_stamp_on_a_plain_model_is_not_believed(bare: Path, tmp_path: Path) -> None:
    """Copied from a converted model onto another that turns."""
    stamp = read_json(bare_converted(tmp_path / "x") / "config.json")["ropepatch"]
    config = read_json(bare / "config.json")
    write_json(bare / "config.json", config | {"ropepatch": stamp})
    assert "model_type is 'llama'" in str(refusal(bare, ropepatch.verify))


def test_code_that_a_stamp_or_a_map_names_is_never_run_here(folder: Path) -> None:
    """With ropepatch, its own classes are used, whatever lies beside the weights."""
    ran = folder.parent / "ran"
    evil = f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n"
    (folder / "modeling_ropepatch.py").write_text(evil, encoding="utf-8")
    for read in READERS.values():
        outcome(partial(read, folder))
    assert not ran.exists()


def values() -> st.SearchStrategy[Any]:
    plain = st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=8)
    words = st.sampled_from(["alibi", "nope", "all", "llama", "to", "layers", "model_type"])
    return st.recursive(
        plain | words,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
        max_leaves=5,
    )


def places(stamp: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a stamp."""
    found = [at] if at else []
    for key, value in stamp.items() if isinstance(stamp, dict) else ():
        found += places(value, (*at, key))
    return found


@pytest.fixture(scope="module")
def kept(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = Path(shutil.copytree(whole, tmp_path_factory.mktemp("fuzzed") / "out"))
    return folder, read_json(folder / "config.json")


@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_value_anywhere(kept: tuple[Path, dict[str, Any]], data: st.DataObject) -> None:
    folder, config = kept
    changed = copy.deepcopy(config)
    *way, last = data.draw(st.sampled_from(places(config["ropepatch"])))
    part = changed["ropepatch"]
    for key in way:
        part = part[key]
    part[last] = data.draw(values())
    write_json(folder / "config.json", changed)
    attempts: list[Callable[[], Any]] = [
        lambda: ropepatch.inspect(folder),
        lambda: ropepatch.verify(folder),
        lambda: ropepatch.load(folder),
        lambda: convert_checkpoint(folder, {"to": "nope"}, folder / "x", dry_run=True),
        lambda: convert_checkpoint(
            *(folder, {"to": "nope", "layers": [0]}, folder / "x"), dry_run=True, replace=True
        ),
    ]
    for attempt in attempts:
        outcome(attempt)


@pytest.mark.parametrize("key", ["asked", "architectures"])
@pytest.mark.parametrize("value", [7, "nope", [1], {"to": 7}, {"a": 1}, None], ids=repr)
def test_a_stamp_in_stock_words_is_damaged(key: str, value: Any, tmp_path: Path) -> None:
    place = tmp_path / "out"
    model_of("llama").save_pretrained(tmp_path / "model")
    convert_checkpoint(tmp_path / "model", {"to": "nope"}, place, verify=False)
    config = read_json(place / "config.json")
    config["ropepatch"][key] = value
    write_json(place / "config.json", config)
    attempts: list[Callable[[], Any]] = [
        lambda: ropepatch.inspect(place),
        lambda: ropepatch.verify(place),
        lambda: ropepatch.load(place),
        lambda: convert_checkpoint(place, {"to": "nope"}, tmp_path / "x", dry_run=True),
        lambda: convert_checkpoint(
            *(place, {"to": "alibi"}, tmp_path / "x"), dry_run=True, replace=True
        ),
        lambda: ropepatch.restore(place),
    ]
    for attempt in attempts:
        outcome(attempt)
