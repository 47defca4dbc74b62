"""Reading in chunks through a cache, and going on from copies of it."""

from typing import Any

import numpy as np
import pytest
import torch

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.reader import Reader, fork, is_out_of_memory
from tests.evaluate import parts

STATIC = ["llama", "gemma3", "gemma2", "mistral", "patched-yarn", "alibi", "deepseek"]
FOLLOWING = ["dynamic", "longrope", "patched-ntk"]
KINDS = [*STATIC, *FOLLOWING]
IDS = parts.some_ids(90)
PLACES = [0, 5, 40, 77, 89]


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_give_one_pass(kind: str) -> None:
    for chunk in (1, 7, 16, 90):
        reader = parts.reader(kind, chunk=chunk)
        with torch.inference_mode(), reader.at_length(len(IDS)):
            found = reader.logits(None, parts.row(IDS), PLACES)[0]
            parts.close(found, parts.whole(reader.model, IDS)[PLACES])
        assert found.dtype == torch.float32
        assert reader.forwarded == len(IDS)


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_from_copies(kind: str) -> None:
    """The original goes on to the bit as if nobody had copied it."""
    reader = parts.reader(kind, chunk=16)
    first, one, other = IDS[:50], IDS[50:], IDS[50:][::-1].copy()
    with torch.inference_mode(), reader.at_length(len(IDS)):
        wanted = reader.logits(reader.extend(None, parts.row(first)), parts.row(one), range(40))
        cache = reader.extend(None, parts.row(first))
        aside = reader.logits(fork(cache), parts.row(other), range(40))
        three = torch.from_numpy(np.stack([one, other, one]).astype(np.int64))
        rows = reader.logits(fork(cache, 3), three, range(40))
        again = reader.logits(fork(cache), parts.row(one), range(40))
        found = reader.logits(cache, parts.row(one), range(40))
        parts.close(aside[0], parts.whole(reader.model, [*first, *other])[50:])
    assert torch.equal(found, wanted)
    assert torch.equal(again, wanted)
    for row, alone in zip(rows, (wanted, aside, wanted), strict=True):
        parts.close(row, alone[0])
    assert not torch.allclose(wanted, aside, atol=0.1)


def test_nothing_to_copy() -> None:
    assert fork(None, 3) is None


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mistral", "patched-yarn", "alibi"])
def test_greedy_is_what_the_model_generates(kind: str) -> None:
    reader = parts.reader(kind, chunk=16)
    prompt = parts.row(IDS[:60])
    words: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
    made = reader.model.generate(
        prompt, attention_mask=torch.ones_like(prompt), eos_token_id=None, **words
    )[0, 60:].tolist()
    with torch.inference_mode():
        assert reader.greedy(None, prompt, 12, []) == [made]
        # up to one that ends, which is left out; from a cache as from the start
        end = made[5]
        cut = made[: made.index(end)]
        assert reader.greedy(None, prompt, 12, [end]) == [cut]
        cache = reader.extend(None, prompt[:, :41])
        assert reader.greedy(fork(cache), prompt[:, 41:], 12, [end]) == [cut]
        assert reader.greedy(cache, prompt[:, 41:], 0, [end]) == [[]]


def test_rows_end_on_their_own() -> None:
    reader = parts.reader("llama")
    prompts = np.stack([parts.some_ids(30, seed) for seed in range(4)])
    with torch.inference_mode():
        alone = [reader.greedy(None, parts.row(ids), 10, [])[0] for ids in prompts]
        ends = {alone[0][3], alone[1][0]}
        wanted = [
            row[: min([i for i, t in enumerate(row) if t in ends], default=10)] for row in alone
        ]
        before = reader.forwarded
        found = reader.greedy(None, reader.tensor(list(prompts)), 10, sorted(ends))
    assert found == wanted
    assert reader.forwarded - before <= 4 * 39


def test_a_chunk_counts_all_rows() -> None:
    reader = parts.reader("llama", chunk=24)
    sizes = []
    reader.model.register_forward_pre_hook(
        lambda *_: sizes.append(_[2]["input_ids"].numel()), with_kwargs=True
    )
    with torch.inference_mode():
        reader.extend(None, parts.row(IDS).repeat(3, 1))
    assert max(sizes) == 24
    assert sum(sizes) == reader.forwarded == 270


def test_a_model_without_a_cache_is_refused() -> None:
    class Forgetful(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)

        def get_input_embeddings(self) -> torch.nn.Embedding:
            return self.embed

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return type("Output", (), {"logits": self.embed(input_ids)})()

    with pytest.raises(EvaluationError, match="Forgetful returns no key-value cache"):
        Reader(Forgetful()).extend(None, torch.zeros(1, 4, dtype=torch.long))


def test_what_is_out_of_memory() -> None:
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("x"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
    )
    assert is_out_of_memory(RuntimeError("MPS backend out of memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("out of memory"))
