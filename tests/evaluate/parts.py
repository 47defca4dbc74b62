"""What the tests of evaluation are made of: tiny tokenizers, tiny models, short texts."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropepatch.errors import EvaluationError
from ropepatch.evaluate.cells import cells_of
from ropepatch.evaluate.haystack import Haystack, own_sentences
from ropepatch.evaluate.needle import NeedleRun
from ropepatch.evaluate.plan import NeedlePlan, PerplexityPlan
from ropepatch.evaluate.prompts import PromptMaker
from ropepatch.evaluate.reader import Reader
from ropepatch.evaluate.results import ResultsFolder
from ropepatch.evaluate.tokens import Tokens
from tests import tiny

VOCABULARY = 608
"""Words of every tiny model: as many as the largest tiny tokenizer has."""
WINDOW = 32
"""Tokens that the tiny models with a sliding window see."""
TRAINED = 64
"""Tokens that the tiny models say they were trained on."""

BOS, EOS, START, END = "<s>", "</s>", "<|start|>", "<|end|>"
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def prose() -> str:
    return (resources.files("ropepatch.evaluate") / "texts" / "prose.txt").read_text("utf-8")


def _letters(text: str) -> Iterator[str]:
    yield from text.splitlines()
    yield from ("0 1 2 3 4 5 6 7 8 9 VAR ABCDEFGHIJKLMNOPQRSTUVWXYZ = ; ? : user assistant",) * 5


@cache
def _trained(kind: str) -> str:
    """A tokenizer as JSON, learned from the package's prose."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<pad>", BOS, EOS, START, END]
    digits = pre_tokenizers.Digits(individual_digits=True)
    trainer: Any
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        space = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([space, digits])
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
        trainer = trainers.UnigramTrainer(
            vocab_size=600,
            special_tokens=[*special, "<unk>"],
            unk_token="<unk>",
            initial_alphabet=["\n"],
            show_progress=False,
        )
    tokenizer.train_from_iterator(_letters(prose() + "\n\n"), trainer)
    return str(tokenizer.to_str())


@cache
def tokenizer(kind: str = "bpe", *, bos: bool = True, eos: bool = False, chat: bool = False) -> Any:
    """A tokenizer of transformers.

    Args:
        kind: "bpe" on bytes, "unigram" with spaces as SentencePiece marks them, "bytes" for ByT5's
            slow one, which appends the end of the sequence and knows no beginning.
        bos: Whether it puts a beginning of the sequence before a text.
        eos: Whether it puts an end of the sequence after a text.
        chat: Whether it carries a chat template.
    """
    from tokenizers import Tokenizer, processors
    from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

    made: Any
    if kind == "bytes":
        made = ByT5Tokenizer(extra_ids=8)
    else:
        inner = Tokenizer.from_str(_trained(kind))
        around = f"{BOS} " * bos + "$A" + f" {EOS}" * eos
        inner.post_processor = processors.TemplateProcessing(
            single=around, special_tokens=[(word, inner.token_to_id(word)) for word in (BOS, EOS)]
        )
        made = PreTrainedTokenizerFast(
            tokenizer_object=inner, bos_token=BOS, eos_token=EOS, pad_token="<pad>"
        )
    if chat:
        made.chat_template = CHAT
    return made


@cache
def tokens(kind: str = "bpe", **words: bool) -> Tokens:
    return Tokens(tokenizer(kind, **words))


@cache
def haystack(of: Tokens, seed: int = 0) -> Haystack:
    return Haystack(of, own_sentences(seed))


def maker(plan: NeedlePlan, of: Tokens, *, chat: bool = False, scoring: str = "likelihood") -> Any:
    return PromptMaker(plan, of, haystack(of), chat=chat, scoring=scoring)


def shortest(plan: NeedlePlan, of: Tokens, **words: Any) -> int:
    """The length that a refusal names."""
    with pytest.raises(EvaluationError, match="cannot hold") as caught:
        maker(plan, of, **words).check(cells_of(plan))
    found = re.search(r"shortest length for it is ([\d,]+)\.$", str(caught.value))
    assert found
    return int(found[1].replace(",", ""))


# --- models -----------------------------------------------------------------------------------

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": TRAINED,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_LAYERS = ["sliding_attention", "full_attention"]


def _rope(kind: str, **words: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **words}}


