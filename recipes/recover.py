"""A short recovery training after a conversion, on one machine.

    python recipes/recover.py FOLDER OUTPUT [--teacher ORIGINAL] [--steps 100] [--length 512]

FOLDER is what `ropepatch convert` wrote, or any checkpoint that loads with ropepatch. All weights
are trained, in float32, on one text in windows; with a teacher (the model before its conversion)
the student learns the teacher's whole distribution instead, which takes far fewer steps. A tenth
of the text is held out; its loss is printed before, during and after. OUTPUT loads as FOLDER does.

The default text are the topics of Python's own `help()`, so nothing is downloaded. That is enough
to see a conversion recover, and too little to make a model good.
"""

import argparse
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch.nn import functional as F
from transformers import AutoTokenizer
from transformers.utils import logging

import ropepatch


def windows_of(folder: str, text: str, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows to train on and windows held out, (windows, length)."""
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids[0]
    whole = ids[: len(ids) // length * length].reshape(-1, length)
    held = torch.arange(len(whole)) % 10 == 9
    return whole[~held], whole[held]


@torch.no_grad()
def loss_of(model: Any, windows: torch.Tensor, most: int) -> float:
    """Mean loss of held-out windows, nats per token."""
    model.eval()
    return sum(float(model(ids[None], labels=ids[None]).loss) for ids in windows[:most]) / most


def step_of(model: Any, teacher: Any, ids: torch.Tensor) -> torch.Tensor:
    """What one window costs: its next tokens, or the teacher's opinion of them."""
    output = model(ids[None], labels=None if teacher else ids[None], use_cache=False)
    if teacher is None:
        loss: torch.Tensor = output.loss
        return loss
    with torch.no_grad():
        wanted = teacher(ids[None], use_cache=False).logits.log_softmax(-1)
    student = output.logits.log_softmax(-1)
    return F.kl_div(student[0], wanted[0], log_target=True, reduction="batchmean")


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("output", type=Path)
    parser.add_argument("--teacher", help="The model before its conversion.")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--held", type=int, default=8, help="Windows to measure on.")
    given = parser.parse_args()
    if given.output.exists():
        parser.error(f"{given.output} exists already; choose another folder")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    text = given.text.read_text(encoding="utf-8") if given.text else "\n\n".join(topics.values())
    train, held = windows_of(given.folder, text, given.length)
    most = min(given.held, len(held))
    if not most:
        parser.error(f"the text has fewer than ten windows of {given.length} tokens")
    model: Any = ropepatch.load(given.folder, dtype=torch.float32)
    teacher: Any = None
    if given.teacher:
        teacher = ropepatch.load(given.teacher, dtype=torch.float32).eval()
        print(f"teacher: {loss_of(teacher, held, most):.3f} nats per held-out token", flush=True)
    print(f"step 0: {loss_of(model, held, most):.3f}", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.rate, betas=(0.9, 0.95))
    warm = max(1, given.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min((i + 1) / warm, max(0.05, 1 - i / given.steps))
    )
    started = time.monotonic()
    for step in range(1, given.steps + 1):
        model.train()
        loss = step_of(model, teacher, train[torch.randint(len(train), (1,))[0]])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % max(1, given.steps // 5) == 0:
            seconds = (time.monotonic() - started) / step
            print(
                f"step {step}: {loss_of(model, held, most):.3f} ({seconds:.1f} s a step)",
                flush=True,
            )
    model.save_pretrained(given.output)
    AutoTokenizer.from_pretrained(given.folder).save_pretrained(given.output)
    print(f"written: {given.output}")


if __name__ == "__main__":
    main()
