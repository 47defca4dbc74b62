"""Hand a patched model to a transformers pipeline.

    python recipes/live/pipe.py MODEL
    python recipes/live/pipe.py MODEL "The tide comes in" "A rope is made of" --factor 8

MODEL is a folder, an id of the hub or a GGUF file. A pipeline takes a model as it is, and so takes
its patch along. Prompts of one call are read as a batch, padded on the left. Those within the
trained length are continued exactly as by the plain model.
"""

import argparse
from typing import Any

from transformers import AutoTokenizer, pipeline
from transformers.utils import logging

import ropepatch


def main() -> None:
    """Read the arguments, load with the patch, let the pipeline write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("prompts", nargs="*", default=["The capital of France is"])
    parser.add_argument("--method", default="yarn")
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--new-tokens", type=int, default=40)
    asked = parser.parse_args()
    logging.disable_progress_bar()

    recipe = ropepatch.Recipe.named(asked.method, factor=asked.factor, short_exact=True)
    model: Any = ropepatch.load(asked.model, recipe, dtype="auto", device_map="auto")
    tokenizer: Any = AutoTokenizer.from_pretrained(model.name_or_path, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    print(ropepatch.patch_of(model).describe(), end="\n\n")

    pipe: Any = pipeline("text-generation", model=model, tokenizer=tokenizer)
    answers = pipe(
        asked.prompts,
        batch_size=len(asked.prompts),
        max_new_tokens=asked.new_tokens,
        do_sample=False,
        return_full_text=False,
    )
    for prompt, (answer,) in zip(asked.prompts, answers, strict=True):
        print(f"{prompt} [{answer['generated_text'].strip()}]")


if __name__ == "__main__":
    main()
