"""Models that are not of Llama's kind: nested blocks, nested configs, classes of their own."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ropepatch.exporting import export
from tests.families.shapes import SHAPES
from tests.families.tiny import tiny as small
from tests.serving.folders import CHATGLM, Config, extended, held, like, refusal
from tests.tiny import COMPOSITE, GEMMA3, TRAINED

TARGET = 4 * TRAINED
SLIDING = {"rope_type": "default", "rope_theta": 10000.0}
FULL = {
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": TRAINED,
    },
    "pi": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
}
DEEPSEEK = small(SHAPES["deepseek-v3"])
GPT_OSS = small(SHAPES["gpt-oss-20b"])
GEMMA4 = small(SHAPES["gemma-4-e2b"])


MIXTRAL = like("mixtral")


def overrides(folder: Path, target: str) -> Mapping[str, Any]:
    found = export(folder, target, original=True).words.overrides
    assert found is not None
    return found


@pytest.mark.parametrize("target", ["vllm", "sglang"])
@pytest.mark.parametrize("method", FULL)
def test_every_layer_type_is_in_the_block(tmp_path: Path, target: str, method: str) -> None:
    folder = extended(tmp_path, method, GEMMA3)
    block = {"full_attention": FULL[method], "sliding_attention": SLIDING}
    wanted = {"max_position_embeddings": TARGET, "rope_parameters": block}
    assert overrides(folder, target) == wanted
    assert export(folder, target).words.overrides is None


@pytest.mark.parametrize("target", ["vllm", "sglang"])
@pytest.mark.parametrize("method", FULL)
def test_the_text_part_of_another(tmp_path: Path, target: str, method: str) -> None:
    folder = extended(tmp_path, method, COMPOSITE)
    block = {"full_attention": FULL[method], "sliding_attention": SLIDING}
    inner = {"max_position_embeddings": TARGET, "rope_parameters": block}
    assert overrides(folder, target) == {"text_config": inner}


def test_one_layer_types_extra_words_go_into_its_own_block(tmp_path: Path) -> None:
    lists: dict[str, Any] = {"short_factor": (1.0,) * 16, "long_factor": (2.0,) * 16}
    folder = extended(tmp_path, "longrope", COMPOSITE, attention_factor=1.25, **lists)
    found = export(folder, "vllm").words.overrides
    assert found is not None
    assert found.keys() == {"text_config"}
    blocks = found["text_config"]["rope_parameters"]
    assert blocks["sliding_attention"] == SLIDING
    full = blocks["full_attention"]
    assert (full["short_mscale"], full["long_mscale"], full["rope_theta"]) == (1.25, 1.25, 1e6)


def test_sglangs_gemma_3_reads_the_attention_factor(tmp_path: Path) -> None:
    folder = extended(tmp_path, "yarn", GEMMA3, attention_factor=1.25)
    assert export(folder, "sglang").words.overrides is None


def test_lmdeploys_gemma_3_is_linear(tmp_path: Path) -> None:
    said = refusal(extended(tmp_path / "a", "yarn", GEMMA3), "lmdeploy")
    assert "turns by 'linear' whatever is said. Nearest: ropepatch extend" in said
    words = export(extended(tmp_path / "b", "pi", GEMMA3), "lmdeploy").words
    assert "--backend pytorch" in words.shell
    assert words.how == "override"


def test_latent_attention_takes_deepseeks_yarn_alone(tmp_path: Path) -> None:
    pair: dict[str, Any] = {"factor": 80.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    yarn = extended(tmp_path / "yarn", "yarn", DEEPSEEK, replace=True, **pair)
    ntk = extended(tmp_path / "ntk", "ntk", DEEPSEEK, replace=True)
    for target in ("vllm", "sglang"):
        assert export(yarn, target).words.how == "native"
        assert export(ntk, target).words.how == "native"
    block = {"rope_type": "default", "rope_theta": 10000.0}
    unscaled = {**DEEPSEEK, "rope_scaling": None, "rope_parameters": block}
    plain = extended(
        tmp_path / "plain", "yarn", {**unscaled, "max_position_embeddings": 4096}, **pair
    )
    block = overrides(plain, "sglang")["rope_parameters"]
    assert {"mscale": 1.0, "mscale_all_dim": 1.0}.items() <= block.items()
    assert "attention_factor" not in block  # it would move the softmax scale


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("yarn", {"attention_factor": 1.0}),
        ("yarn", {"truncate": False}),
        ("pi", {}),
        ("llama3", {}),
    ],
)
@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_latent_attention_refuses_the_rest(
    tmp_path: Path, target: str, method: str, words: dict[str, Any]
) -> None:
    folder = extended(tmp_path, method, DEEPSEEK, replace=True, factor=80.0, **words)
    said = refusal(folder, target)
    assert "latent attention takes every type for DeepSeek's yarn. Nearest: " in said
    assert re.search(r"--method yarn --factor 80( --replace)? \(or ntk\)", said)


def test_gpt_oss_is_yarn_in_vllm(tmp_path: Path) -> None:
    yarn = extended(tmp_path / "yarn", "yarn", GPT_OSS, replace=True, factor=64.0, truncate=False)
    assert export(yarn, "vllm").words.how == "native"
    assert export(yarn, "sglang").words.how == "native"
    warm: dict[str, Any] = {"attention_factor": 1.0}
    for method in ("pi", "ntk", "llama3", "yarn"):
        words = warm if method == "yarn" else {}
        place = tmp_path / f"other-{method}"
        folder = extended(place, method, GPT_OSS, replace=True, factor=64.0, **words)
        assert "always turns by yarn" in refusal(folder, "vllm")


def test_sglangs_mixtral_knows_theta_alone(tmp_path: Path) -> None:
    for method in ("yarn", "pi", "llama3", "longrope", "p-rope"):
        said = refusal(extended(tmp_path / method, method, MIXTRAL), "sglang")
        assert "for 'mixtral' hands only rope_theta on, in silence. Nearest: " in said
        assert "--method ntk --factor 4;" in said
    ntk = extended(tmp_path / "ntk", "ntk", MIXTRAL)
    assert export(ntk, "sglang").words.how == "native"
    assert export(ntk, "vllm").words.how == "native"


def test_stopped_pairs_were_seen_in_few_classes(tmp_path: Path) -> None:
    qwen = extended(tmp_path, "p-rope", like("qwen3"))
    assert refusal(qwen, "sglang") == (
        "nothing is printed for SGLang that may be wrong: whether its class for 'qwen3' stops "
        "pairs was not seen."
    )
    assert export(qwen, "vllm").words.how == "native"


def test_gemma_4(tmp_path: Path) -> None:
    ntk = extended(tmp_path / "ntk", "ntk", GEMMA4)
    for target in ("vllm", "sglang"):
        assert export(ntk, target).words.how == "native"
    pi = extended(tmp_path / "pi", "pi", GEMMA4)
    for target in ("vllm", "sglang"):
        assert "stops the pairs and passes over their factor" in refusal(pi, target)
    for target in ("tgi", "lmdeploy", "transformers4", "llama.cpp", "ollama"):
        refusal(ntk, target)


def test_a_class_that_builds_its_own(tmp_path: Path) -> None:
    folder = extended(tmp_path, "yarn", CHATGLM)
    assert "for 'chatglm' builds a rotation of its own" in refusal(folder, "vllm")
    assert "for 'chatglm' reads no rope_theta from these words" in refusal(folder, "sglang")
    for target in ("vllm", "sglang"):
        assert refusal(folder, target).endswith(
            ". Nothing that it reads comes near, and no other engine does; ropepatch.load runs it."
        )
    for target in ("llama.cpp", "ollama"):
        assert "what its converter keeps of a 'chatglm' is not known" in refusal(folder, target)
    for target in ("transformers4", "tgi", "lmdeploy"):
        assert "it has no class for 'chatglm'. " in refusal(folder, target)


def test_axes_of_mrope(tmp_path: Path) -> None:
    shape = small(SHAPES["qwen2.5-vl-7b"])
    yarn = extended(tmp_path / "yarn", "yarn", shape)
    assert "Nearest: ropepatch extend" in refusal(yarn, "vllm")
    assert export(extended(tmp_path / "ntk", "ntk", shape), "vllm").words.how == "native"


@pytest.mark.parametrize("original", [False, True])
def test_vllm_stops_at_a_nested_truncate(tmp_path: Path, original: bool) -> None:
    config = like("olmo3", "Olmo3ForCausalLM", GEMMA3)
    folder = extended(tmp_path / "a", "yarn", config, truncate=False)
    said = refusal(folder, "vllm", original=original)
    assert "its length code stops at the 'truncate' that stands beside blocks" in said
    if original:
        assert said.startswith("no flags of vLLM say 'yarn': its length code stops at ")
        assert said.endswith(" by layer type; leave --original out.")
    else:
        assert held(said, "vllm", config, tmp_path / "b") == "yarn"
    gemma = extended(tmp_path / "c", "yarn", GEMMA3, truncate=False)
    assert export(gemma, "vllm", original=original).row == "yarn"


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_gemma_4_is_sent_to_ntk(tmp_path: Path, target: str) -> None:
    said = refusal(extended(tmp_path / "a", "pi", GEMMA4), target)
    assert " --method ntk --factor 4; its price at short length: " in said
    assert held(said, target, GEMMA4, tmp_path / "b") == "ntk"


# --- what is named is tried -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "config", "near"),
    [
        ("sglang", MIXTRAL, "ntk"),
        ("sglang", like("qwen3"), "yarn"),
        ("lmdeploy", GEMMA3, "pi"),
        ("llama.cpp", like("gemma2"), "yarn"),
        ("llama.cpp", like("granite", "GraniteForCausalLM"), "yarn"),
        ("tgi", COMPOSITE, "yarn"),
        ("vllm", small(SHAPES["qwen2.5-vl-7b"]), "ntk"),
    ],
)
def test_what_is_named_is_served_for_this_class(
    tmp_path: Path, target: str, config: Config, near: str
) -> None:
    said = refusal(extended(tmp_path / "dynamic", "dynamic-ntk", config), target)
    assert held(said, target, config, tmp_path) == near


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_no_engine_sends_to_itself(tmp_path: Path, target: str) -> None:
    said = refusal(extended(tmp_path, "dynamic-ntk", CHATGLM), target)
    assert said.endswith(
        "Nothing that it reads comes near, and no other engine does; ropepatch.load runs it."
    )
    listed = {**CHATGLM, "architectures": ["ChatGLMForConditionalGeneration"]}
    said = refusal(extended(tmp_path / "listed", "yarn", listed), target)
    assert said.endswith("Nothing that it reads comes near; LMDeploy can.")
