"""Every family that transformers knows, with its class defaults: proven, or refused by name.

`pytest -m slow -s tests/families/test_census.py` prints the counts.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropepatch.config_json.layout import read_layout
from ropepatch.config_json.plan import erase_recipe
from ropepatch.config_json.write import Change, write_recipe
from ropepatch.errors import (
    ConfigError,
    GeometryError,
    NoEffectError,
    NotExpressibleError,
)
from ropepatch.model import proof
from ropepatch.recipe import Recipe
from tests.families.built import skeleton
from tests.families.census import FAMILIES, Config, smallest
from tests.families.outcomes import parameters

pytestmark = pytest.mark.slow

METHODS = ("yarn", "pi", "ntk", "dynamic-ntk", "llama3", "longrope", "p-rope")
"""Those that write different blocks (ntk-by-parts writes llama3's)."""

UNREADABLE = {
    "codegen": "fixed table of sinusoids",
    "cohere2_moe": "which its config mixes",
    "dbrx": "attn_config",
    "deepseek_v4": "two schedules at once",
    "dory": "halves as layers",
    "ernie4_5_vl_moe_text": "three axes",
    "evolla": "no auto class",
    "gptj": "fixed table of sinusoids",
    "granite_swa": "rope_theta of its own",
    "granitemoe_swa": "rope_theta of its own",
    "muse_glimmer_text": "rope_theta of its own",
    "muse_spark_text": "rope_theta of its own",
    "recurrent_gemma": "fixed window",
    "t5gemma2_decoder": "encoder-decoder",
}
"""Families of which no config is read, and a word of the reason."""

REFUSED_YARN = {
    "cosmos3_edge_text": "reads only the rope_type default",
    "diffusion_gemma_text": "stand still",
    "gemma4_text": "stand still",
    "gemma4_unified_text": "stand still",
    "lfm3": "stand still",
    "phi3": "reads only the rope_type default and longrope",
    "phi4_multimodal": "reads only the rope_type default and longrope",
    "phimoe": "reads only the rope_type default",
}
"""Families that take another method, though not yarn."""

WINDOWED = {
    "afmoe",
    "beam",
    "cohere2",
    "flint",
    "kolibri1",
    "lara_mini",
    "llama4_text",
    "ministral",
    "mistral",
    "unlimited_ocr_text",
}
"""By class defaults, no layer that turns attends globally."""

counts: Counter[tuple[str, str]] = Counter()


@pytest.fixture(scope="module", autouse=True)
def say_the_counts() -> Iterator[None]:
    yield
    print()
    for method in METHODS:
        each = ", ".join(f"{n} {word}" for (m, word), n in sorted(counts.items()) if m == method)
        print(f"{method}: {each}")


@pytest.fixture(autouse=True)
def build_each_original_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "skeleton_of_config", skeleton)


def test_the_tables_name_families() -> None:
    tables = UNREADABLE.keys() | REFUSED_YARN.keys() | WINDOWED
    assert tables <= FAMILIES.keys()


@pytest.mark.parametrize("family", UNREADABLE)
def test_what_cannot_be_read_says_why(family: str) -> None:
    with pytest.raises(ConfigError, match=UNREADABLE[family]):
        read_layout(smallest(family))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in UNREADABLE])
def test_proven_or_refused_by_name(family: str, method: str, tmp_path: Path) -> None:
    config = smallest(family)
    change, refusal = attempted(config, method)
    if method == "yarn":
        word = REFUSED_YARN.get(family)
        assert word in refusal if word else not refusal
    if change is None:
        return
    assert erase_recipe(change.after) == config
    (tmp_path / "config.json").write_text(json.dumps(change.after), encoding="utf-8")
    found = prove(change, tmp_path)
    counts[method, "proven"] += 1
    assert found.layers_changed > 0
    assert any(s.changed_pairs or s.attention_factor != 1 for s in found.schedules if s.method)


def attempted(config: Config, method: str) -> tuple[Change | None, str]:
    """What was written, or why nothing was."""
    try:
        return written(config, recipe(config, method)), ""
    except (GeometryError, NoEffectError, NotExpressibleError) as error:
        counts[method, f"refused ({type(error).__name__})"] += 1
        return None, str(error)


def recipe(config: Config, method: str) -> Recipe:
    """Over the head of the layers that will change."""
    layout = read_layout(config)
    schedules = layout.schedules
    schedule = schedules.get("full_attention") or next(iter(schedules.values()))
    return Recipe.named(method, **parameters(method, schedule.geometry.pairs))


def written(config: Config, asked: Recipe) -> Change:
    """By force where only windowed layers turn; that they need it is checked too."""
    try:
        return write_recipe(config, asked, replace=True)
    except NoEffectError as error:
        if "Widen that window" not in str(error):
            raise
    forced = Recipe.from_dict({**asked.to_dict(), "layers": ["all"]})
    change = write_recipe(config, forced, replace=True)
    assert change.layout.family.model_type in WINDOWED
    return change


def prove(change: Change, folder: Path) -> proof.Proof:
    return proof.prove(folder, change.before, change.layout, change.methods, change.target_length)
