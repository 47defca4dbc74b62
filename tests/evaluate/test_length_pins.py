"""Models whose frequencies follow the length, held to one."""

import pytest
import torch

from ropepatch.evaluate.reader import Reader
from ropepatch.model.length_pins import length_pin
from ropepatch.model.patching import patch_of
from tests.evaluate import parts

IDS = parts.some_ids(200)
FOLLOWING = ["dynamic", "longrope"]


def chunked(of: Reader, count: int) -> torch.Tensor:
    with torch.inference_mode(), of.at_length(count):
        found: torch.Tensor = of.logits(None, parts.row(IDS[:count]), range(count))[0]
    return found.double()


@pytest.mark.parametrize("kind", FOLLOWING)
@pytest.mark.parametrize("count", [40, 64, 65, 100])
def test_chunks_are_one_pass_of_a_fresh_model(kind: str, count: int) -> None:
    reader = parts.reader(kind, chunk=16)
    found = chunked(reader, count)
    wanted = parts.whole(parts.model(kind), IDS[:count])
    parts.close(found, wanted)
    if count > 64:  # what the pin is for
        short = parts.whole(parts.model(kind), IDS[:16])
        assert (found[:16] - short).abs().max() > 0.1


@pytest.mark.parametrize("kind", FOLLOWING)
def test_longer_texts_leave_no_trace(kind: str) -> None:
    reader = parts.reader(kind, chunk=16)
    parts.whole(reader.model, IDS)  # outside of any block, and longer
    found = [chunked(reader, count) for count in (100, 200, 50, 100)]
    assert torch.equal(found[0], found[3])
    for count, logits in zip((100, 200, 50), found, strict=False):
        wanted = parts.whole(parts.model(kind), IDS[:count])
        parts.close(logits, wanted)
    # and the model itself goes on like a fresh one
    wanted = parts.whole(parts.model(kind), IDS[:80])
    parts.close(parts.whole(reader.model, IDS[:80]), wanted)


@pytest.mark.parametrize("kind", FOLLOWING)
def test_what_is_left_behind(kind: str) -> None:
    model = parts.model(kind)
    pin = length_pin(model)
    assert pin is not None
    rotary = model.model.rotary_emb
    before = set(vars(rotary))

    def own(x: torch.Tensor, position_ids: torch.Tensor) -> object:
        return type(rotary).forward(rotary, x, position_ids)

    def failing() -> None:
        with pin(100):
            assert "forward" in vars(rotary)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert set(vars(rotary)) == before
    rotary.forward = own  # as accelerate does
    with pin(100):
        assert rotary.forward is not own
    assert rotary.forward is own


def test_both_sides_of_longrope() -> None:
    """Up to the pretrained length by the short factors, beyond by the long ones."""
    model = parts.model("longrope")
    words = model.config.rope_parameters
    pin = length_pin(model)
    assert pin is not None
    x, places = torch.zeros(1, 1, 32), torch.arange(5, 9)[None]
    exponents = torch.arange(8) / 8
    for length, factors in ((9, "short"), (64, "short"), (65, "long"), (300, "long")):
        inv = 1 / (torch.tensor(words[f"{factors}_factor"]) * 10000.0**exponents)
        with pin(length), torch.inference_mode():
            cos, sin = model.model.rotary_emb(x, places)
        angles = (places[0, :, None] * inv).repeat(1, 2)
        scale = (1 + torch.tensor(8.0).log() / torch.tensor(64.0).log()).sqrt()
        torch.testing.assert_close(cos[0], angles.cos() * scale, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(sin[0], angles.sin() * scale, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "kind", ["llama", "gemma3", "mistral", "patched-yarn", "alibi", "deepseek", "cohere"]
)
def test_nothing_to_pin(kind: str) -> None:
    assert length_pin(parts.model(kind)) is None


def test_a_patch_pins_itself() -> None:
    model = parts.model("patched-ntk")
    patch = patch_of(model)
    assert patch is not None
    assert length_pin(model) == patch.pinned
    patch.revert()
    assert length_pin(model) is None


@pytest.mark.parametrize("count", [50, 65, 100])
def test_chunks_are_one_pass_of_a_pinned_patch(count: int) -> None:
    reader = parts.reader("patched-ntk", chunk=16)
    found = chunked(reader, count)
    with reader.at_length(count):
        parts.close(found, parts.whole(reader.model, IDS[:count]))
    loose = parts.whole(reader.model, IDS[:count])  # each token by the regime of its place
    assert (count <= 64) == bool((found - loose).abs().max() < 1e-4)
