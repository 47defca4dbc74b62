"""Which classes an engine has, and what those make of a block that are not Llama's."""

import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from ropepatch.exporting import export
from tests.families.shapes import SHAPES
from tests.families.tiny import tiny as small
from tests.serving.folders import Config, converted, extended, found, held, like, refusal
from tests.tiny import COMPOSITE, GEMMA3, V5

SLIDING = {"rope_type": "default", "rope_theta": 10000.0}
TITLES = {"lmdeploy": "LMDeploy", "tgi": "TGI", "transformers4": "transformers 4"}
"""Who refuses what is not listed."""
ENGINES = ("vllm", "sglang", "lmdeploy", "tgi", "transformers4")


# --- lists ------------------------------------------------------------------------------------


def test_the_lists_hold_names_alone() -> None:
    file = resources.files("ropepatch.serving").joinpath("classes.json")
    lists: dict[str, list[str]] = json.loads(file.read_text("utf-8"))
    assert set(lists) == set(ENGINES)
    for lines in lists.values():
        names = " ".join(lines).split()
        assert names == sorted(set(names))


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("llama", set[str]()),
        ("qwen2", set[str]()),
        ("qwen3", {"tgi"}),
        ("seed_oss", {"tgi", "lmdeploy"}),
        ("smollm3", {"tgi", "lmdeploy"}),
        ("internlm2", {"tgi", "transformers4"}),
        ("starcoder2", set[str]()),
        ("olmo2", {"tgi", "lmdeploy"}),
    ],
)
def test_who_has_no_such_class(tmp_path: Path, kind: str, refused: set[str]) -> None:
    folder = extended(tmp_path, "ntk", like(kind))
    for target in ("lmdeploy", "tgi", "transformers4"):
        if target not in refused:
            assert export(folder, target).row == "ntk"
            continue
        said = refusal(folder, target)
        assert said.startswith(
            f"{TITLES[target]} cannot serve 'ntk' as it is meant: it has no class for '{kind}'. "
            "Nothing that it reads comes near; vLLM, "
        )
        able = said.split("comes near; ")[1].removesuffix(" can.").split(", ")
        for other, name in TITLES.items():
            assert (name in able) == (other not in refused)


@pytest.mark.parametrize("target", ["vllm", "sglang"])
@pytest.mark.parametrize("original", [False, True])
def test_transformers_own_class_is_noted(tmp_path: Path, target: str, original: bool) -> None:
    note = {
        "vllm": "vLLM has no class of its own for 'llama': its Transformers backend turns as "
        "transformers does (read, not run).",
        "sglang": "SGLang has no class of its own for 'llama', and runs transformers'.",
    }[target]
    nobody = extended(tmp_path / "a", "yarn", like("llama", "NobodysForCausalLM"))
    assert note in export(nobody, target, original=original).words.notes
    for place, config in (("b", V5), ("c", GEMMA3), ("d", COMPOSITE)):
        folder = extended(tmp_path / place, "yarn", config)
        notes = export(folder, target, original=original).words.notes
        assert not any("no class of its own" in text for text in notes)


def test_one_name_of_several_is_enough(tmp_path: Path) -> None:
    config = {**V5, "architectures": ["NobodysForCausalLM", "LlamaForCausalLM"]}
    assert export(extended(tmp_path, "yarn", config), "lmdeploy").row == "yarn"


@pytest.mark.parametrize("named", [None, []])
def test_a_config_without_a_class_is_not_refused(tmp_path: Path, named: list[str] | None) -> None:
    folder = extended(tmp_path, "yarn", {**V5, "architectures": named})
    assert export(folder, "lmdeploy").row == "yarn"
    for target in ("vllm", "sglang"):
        notes = export(folder, target).words.notes
        assert not any("no class of its own" in text for text in notes)


def test_a_renamed_class_is_not_foreign(tmp_path: Path) -> None:
    """Without rotation a class has a name of ours; what counts is the one before it."""
    folder = converted(tmp_path, "nope")
    for target in ("vllm", "sglang"):
        notes = export(folder, target).words.notes
        assert not any("no class of its own" in text for text in notes)


@pytest.mark.parametrize("target", ["llama.cpp", "ollama"])
def test_what_a_converter_keeps_is_not_always_known(tmp_path: Path, target: str) -> None:
    folder = extended(tmp_path, "yarn", like("exaone4", config=V5 | EXAONE))
    title = {"llama.cpp": "llama.cpp", "ollama": "Ollama"}[target]
    assert refusal(folder, target) == (
        f"nothing is printed for {title} that may be wrong: what its converter keeps of a "
        "'exaone4' is not known here."
    )
    if target == "llama.cpp":
        assert refusal(folder, target, original=True) == (
            "no flags of llama.cpp say 'yarn': what it calls the metadata of a 'exaone4' is not "
            "known here; leave --original out."
        )


def test_transformers_4_needs_the_text_part_too(tmp_path: Path) -> None:
    """Of 4.57.6: KeyError 'ministral3'."""
    folder = found(tmp_path, SHAPES["ministral-3-8b"])
    assert "it has no class for" in refusal(folder, "transformers4")


@pytest.mark.parametrize("method", ["yarn", "pi"])
def test_transformers_4_stops_at_olmo_2(tmp_path: Path, method: str) -> None:
    """ValueError: `rope_scaling` must be a dictionary with two fields, `type` and `factor`."""
    refusal(extended(tmp_path, method, like("olmo2")), "transformers4")


