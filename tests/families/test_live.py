"""Every family, live: patched, proven, saved, reloaded and reverted, or refused by name.

`pytest -m slow -s tests/families/test_live.py` prints the counts that README gives.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache

import ropepatch
from ropepatch import Patch
from ropepatch.config_json.layout import read_layout
from ropepatch.errors import (
    CacheError,
    GeometryError,
    NoEffectError,
    NotExpressibleError,
    UnsupportedModelError,
)
from ropepatch.families.table import EXCEPTIONS
from ropepatch.methods.table import METHODS
from ropepatch.model.skeleton import quiet
from tests.families.census import FAMILIES
from tests.families.outcomes import parameters
from tests.families.small import build, logits
from tests.families.test_census import UNREADABLE, WINDOWED

READABLE = [family for family in FAMILIES if family not in UNREADABLE]
QUICK = ("llama", "gemma3_text", "deepseek_v3", "glm", "qwen2_vl_text", "llama4_text", "olmo3")
"""Run always; the other families only with the slow tests."""
TOKENS = 400
"""The tiny models say 256."""

LEARNED = {"mistral_large4_text": "trained parameters"}
"""Families that are refused live alone."""
ONE_PASS = {f for f, row in EXCEPTIONS.items() if row.one_pass} | {"idefics"}
"""Families whose inputs cannot be read in pieces (idefics wants its images beside the text)."""
SPARSE = {f for f, row in EXCEPTIONS.items() if row.indexer}
"""Families that choose which tokens to read: the last bit of a frequency may choose another."""
CHAOTIC = {
    "bailing_hybrid",
    "granite",
    "granite4_vision_text",
    "granitemoe",
    "granitemoeshared",
    "qwen3_5_moe_text",
    "zamba2",
}
"""Families whose tiny models blow float noise up; the stock ones do as well."""

counts: Counter[str] = Counter()
every_family = pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in READABLE]
)


@pytest.fixture(scope="module", autouse=True)
def say_the_counts() -> Iterator[None]:
    yield
    print()
    for word, number in sorted(counts.items()):
        print(f"{number:>5} {word}")


def ids() -> torch.Tensor:
    return torch.randint(3, 120, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def patched(model: Any, method: str, **words: Any) -> Patch | None:
    """A patch, by force where only windowed layers turn; None where it is refused for a reason."""
    schedules = read_layout(model.config.to_dict()).schedules
    schedule = schedules.get("full_attention") or next(iter(schedules.values()))
    words = {"replace": True, **parameters(method, schedule.geometry.pairs), **words}
    try:
        return ropepatch.patch(model, method, **words)
    except NoEffectError as error:
        if "Widen that window" in str(error) and "layers" not in words:
            return patched(model, method, layers="all", **words)
    except (GeometryError, NotExpressibleError):
        pass
    return None


@every_family
def test_life_of_a_patch(family: str, tmp_path: Path) -> None:
    model: Any = build(family)
    before, base = model.config.to_dict(), logits(model, ids())
    state = {k: v.clone() for k, v in model.state_dict().items()}
    modules = dict(model.named_modules())
    noise = 2e-2 if family in CHAOTIC else 2e-3
    if family in LEARNED:
        with pytest.raises(UnsupportedModelError, match=LEARNED[family]):
            ropepatch.patch(model, "pi", factor=4, replace=True)
        return
    for method in METHODS:
        handle = patched(model, method)
        if handle is None:
            counts[f"{method}: refused"] += 1
            assert_untouched(model, before, modules)
            continue
        counts[f"{method}: patched"] += 1
        assert handle.describe().proof.layers_changed > 0
        assert set(model.state_dict()) == set(state)
        with handle.pinned(TOKENS):
            new = logits(model, ids())
            assert (new - base).abs().max() > 1e-3
            if handle.live_only is None:
                apart = (reloaded(model, tmp_path / method) - new).abs().amax(-1)
                assert (apart > noise).sum() <= (TOKENS // 20 if family in SPARSE else 0)
        handle.revert()
        assert torch.equal(logits(model, ids()), base)
    assert_untouched(model, before, modules)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def assert_untouched(model: Any, before: dict[str, Any], modules: dict[str, Any]) -> None:
    found = {k: v for k, v in model.config.to_dict().items() if k not in _SAVING}
    assert found == {k: v for k, v in before.items() if k not in _SAVING}
    assert {k: id(v) for k, v in model.named_modules()} == {k: id(v) for k, v in modules.items()}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


_SAVING = ("architectures", "dtype", "transformers_version")
"""What `save_pretrained` itself puts into a config."""


def reloaded(model: Any, folder: Path) -> torch.Tensor:
    """What plain transformers makes of a saved model."""
    with quiet():
        model.save_pretrained(folder)
        return logits(type(model).from_pretrained(folder).eval(), ids())


@every_family
def test_chunks_and_cached_keys_follow_the_length(family: str) -> None:
    if family in LEARNED:
        return
    model: Any = build(family)
    for method in ("dynamic-ntk", "dynamic-yarn", "longrope"):
        handle = patched(model, method)
        if handle is None:
            continue
        with handle:
            if family in ONE_PASS:
                with pytest.raises(CacheError, match="pin the length"):
                    logits(model, ids())
                with handle.pinned(TOKENS):
                    assert torch.isfinite(logits(model, ids())).all()
            else:
                assert_follows(family, model, handle)


def assert_follows(family: str, model: Any, handle: Patch) -> None:
    whole, cache = in_chunks(model, TOKENS)
    noise = 5e-3 if family in CHAOTIC else 2e-4
    assert (in_chunks(model, 64)[0] - whole).abs().max() < noise
    with handle.pinned(handle.follower.regimes.at(TOKENS)):
        _, fresh = in_chunks(model, TOKENS)
    for label in handle.change.methods:
        # the first layer that turns knows nothing of how earlier layers turned
        groups = handle.change.layout.groups_of(label)
        slot = min(i for group in groups for i in group.layers)
        name = "values" if handle.follower.places[label].latent else "keys"
        turned, wanted = (getattr(c.layers[slot], name) for c in (cache, fresh))
        assert wanted.numel()
        assert (turned - wanted).abs().max() < 3e-5 * wanted.abs().max()


def in_chunks(model: Any, size: int) -> tuple[torch.Tensor, Any]:
    """Logits of the text, read so many tokens at a time, and the cache."""
    cache: Any = None
    if model.config.model_type == "granite4_vision":  # it makes none itself
        cache = DynamicCache(config=model.config.get_text_config())
    found = []
    for start in range(0, TOKENS, size):
        part = ids()[:, start : start + size]
        positions = torch.arange(start, start + part.shape[1])[None]  # Bamba counts from 0 again
        words = {} if cache is None else {"cache": cache}
        with torch.no_grad():
            out = model(input_ids=part, position_ids=positions, use_cache=True, **words)
        cache = out.past_key_values if cache is None else cache
        found.append(out.logits if "logits" in out else out.last_hidden_state)
    return torch.cat(found, 1), cache


def test_readme_counts_what_is_tested() -> None:
    text = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())
    live = len(READABLE) - len(LEARNED)
    rows = len(set(READABLE) & set(EXCEPTIONS) - set(LEARNED))
    assert f"{live} are patched, saved, reloaded and reverted to the bit" in text
    assert f"{live - rows} of them by structure alone and {rows} with a row" in text
    assert f"Of the {live}, {live - len(ONE_PASS)} follow the length" in text
    assert set(WINDOWED) <= set(READABLE)
