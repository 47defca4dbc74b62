"""Train a tiny language model that finds codes within its window of 256 tokens, none beyond it.

    python recipes/train_tiny_retriever.py --output FOLDER [--steps 60 300 900] [--seed 0]

It makes its own tokenizer and texts from the words of `ropepatch.evaluate`, trains a Llama of a
million weights in float32 on the CPU, writes it, and prints a table: how often it finds a code at
one, two and four windows, as it is and patched. recipes/models/tiny-retriever came from this.

Three things let a model this small learn to retrieve within minutes:

* It begins with texts of 64 tokens that hold hardly anything but codes and questions, then reads
  up to 128, then up to the window. Several questions are asked of each text; near the end of the
  training half of the texts ask one, as tests do.
* A helper reads the tokens just before from what the first two layers have worked out, and is
  thrown away at the end. Without it the model copies some code for very long before it learns to
  copy the one that belongs to the key.
* The base of the rotation is small, so that the slowest pair needs about as many windows for a
  turn as in large models. With the usual 10,000 the slow pairs would hardly move in four windows.

Muon, the optimizer of the matrices, is in torch since 2.9.
"""

import argparse
import itertools
import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from tiny_text import DIGITS, Examples, Kind, make_tokenizer, sources
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

import ropepatch

WINDOW = 256
LENGTHS = (64, 128, WINDOW)
"""One stage each."""
TOKENS = 6144
"""Of a step, about."""
KEYS = (1, 1, 2, 3, 4, 4, 6, 10)
"""Codes in a text, drawn from these, or as many as there is room for."""
SHORTER = 0.4
"""The part of a stage's steps that read texts of some other length, no shorter than the first."""
LAST = 0.15
"""The part of the training in which half of the texts ask one question."""
PASSKEYS = 0.15
METHODS = ("pi", "ntk", "ntk-by-parts", "yarn", "dynamic-ntk", "llama3")


