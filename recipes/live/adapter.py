"""Train a LoRA adapter on a patched model, save it, and load both again.

    python recipes/live/adapter.py MODEL adapter-folder
    python recipes/live/adapter.py MODEL adapter-folder --text notes.txt --steps 100 --factor 8

MODEL is a folder, an id of the hub or a GGUF file. PEFT (`pip install peft`) saves the adapter
alone, so the patch goes on the base model again when it is loaded; without it the adapter meets
other rotations than it was trained with. The script shows both. Its default text is a toy.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoTokenizer
from transformers.utils import logging

import ropepatch

TOY = "A rope that is patched is as long as you need it, and as strong as its weakest strand. " * 8


def train(model: Any, ids: torch.Tensor, steps: int, rate: float) -> None:
    """Plain steps over one text; what a real training does with batches of many."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate)
    model.train()
    for step in range(steps):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    model.eval()


def main() -> None:
    """Read the arguments; patch, train, save; load, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("adapter", type=Path, help="the folder to write")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokens", type=int, default=4096, help="at most, of the text")
    parser.add_argument("--method", default="yarn")
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1e-3)
    asked = parser.parse_args()
    logging.disable_progress_bar()

    recipe = ropepatch.Recipe.named(asked.method, factor=asked.factor)
    base: Any = ropepatch.load(asked.model, recipe, dtype=torch.float32)
    print(ropepatch.patch_of(base).describe())
    tokenizer: Any = AutoTokenizer.from_pretrained(base.name_or_path)
    text = TOY if asked.text is None else asked.text.read_text(encoding="utf-8")
    ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][:, : asked.tokens]

    lora = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear")
    model: Any = get_peft_model(base, lora)
    train(model, ids, asked.steps, asked.rate)
    model.save_pretrained(asked.adapter)

    again: Any = ropepatch.load(asked.model, recipe, dtype=torch.float32)
    loaded: Any = PeftModel.from_pretrained(again, asked.adapter).eval()
    with torch.inference_mode():
        want, found = model(ids).logits, loaded(ids).logits
        ropepatch.patch_of(loaded).revert()  # a wrapped model gives its patch too
        without = loaded(ids).logits
    print(f"written: {asked.adapter}")
    print(f"largest difference of logits, loaded again: {(found - want).abs().max():.2g}")
    print(f"the same adapter without the patch: {(without - want).abs().max():.2g}")


if __name__ == "__main__":
    main()
