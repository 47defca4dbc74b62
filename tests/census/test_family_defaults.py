"""The defaults the library reads are those of the installed transformers."""

import json
from importlib.metadata import version
from typing import Any

import pytest

from tests.census.family_defaults import TARGET, collect, dump, forced_last, period


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    defaults: dict[str, Any] = json.loads(TARGET.read_text(encoding="utf-8"))
    return defaults


@pytest.mark.slow
def test_the_committed_defaults_are_those_of_the_classes(committed: dict[str, Any]) -> None:
    if version("transformers") != committed["transformers"]:
        pytest.skip(f"collected from transformers {committed['transformers']}")
    assert collect() == committed


def test_the_file_is_written_as_the_collector_writes_it(committed: dict[str, Any]) -> None:
    assert TARGET.read_text(encoding="utf-8") == dump(committed)


def test_every_text_type_is_accounted_for(committed: dict[str, Any]) -> None:
    known = {*committed["families"], *committed["without_rope"], *committed["not_collected"]}
    assert set(committed["text_types"].values()) <= known
    assert not {*committed["families"]} & {*committed["without_rope"]}


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gemma3_text", "head_dim", 256),
        ("gemma3_text", "scaling_label", "full_attention"),
        (
            "gemma3_text",
            "theta_keys",
            [["rope_local_base_freq", "sliding_attention"], ["rope_theta", "full_attention"]],
        ),
        ("gemma4_text", "global_head_dim", 512),
        ("gpt_neox", "theta_keys", [["rotary_emb_base", ""]]),
        ("gpt_neox", "partial_keys", ["rotary_pct"]),
        ("llama", "honours_partial", False),
        ("llama4_text", "nope_period", [1, 1, 1, 0]),
        ("minimax_m2", "partial_keys", ["partial_rotary_factor", "rotary_dim"]),
        ("mixtral", "head_dim_required", True),
        ("qwen2", "sliding_window", 4096),
        ("gptj", "blocks", {}),
    ],
)
def test_known_defaults(committed: dict[str, Any], family: str, key: str, value: object) -> None:
    assert committed["families"][family][key] == value


def test_a_computed_head_dimension_is_no_default(committed: dict[str, Any]) -> None:
    assert "head_dim" not in committed["families"]["llama"]
    assert "head_dim" not in committed["families"]["deepseek_v3"]


def test_a_type_keeps_its_own_defaults_not_those_of_a_composite(committed: dict[str, Any]) -> None:
    # Mistral 3's composite builds its text part with another θ and size.
    assert committed["text_types"]["mistral3"] == "mistral"
    assert committed["families"]["mistral"]["hidden_size"] == 4096
    assert committed["families"]["mistral"]["blocks"][""]["rope_theta"] == 10_000.0


def test_period() -> None:
    assert period([1, 1, 0, 1, 1, 0, 1], []) == [1, 1, 0]
    assert period([1, 1, 0, 1, 1, 0, 1], [[1, 1, 0, 0]]) is None
    assert period([1, 1, 1, 0], []) is None  # seen once: no rule


def test_forced_last() -> None:
    assert forced_last(list("aabaaab"), [list("aabaaaab")]) is None
    assert forced_last(list("aabaabab"), [list("aabaabb")]) == (["a", "a", "b"], "b")
