"""Ask a patched model about a long text, which it reads once and keeps in its cache.

    python recipes/live/chat.py MODEL book.txt [--ask "Who is Ishmael?" --ask "And Ahab?"]

MODEL is a folder, an id of the hub or a GGUF file, with a chat template. Up to the trained length
it stays exactly as it was; beyond, the keys in the cache follow as its frequencies change.
"""

import argparse
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, DynamicCache

import ropepatch


class Reader:
    """A model, its cache, and the tokens that lie there."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.cache: Any = DynamicCache(config=model.config)
        self.kept: list[int] = []

    def ids(self, *turns: str) -> list[int]:
        """A conversation as tokens; the user speaks first."""
        talk = [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns)]
        text = self.tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids)

    @torch.inference_mode()
    def read(self, ids: list[int], chunk: int) -> None:
        """Read a text into the empty cache, `chunk` tokens at a time."""
        for start in range(0, len(ids), chunk):
            part = torch.tensor([ids[start : start + chunk]], device=self.model.device)
            self.model(part, cache=self.cache, use_cache=True, logits_to_keep=1)
            self.kept += part[0].tolist()
            print(f"read {len(self.kept):,} of {len(ids):,} tokens", flush=True)

    def answer(self, ids: list[int], new_tokens: int) -> str:
        """What the model says next; only tokens that are not in the cache are read."""
        surplus = len(self.kept) - len(shared(self.kept, ids[:-1]))
        if surplus:
            try:
                self.cache.crop(-surplus)
            except RuntimeError:  # a window that has moved on cannot go back: all is read again
                self.cache = DynamicCache(config=self.model.config)
        given = torch.tensor([ids], device=self.model.device)
        words = {"attention_mask": torch.ones_like(given), "cache": self.cache}
        out = self.model.generate(given, **words, max_new_tokens=new_tokens, do_sample=False)
        self.kept = out[0, : self.cache.get_seq_length()].tolist()
        return str(self.tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True))


def shared(one: list[int], other: list[int]) -> list[int]:
    """The tokens that both begin with: of two questions, all that stands before them."""
    return one[: len(list(takewhile(bool, map(int.__eq__, one, other))))]


def main() -> None:
    """Read the arguments, the text, then the questions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--ask", action="append", help="may be repeated; else typed, a line each")
    parser.add_argument("--method", default="dynamic-ntk")
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--trained-length", type=int, help="tokens, if the config is wrong")
    parser.add_argument("--chunk", type=int, default=1024, help="tokens at a time")
    parser.add_argument("--new-tokens", type=int, default=200)
    asked = parser.parse_args()
    model: Any = ropepatch.load(asked.model, dtype="auto", device_map="auto")
    words = {"short_exact": True, "trained_length": asked.trained_length}
    print(ropepatch.patch(model, asked.method, asked.factor, **words).describe())
    reader = Reader(model, AutoTokenizer.from_pretrained(model.name_or_path))
    text = asked.text.read_text(encoding="utf-8") + "\n\n"
    reader.read(shared(reader.ids(f"{text}Who?"), reader.ids(f"{text}How?")), asked.chunk)
    turns: list[str] = []
    for question in asked.ask or map(str.strip, sys.stdin):
        turns.append(question if turns else text + question)
        turns.append(reader.answer(reader.ids(*turns), asked.new_tokens))
        print(f"\n? {question}\n{turns[-1]}", flush=True)


if __name__ == "__main__":
    main()
