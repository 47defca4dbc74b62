"""What a user's run found: each was silent, or a traceback, once."""

from pathlib import Path
from typing import Any

import pytest
import torch

import ropepatch
from ropepatch.errors import (
    CacheError,
    CheckpointError,
    NotExpressibleError,
    PatchConflictError,
    RecipeError,
    VerificationError,
)
from tests import tiny
from tests.live.subjects import DYNAMIC, STATIC, make, patched, read, text


def test_a_reverted_handle_cannot_be_entered() -> None:
    handle = patched(make(), STATIC)
    handle.revert()
    with pytest.raises(PatchConflictError, match=r"call ropepatch\.patch again"), handle:
        pass


def test_a_pin_outlives_a_replacement() -> None:
    model: Any = make()
    first = patched(model, DYNAMIC)
    with first.pinned(150):
        second = ropepatch.patch(model, "dynamic-ntk", factor=8, replace=True)
        assert second.follower.pin() == 150
    assert second.follower.pin() is None


def test_a_block_takes_its_replacement_with_it() -> None:
    model: Any = make()
    base = read(model, text(80))
    with patched(model, STATIC):
        inner = ropepatch.patch(model, "pi", factor=2, replace=True)
    assert not inner.active
    assert torch.equal(read(model, text(80)), base)


def test_a_shared_generation_config_is_left_alone() -> None:
    one, two = make(), make()
    assert one.generation_config is not None
    one.generation_config.max_length = one.config.max_position_embeddings
    two.generation_config = shared = one.generation_config
    with patched(one, STATIC) as handle:
        assert one.generation_config.max_length == handle.target_length
        assert two.generation_config.max_length == two.config.max_position_embeddings
    assert one.generation_config is shared


def test_attention_weights_are_refused_before_anything_is_read() -> None:
    model: Any = make()
    with patched(model, DYNAMIC) as handle:
        cache = model(text(10)).cache
        with pytest.raises(CacheError, match="output_attentions"):
            model(text(150), cache=cache, output_attentions=True)
        assert cache.get_seq_length() == 10
        with handle.pinned(200):
            model(text(150), cache=cache)


def test_a_model_that_was_cast_is_told_so() -> None:
    model: Any = make()
    model.to(torch.bfloat16)
    with patched(model, STATIC) as handle:
        assert any("16 bits" in note for note in handle.advice)


def test_a_part_of_a_model_is_told_so() -> None:
    whole: Any = make()
    with patched(whole.model, STATIC) as handle:
        assert any("patch that one" in note for note in handle.advice)


def live_folder(folder: Path) -> Path:
    with ropepatch.patch(make(), "yarn", factor=4, short_exact=True) as handle:
        handle.model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("block", [{"rope_type": "default", "rope_theta": 1e4}, None])
def test_a_live_folder_whose_block_was_changed_does_not_verify(block: Any, tmp_path: Path) -> None:
    config = tiny.read_json(live_folder(tmp_path) / "config.json")
    tiny.write_json(tmp_path / "config.json", config | {"rope_parameters": block})
    with pytest.raises(VerificationError, match="without its patch"):
        ropepatch.verify(tmp_path)


def test_a_live_folder_without_its_stamp_is_refused(tmp_path: Path) -> None:
    config = tiny.read_json(live_folder(tmp_path) / "config.json")
    config.pop("ropepatch")
    tiny.write_json(tmp_path / "config.json", config)
    with pytest.raises(CheckpointError, match="stamp"):
        ropepatch.load(tmp_path)


@pytest.mark.parametrize("word", ["method", "factor", "config", "output_loading_info"])
def test_load_says_where_a_word_belongs(word: str, tmp_path: Path) -> None:
    words: dict[str, Any] = {word: 4}
    with pytest.raises(CheckpointError, match=f"load takes no {word}"):
        ropepatch.load(tmp_path, **words)


def test_extend_takes_the_words_of_a_recipe(tmp_path: Path) -> None:
    folder = tiny.bare_checkpoint(tmp_path / "model")
    words = {"method": "yarn", "factor": 4}
    done = ropepatch.extend(folder, words, tmp_path / "long", verify=False)
    assert done.change.recipe.method == "yarn"
    with pytest.raises(RecipeError, match="mapping of its words"):
        ropepatch.extend(folder, "yarn", tmp_path / "other")  # type: ignore[arg-type]


def test_a_schedule_that_follows_the_length_cannot_stay_beside_a_patch() -> None:
    from transformers import Gemma3TextConfig

    words = {k: v for k, v in tiny.GEMMA3.items() if k not in ("architectures", "model_type")}
    words["rope_parameters"] = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    }
    model = tiny.build(Gemma3TextConfig(**words))
    before = model.config.to_dict()
    with pytest.raises(NotExpressibleError, match="follows the length"):
        ropepatch.patch(model, "yarn", factor=4, layers="full_attention")
    assert model.config.to_dict() == before
    assert ropepatch.patch_of(model) is None