def test_vllms_note_on_attention_factors_is_not_for_latent_attention(tmp_path: Path) -> None:
    pair: dict[str, Any] = {"factor": 80.0, "mscale": 0.7, "mscale_all_dim": 1.0}
    for shape, noted in ((small(SHAPES["deepseek-v3"]), False), (V5, True)):
        folder = extended(tmp_path / str(noted), "yarn", shape, replace=True, **pair)
        notes = export(folder, "vllm").words.notes
        assert any("since 0.30.0" in note for note in notes) == noted


# --- axes of images ---------------------------------------------------------------------------


def test_axes_of_mrope(tmp_path: Path) -> None:
    shape = small(SHAPES["qwen2.5-vl-7b"])
    for method in ("yarn", "ntk", "llama3"):
        said = refusal(extended(tmp_path / method, method, shape), "tgi")
        assert "it drops the axes of mrope under every type but 'mrope' itself. Nothing " in said
    warm = extended(tmp_path / "warm", "yarn", shape, attention_factor=1.25)
    for original in (False, True):
        said = refusal(warm, "sglang", original=original)
        assert "with the axes of mrope its yarn stops at the keys of an attention factor" in said
    assert held(refusal(warm, "sglang"), "sglang", shape, tmp_path / "near") == "yarn"
    assert export(tmp_path / "yarn" / "out", "sglang").words.overrides is None


# --- classes that read none of it -------------------------------------------------------------

EXAONE: dict[str, Any] = {"layer_types": ["full_attention"] * 2, "sliding_window": None}


@pytest.mark.parametrize("method", ["yarn", "ntk", "pi", "llama3", "longrope", "p-rope"])
@pytest.mark.parametrize("kind", ["chatglm", "exaone4", "exaone_moe", "internlm2"])
def test_sglang_finds_no_theta(tmp_path: Path, kind: str, method: str) -> None:
    more: dict[str, Any] = {"layer_types": ["full_attention"] * 2, "sliding_window": None}
    config = like(kind) | (more if kind.startswith("exaone") else {})
    said = refusal(extended(tmp_path, method, config), "sglang")
    assert f"its class for '{kind}' reads no rope_theta from these words, in silence. " in said
    none = ", and no other engine does; " if kind == "chatglm" else "; "
    assert f"Nothing that it reads comes near{none}" in said
    assert said.count("SGLang") == 1


@pytest.mark.parametrize("method", ["yarn", "pi", "ntk"])
@pytest.mark.parametrize(
    "config",
    [
        small(SHAPES["olmo-3-7b"]),
        like("olmo3", "Olmo3ForCausalLM", GEMMA3),
        like("laguna", "LagunaForCausalLM", GEMMA3),
    ],
    ids=["olmo-3-7b", "olmo3", "laguna"],
)
def test_sglang_stops_at_a_nested_block(tmp_path: Path, method: str, config: Config) -> None:
    said = refusal(extended(tmp_path, method, config, replace=True, factor=16.0), "sglang")
    assert f"its class for '{config['model_type']}' takes no blocks by layer type. " in said


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma3n_text", "mellum"])
def test_whose_class_takes_one(tmp_path: Path, kind: str) -> None:
    folder = extended(tmp_path, "yarn", like(kind, config=GEMMA3))
    assert export(folder, "sglang").words.overrides is None


@pytest.mark.parametrize("kind", ["gemma3n_text", "mellum"])
def test_only_sglangs_gemma_3_is_a_copy(tmp_path: Path, kind: str) -> None:
    config = like(kind, config=GEMMA3)
    found = export(extended(tmp_path, "yarn", config, attention_factor=1.25), "sglang").words
    assert found.overrides is not None
    blocks = found.overrides["rope_parameters"]
    full = blocks["full_attention"]
    assert full["attention_factor"] == 1.25
    assert full["mscale"] == pytest.approx(0.25 / (0.1 * math.log(4)))
    assert full["mscale_all_dim"] == 0.0
    assert blocks["sliding_attention"] == SLIDING


@pytest.mark.parametrize(
    ("kind", "noted"),
    [
        ("mixtral", True),
        ("starcoder2", True),
        ("granitemoe", True),
        ("gemma2", False),
        ("olmo", False),
        ("llama", False),
    ],
)
def test_who_cuts_theta_down(tmp_path: Path, kind: str, noted: bool) -> None:
    for original in (False, True):
        folder = extended(tmp_path / str(original), "ntk", like(kind))
        notes = export(folder, "sglang", original=original).words.notes
        cut = f"SGLang's class for '{kind}' cuts rope_theta down to a whole number."
        assert (cut in notes) == noted


@pytest.mark.parametrize(
    ("kind", "noted"),
    [
        ("llama", False),
        ("qwen3", False),
        ("internlm2", False),
        ("gemma2", True),
        ("starcoder2", True),
    ],
)
def test_lmdeploy_was_looked_at_in_few_classes(tmp_path: Path, kind: str, noted: bool) -> None:
    folder = extended(tmp_path, "yarn", like(kind))
    notes = export(folder, "lmdeploy").words.notes
    assert (f"what its class for '{kind}' hands on was not looked at." in notes) == noted