def make_model(vocabulary: int, theta: float) -> Any:
    """An untrained model."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    return LlamaForCausalLM(config)


class Helper(torch.nn.Module):
    """Reads the three tokens before from the first layer's output, the fourth from the second's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.readers = torch.nn.ModuleList(
            torch.nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def loss(self, model: Any, states: Any, ids: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """Summed over the four; read before answers, and at six places elsewhere in each text."""
        rows = torch.arange(len(ids)).repeat(6)
        places = torch.randint(4, ids.shape[1], rows.shape)
        rows, places = torch.cat([rows, first[:, 0]]), torch.cat([places, first[:, 1]])
        losses = []
        for back, reader in enumerate(self.readers, start=1):
            state = states[1 if back < 4 else 2][rows, places]
            state = F.rms_norm(state, state.shape[-1:])
            losses.append(F.cross_entropy(model.lm_head(reader(state)), ids[rows, places - back]))
        return torch.stack(losses).sum()


def batch_of(examples: Examples, length: int, one_question: bool) -> tuple[Any, Any]:
    """Examples (batch, length), and of each token of an answer its row and place."""
    rows, places = [], []
    for row in range(TOKENS // length):
        keys = min(examples.rng.choice(KEYS), examples.room(length))
        if examples.rng.random() < PASSKEYS:
            keys = 0
        ids, starts = examples.one(Kind(length, keys, 1 if one_question else None))
        rows.append(ids)
        places += [(row, start + i) for start in starts for i in range(DIGITS)]
    return torch.tensor(rows), torch.tensor(places)


def loss_of(model: Any, helper: Helper, ids: torch.Tensor, places: torch.Tensor) -> Any:
    """What a batch costs, and how often the first digit and all digits are right.

    First digits, which choose among codes, count three times. All other text counts a tenth, by a
    sample of its tokens.
    """
    output = model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
    last = output.last_hidden_state
    rows, at = places[:, 0], places[:, 1]
    logits = model.lm_head(last[rows, at - 1])
    losses = F.cross_entropy(logits, ids[rows, at], reduction="none").view(-1, DIGITS)
    weights = torch.tensor([3.0] + [1.0] * (DIGITS - 1)).expand_as(losses)
    answers = (losses * weights).sum() / weights.sum()
    some = torch.rand(len(ids), ids.shape[1] - 1) < 0.05 + 32 / ids.shape[1]
    text = F.cross_entropy(model.lm_head(last[:, :-1][some]), ids[:, 1:][some])
    before = torch.stack([rows, at - 1], dim=1)
    backward = helper.loss(model, output.hidden_states, ids, before)
    right = (logits.argmax(-1) == ids[rows, at]).view(-1, DIGITS).float()
    return answers + 0.1 * text + 0.3 * backward, right[:, 0].mean(), right.prod(1).mean()


def train(model: Any, examples: Examples, steps: list[int], rate: float) -> None:
    """All stages, under one schedule of the learning rate."""
    helper = Helper(model.config.hidden_size)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    known = {id(p) for p in matrices}
    others = [p for p in (*model.parameters(), *helper.parameters()) if id(p) not in known]
    optimizers = [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    total, started = sum(steps), time.monotonic()
    lengths = itertools.chain(*([n] * count for n, count in zip(LENGTHS, steps, strict=True)))
    for step, length in enumerate(lengths):
        done = step / total
        if examples.rng.random() < SHORTER:
            length = examples.rng.randint(LENGTHS[0], length)
        share = min(1, (step + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * done)))
        for group in (g for optimizer in optimizers for g in optimizer.param_groups):
            group["lr"] = rate * share
        ids, places = batch_of(examples, length, done > 1 - LAST and step % 2 == 0)
        loss, first, whole = loss_of(model, helper, ids, places)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step % 50 == 49 or step == total - 1:
            print(
                f"step {step + 1} of {total}, {length} tokens: loss {loss.item():.2f}, "
                f"first digit {float(first):.2f}, code {float(whole):.2f}, "
                f"{(time.monotonic() - started) / 60:.1f} min",
                flush=True,
            )


@torch.no_grad()
def found(model: Any, examples: Examples, kind: Kind, prompts: int) -> float:
    """Share of codes of which every digit is the model's first choice."""
    right = 0
    for begin in range(0, prompts, 8):
        ids = torch.tensor([examples.one(kind)[0] for _ in range(begin, min(begin + 8, prompts))])
        logits = model(ids, use_cache=False, logits_to_keep=DIGITS + 1).logits[:, :-1]
        right += int((logits.argmax(-1) == ids[:, -DIGITS:]).all(-1).sum())
    return right / prompts


def table(model: Any, examples: Examples, prompts: int) -> None:
    """Inside the window and beyond it, as it is and by each method."""
    print(f"{'tokens':>6}  {'as':16} {'one code':>8} {'of four':>8} {'passkey':>8}")
    for length in (WINDOW // 2, WINDOW, 2 * WINDOW, 4 * WINDOW):
        recipes: list[tuple[str, Any]] = [("unpatched", None)]
        for factor in (length // WINDOW, 2 * length // WINDOW) if length > WINDOW else ():
            recipes += [(f"{m} x{factor}", {"method": m, "factor": factor}) for m in METHODS]
        for name, recipe in recipes:
            with ropepatch.patch(model, recipe) if recipe else nullcontext():
                scores = [found(model, examples, Kind(length, k), prompts) for k in (1, 4, 0)]
            print(f"{length:6}  {name:16} " + " ".join(f"{s:8.3f}" for s in scores), flush=True)


def main() -> None:
    """Train, write, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--steps", type=int, nargs=3, default=[60, 300, 900], help="At 64, 128 and 256 tokens."
    )
    parser.add_argument("--theta", type=float, default=500.0, help="Base of the rotation.")
    parser.add_argument("--rate", type=float, default=6e-3)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=int, default=200, help="For each number of the table.")
    given = parser.parse_args()
    if given.output.exists():
        parser.error(f"{given.output} exists already; choose another folder")
    logging.set_verbosity_error()
    torch.manual_seed(given.seed)
    texts = sources()
    tokenizer = make_tokenizer(itertools.chain(*texts), given.vocabulary, WINDOW)
    model = make_model(len(tokenizer), given.theta)
    print(f"{sum(p.numel() for p in model.parameters()):,} weights, {len(tokenizer):,} tokens")
    train(model, Examples(tokenizer, texts, given.seed), given.steps, given.rate)
    model.eval().save_pretrained(given.output)
    tokenizer.save_pretrained(given.output)
    print(f"written: {given.output}")
    table(model, Examples(tokenizer, texts, given.seed + 1), given.prompts)


if __name__ == "__main__":
    main()
