"""Let a patched model continue a text file, and print each word as it comes.

    python recipes/live/stream.py MODEL PROMPT.txt
    python recipes/live/stream.py MODEL PROMPT.txt --method dynamic-ntk --factor 8 --chat

MODEL is a folder, an id of the hub or a GGUF file. Nothing is written: the patch is on the model
in memory. `generate` runs in a thread of its own, as it has to with a streamer; a patch holds in
every thread.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, TextIteratorStreamer
from transformers.utils import logging

import ropepatch


def encode(tokenizer: Any, text: str, *, chat: bool) -> Any:
    """Input ids and mask, each (1, tokens)."""
    if not chat:
        return tokenizer(text, return_tensors="pt", verbose=False)
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )


def main() -> None:
    """Read the arguments, load, patch, write on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("prompt", type=Path, help="a text file")
    parser.add_argument("--method", default="yarn")
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--short-exact", action="store_true", help="as before while it is short")
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--chat", action="store_true", help="put the text as a user's message")
    parser.add_argument("--sample", action="store_true", help="not always the likeliest word")
    asked = parser.parse_args()
    logging.disable_progress_bar()

    model: Any = ropepatch.load(asked.model, dtype="auto", device_map="auto")
    tokenizer: Any = AutoTokenizer.from_pretrained(model.name_or_path)
    inputs = encode(tokenizer, asked.prompt.read_text(encoding="utf-8"), chat=asked.chat)
    inputs = inputs.to(model.device)

    words = {"short_exact": asked.short_exact}
    with ropepatch.patch(model, asked.method, asked.factor, **words) as patch:
        print(patch.describe())
        tokens = inputs["input_ids"].shape[1]
        print(f"prompt: {tokens:,} tokens, {max(0, tokens - patch.trained_length):,} beyond\n")
        streamer: Any = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)

        def write() -> None:
            try:
                model.generate(
                    **inputs,
                    max_new_tokens=asked.new_tokens,
                    do_sample=asked.sample,
                    streamer=streamer,
                )
            finally:
                streamer.end()  # after an error too, or the loop below would wait for ever

        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(write)
            for piece in streamer:
                print(piece, end="", flush=True)
            print()
            job.result()  # says what went wrong, if anything did


if __name__ == "__main__":
    main()