def config(kind: str) -> Any:
    """Of a tiny model, by name."""
    import transformers as hf

    half = _SIZES["head_dim"] // 2
    long = {
        "short_factor": [1.0 + 0.1 * i for i in range(half)],
        "long_factor": [2.0 + i for i in range(half)],
        "original_max_position_embeddings": TRAINED,
    }
    table: dict[str, tuple[Any, dict[str, Any]]] = {
        "llama": (hf.LlamaConfig, {}),
        "gemma3": (
            hf.Gemma3TextConfig,
            {"sliding_window": WINDOW, "layer_types": _LAYERS, "query_pre_attn_scalar": 16},
        ),
        "gemma2": (
            hf.Gemma2Config,
            {
                "sliding_window": WINDOW,
                "layer_types": _LAYERS,
                "query_pre_attn_scalar": 16,
                "final_logit_softcapping": 3.0,
            },
        ),
        "mistral": (hf.MistralConfig, {"sliding_window": WINDOW}),
        "dynamic": (hf.LlamaConfig, _rope("dynamic", factor=4.0)),
        "longrope": (
            hf.LlamaConfig,
            {"max_position_embeddings": 8 * TRAINED, **_rope("longrope", factor=8.0, **long)},
        ),
        "cohere": (hf.CohereConfig, {"logit_scale": 0.25}),
        "granite": (hf.GraniteConfig, {"logits_scaling": 4.0}),
        "deepseek": (
            hf.DeepseekV3Config,
            {
                "num_key_value_heads": 2,
                "kv_lora_rank": 16,
                "q_lora_rank": 16,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 12,
                "head_dim": 8,
                "first_k_dense_replace": 2,
            },
        ),
    }
    made, words = table[kind]
    return made(**{**_SIZES, **words})


def model(kind: str, seed: int = 0) -> Any:
    """A tiny model with weights that make its logits differ clearly, float32.

    Besides the names of `config`: "patched-ntk", "patched-yarn", "alibi".
    """
    import ropepatch

    stock = {"patched-ntk": "llama", "patched-yarn": "llama", "alibi": "llama"}.get(kind, kind)
    made: Any = tiny.build(config(stock), seed)
    made.generation_config = type(made.generation_config)()
    if kind == "patched-ntk":
        ropepatch.patch(made, "dynamic-ntk", 4)
    elif kind == "patched-yarn":
        ropepatch.patch(made, "yarn", 4)
    elif kind == "alibi":
        ropepatch.convert(made, "alibi")
    return made


def reader(kind: str, *, chunk: int | None = None, seed: int = 0) -> Reader:
    from ropepatch.model.length_pins import length_pin

    made = model(kind, seed)
    return Reader(made, chunk=chunk, at_length=length_pin(made))


def some_ids(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Token ids of no meaning."""
    return np.random.default_rng(seed).integers(5, VOCABULARY, count).astype(np.int32)


def row(ids: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(ids).astype(np.int64))[None]


def whole(of: Any, ids: Any) -> torch.Tensor:
    """Logits of one pass of the model itself, (tokens, vocabulary), float64."""
    with torch.inference_mode():
        found: torch.Tensor = of(input_ids=row(ids), use_cache=False).logits[0].double()
    return found


def whole_losses(of: Any, ids: Any) -> np.ndarray[Any, Any]:
    """Losses of all tokens but the first by one pass of the model itself, float64."""
    logprobs = whole(of, ids)[:-1].log_softmax(-1)
    truth = row(ids)[0, 1:, None]
    found: np.ndarray[Any, Any] = -logprobs.gather(-1, truth)[:, 0].numpy()
    return found


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    """The same logits, which are up to ten in size, but for the last digits of float32."""
    torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=2e-5)


# --- runs -------------------------------------------------------------------------------------


def needle_plan(**words: Any) -> NeedlePlan:
    return NeedlePlan(**{"lengths": (130, 200), "depths": (0.0, 50.0, 100.0), **words})


def run_needles(
    of: Reader, plan: NeedlePlan, folder: Path, *, scoring: str = "likelihood", **words: Any
) -> list[dict[str, Any]]:
    """The records of a whole grid, in the order of the cells."""
    tokenizer = tokens()
    cells = cells_of(plan)
    with ResultsFolder(folder, plan.to_dict(), {}).open() as results:
        run = NeedleRun(
            of,
            maker(plan, tokenizer, scoring=scoring),
            tokenizer,
            results,
            scoring,
            ends=[2],
            **{"short": 0, **words},
        )
        run.run(cells)
        by_key = {cell_key(record): record for record in results.records}
    return [by_key[cell.key] for cell in cells]


def cell_key(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("task", "length", "depth", "trial"))


def without_cost(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records as they would be however they were read."""
    return [{k: v for k, v in record.items() if k != "forwarded"} for record in records]


def assert_alike(found: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> None:
    """The same in all, but for the last digits of numbers in float32."""
    assert len(found) == len(wanted)
    for a, b in zip(without_cost(found), without_cost(wanted), strict=True):
        near, far = a.pop("logprob"), b.pop("logprob")
        assert a == b
        assert (near is None) == (far is None)
        assert near is None or abs(near - far) < 1e-5, (near, far)


def loss_plan(**words: Any) -> PerplexityPlan:
    return PerplexityPlan(**{"lengths": (48, 96), "final_tokens": 16, "buckets": 4, **words})
