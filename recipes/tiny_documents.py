"""Write documents with hidden codes for the tiny retriever to be healed on.

    python recipes/tiny_documents.py FILE [--documents 3000] [--tokens 1024] [--short 256]

Each line of FILE is `{"text": ...}`. One document in five (`--long`) is `--tokens` long, the others
`--short`, so that about half of all tokens stand in long ones; each hides some codes, and asks for
them all at its end. They are made of the same words as `ropepatch evaluate needle` uses.
"""

import argparse
import json
import math
from pathlib import Path

from tiny_text import Examples, Kind, sources
from transformers import AutoTokenizer

MODEL = Path(__file__).parent / "models" / "tiny-retriever"
PASSKEYS = 0.1


def keys_of(examples: Examples, length: int) -> int:
    """How many codes; 0 is a passkey. As often one or two as many."""
    if examples.rng.random() < PASSKEYS:
        return 0
    return round(math.exp(examples.rng.uniform(0, math.log(examples.room(length)))))


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--documents", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=1024, help="Of a long document.")
    parser.add_argument("--short", type=int, default=256, help="Tokens of a short one.")
    parser.add_argument("--long", type=float, default=0.2, help="Share of long documents.")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    examples = Examples(tokenizer, sources(), given.seed)
    with given.file.open("w", encoding="utf-8") as file:
        for _ in range(given.documents):
            long = examples.rng.random() < given.long
            length = (given.tokens if long else given.short) - 1  # an end follows each
            ids, _ = examples.one(Kind(length, keys_of(examples, length), None))
            text = tokenizer.decode(ids, skip_special_tokens=True)
            file.write(json.dumps({"text": text}) + "\n")
    print(f"written: {given.file}")


if __name__ == "__main__":
    main()
