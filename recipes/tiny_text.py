"""Texts with hidden codes, and a tokenizer for them: what `train_tiny_retriever.py` reads.

The words are those of `ropepatch.evaluate`, so a model trained here knows its needle tests:

    <s>Remember the codes that are hidden in this text.

     The harbour was still dark when ... The code of lantern is 48135. A man in a wool cap ...

    The code of lantern is 48135
"""

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ropepatch.evaluate.haystack import cut
from ropepatch.evaluate.sentences import sentences
from ropepatch.evaluate.tasks.base import nouns

CODES = "Remember the codes that are hidden in this text.\n\n"
PASSKEY = "Remember the passkey that is hidden in this text.\n\n"
DIGITS = 5
"""Tokens of an answer: the first digit takes the space before it along."""
_PIECES = r" ?\p{L}+| ?\p{N}|\s*[\r\n]+| ?[^\s\p{L}\p{N}]+|\s+"
"""No token reaches over one of these: a word, a digit, line ends, signs."""
_GENERATED = 2000
"""Sentences drawn beside the prose."""


def sources() -> tuple[list[str], list[str]]:
    """Sentences of the package's prose, and drawn ones."""
    prose = (resources.files("ropepatch.evaluate") / "texts" / "prose.txt").read_text("utf-8")
    return list(cut(prose)), list(itertools.islice(sentences(1), _GENERATED))


def make_tokenizer(texts: Iterable[str], size: int, window: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of `size` tokens, digits apart, each noun one token with its space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    framing = [
        f" The code of {noun} is {d}{d}. The passkey is {d}; keep it in mind.\n\nThe code of {noun}"
        for noun in nouns()
        for d in range(10)
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *framing, *[CODES, PASSKEY] * 100], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
        model_max_length=window,
    )


@dataclass(frozen=True)
class Kind:
    """What an example is made of."""

    length: int
    """Tokens of everything, the last answer too."""
    keys: int
    """Codes hidden in the text; 0 hides a passkey instead."""
    questions: int | None = 1
    """Asked at the end, a code perhaps more than once; None asks as many as there are codes, two
    more where there is room."""


class Examples:
    """Draws examples as token ids."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, texts: Sequence[Sequence[str]], seed: int
    ) -> None:
        self.rng = random.Random(seed)
        self._ids = lambda text: tokenizer.encode(text, add_special_tokens=False)
        self._texts = [[self._ids(f" {sentence}") for sentence in text] for text in texts]
        self._keys = [self._ids(f" {noun}") for noun in nouns()]
        if wrong := [noun for noun, key in zip(nouns(), self._keys, strict=True) if len(key) > 1]:
            raise ValueError(f"not one token: {', '.join(wrong)}; raise the size of the vocabulary")
        bos = [tokenizer.bos_token_id]
        self._codes, self._passkey = bos + self._ids(CODES), bos + self._ids(PASSKEY)
        self._is, self._stop = self._ids(" is"), self._ids(".")
        self._needle, self._question = self._ids(" The code of"), self._ids("\n\nThe code of")
        self._whole = len(self._question) + 1 + len(self._is) + DIGITS

    def one(self, kind: Kind) -> tuple[list[int], list[int]]:
        """An example, and where in it answers begin."""
        if kind.keys:
            head, (needles, asked) = self._codes, self._hidden_codes(kind)
        else:
            head, (needles, asked) = self._passkey, self._hidden_passkey()
        tail: list[int] = []
        starts = []
        for question, answer in asked:
            starts.append(len(tail) + len(question))
            tail += question + answer
        fixed = len(head) + sum(map(len, needles)) + len(tail)
        text = self._spliced(self._haystack(kind.length - fixed), needles)
        ids = head + text + tail
        begin = len(ids) - len(tail)
        return ids, [begin + start for start in starts]

    def room(self, length: int) -> int:
        """The most codes that can be hidden and asked for in that many tokens."""
        return (length - len(self._codes)) // (2 * self._whole + len(self._stop) - 1)

    def _value(self) -> list[int]:
        return self._ids(f" {self.rng.randrange(10 ** (DIGITS - 1), 10**DIGITS)}")

    def _hidden_codes(self, kind: Kind) -> tuple[list[list[int]], list[tuple[list[int], ...]]]:
        facts = [(key, self._value()) for key in self.rng.sample(self._keys, kind.keys)]
        needles = [self._needle + key + self._is + value + self._stop for key, value in facts]
        free = kind.length - len(self._codes) - sum(map(len, needles))
        count = kind.questions or max(1, min(kind.keys + 2, free // self._whole))
        asked = [self.rng.choice(facts) for _ in range(count)]
        return needles, [(self._question + key + self._is, value) for key, value in asked]

    def _hidden_passkey(self) -> tuple[list[list[int]], list[tuple[list[int], ...]]]:
        value = self._value()
        needle = self._ids(" The passkey is") + value + self._ids("; keep it in mind.")
        return [needle], [(self._ids("\n\nThe passkey is"), value)]

    def _haystack(self, count: int) -> list[list[int]]:
        """Sentences of `count` tokens in all, the first or the last one cut to fit."""
        if count < 0:
            raise ValueError("the example is too short for its needles and questions")
        mixed, backwards = self.rng.random() < 0.3, self.rng.random() < 0.3
        text = self.rng.choice(self._texts)
        place = self.rng.randrange(len(text))
        parts: list[list[int]] = []
        while count > 0:
            if mixed:
                text = self.rng.choice(self._texts)
                place = self.rng.randrange(len(text))
            sentence = text[place % len(text)]
            parts.append(sentence[-count:] if backwards else sentence[:count])
            place += -1 if backwards else 1
            count -= len(sentence)
        return parts[::-1] if backwards else parts

    def _spliced(self, parts: list[list[int]], needles: list[list[int]]) -> list[int]:
        """The parts with each needle at one of their ends, or before the first."""
        gaps: list[list[int]] = [[] for _ in range(len(parts) + 1)]
        for needle in needles:
            gaps[self.rng.randrange(len(gaps))] += needle
        ids = list(gaps[0])
        for part, gap in zip(parts, gaps[1:], strict=True):
            ids += part + gap
        return ids
