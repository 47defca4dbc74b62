"""Every family: converted, proven, read in pieces and reverted to the bit, or refused by name.

`pytest -m "slow or not slow" -s tests/convert/test_families.py` prints the counts.
"""

import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ropepatch
from ropepatch.config_json.encodings import plan_conversion
from ropepatch.conversion import ConversionRecipe
from ropepatch.errors import NotExpressibleError, RopepatchError, UnsupportedModelError
from ropepatch.families.table import EXCEPTIONS
from tests.families import test_live
from tests.families.small import build, logits
from tests.families.test_live import CHAOTIC, ONE_PASS, READABLE, SPARSE, in_chunks
from tests.live.subjects import traces

QUICK = ("llama", "gemma3_text", "deepseek_v3", "glm", "qwen2_vl_text", "llama4_text", "olmo3")
"""Run always; the other families only with the slow tests."""
TOKENS = 200

counts: Counter[str] = Counter()
every_family = pytest.mark.parametrize(
    "family", [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in READABLE]
)
both = pytest.mark.parametrize("to", ["alibi", "nope"])

NO_BIAS = {
    "diffusion_gemma_text": "both directions",
    "falcon": "attention functions",
    **dict.fromkeys((f for f, row in EXCEPTIONS.items() if row.indexer), "index of its own"),
}
"""Families without a place for linear biases, and a word of the reason."""
NOT_AT_ALL = {"gpt_neox_japanese": "its own count"}
TEMPERED = {"beam", "ministral3", "mistral4", "mistral_large4_text"}
"""Families whose queries grow with their place, beside all rotation."""
NO_EAGER = {"unlimited_ocr_text"}
"""Families whose own plain attention takes no keys that heads share."""


@pytest.fixture(scope="module", autouse=True)
def say_the_counts() -> Iterator[None]:
    yield
    print()
    for word, number in sorted(counts.items()):
        print(f"{number:>5} {word}")


def ids() -> torch.Tensor:
    return torch.randint(3, 120, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def apart(one: torch.Tensor, two: torch.Tensor, family: str) -> None:
    """Equal but for noise; a router or an index may choose otherwise for a token or two."""
    far = (one - two).abs().amax(-1) > (1e-2 if family in CHAOTIC else 5e-4)
    assert far.sum() <= (TOKENS // 20 if family in SPARSE else 0)


def refusal(family: str, to: str) -> str | None:
    """Why the plan says no, if it does."""
    if to == "nope":
        return NOT_AT_ALL.get(family)
    return (NO_BIAS | NOT_AT_ALL).get(family)


@every_family
@both
def test_once_around(family: str, to: str) -> None:
    model: Any = build(family)
    before, base = traces(model), logits(model, ids())
    reason = refusal(family, to)
    if reason is not None:
        counts[f"{to}: refused"] += 1
        with pytest.raises(NotExpressibleError, match=f"'{family}'.*({reason})"):
            ropepatch.convert(model, to=to)
        assert traces(model) == before
        return
    try:
        handle = ropepatch.convert(model, to=to)
    except UnsupportedModelError as error:
        counts[f"{to}: refused live"] += 1
        assert traces(model) == before
        pytest.fail(f"{family} was planned and refused live: {error}")
    counts[f"{to}: converted"] += 1
    try:
        assert_converted(family, model, to, handle, base)
    finally:
        handle.revert()
    assert torch.equal(logits(model, ids()), base)
    assert traces(model) == before


def assert_converted(
    family: str, model: Any, to: str, handle: ropepatch.Conversion, base: torch.Tensor
) -> None:
    found = logits(model, ids())
    assert torch.isfinite(found).all()
    assert (found - base).abs().max() > 1e-3
    assert_deaf_to_places(family, model, found)
    if to == "alibi":
        proof = handle.describe()
        assert proof.kernel == handle.kernel
        assert proof.attentions > 0
        for kernel, other in (("eager", "mask"), ("sdpa", "channels")):
            if family in NO_EAGER and kernel == "eager":
                continue
            model.set_attn_implementation(kernel)
            assert handle.kernel == other
            apart(logits(model, ids()), found, family)
            handle.describe()
    if family not in ONE_PASS:
        whole, _ = in_pieces(model, TOKENS)
        apart(whole, found, family)
        apart(in_pieces(model, TOKENS // 2)[0], found, family)
        apart(in_pieces(model, 23)[0], found, family)


def assert_deaf_to_places(family: str, model: Any, found: torch.Tensor) -> None:
    """No layer is left that turns: places far away change nothing."""
    if "position_ids" not in inspect.signature(type(model).forward).parameters:
        return
    places = 3 * torch.arange(TOKENS)[None] + 7
    words: dict[str, Any] = {"position_ids": places, "attention_mask": torch.ones_like(places)}
    moved = logits(model, ids(), **words)
    if family in TEMPERED:
        assert (moved - found).abs().max() > 1e-3
    else:
        apart(moved, found, family)


def in_pieces(model: Any, size: int) -> tuple[torch.Tensor, Any]:
    """The first tokens of the text of `in_chunks`."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(test_live, "ids", ids)
        patching.setattr(test_live, "TOKENS", TOKENS)
        return in_chunks(model, size)


@pytest.mark.slow
@every_family
@both
def test_the_plan_agrees_with_the_live_model(family: str, to: str) -> None:
    """A file is converted by the plan alone, so that must not promise too much."""
    model: Any = build(family)
    try:
        plan_conversion(model.config.to_dict(), ConversionRecipe(to))
        planned = True
    except RopepatchError:
        planned = False
    assert planned == (refusal(family, to) is None)


def test_the_table_names_families() -> None:
    assert NO_BIAS.keys() | TEMPERED | NO_EAGER <= set(READABLE)
