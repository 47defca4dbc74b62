"""Plain English sentences without end, for a haystack longer than the prose that ships.

Every sentence is a template with its slots filled from the word lists in ``texts/words.txt``. The
lists give each template well over a million fillings, so a haystack of any practical length
hardly ever says the same sentence twice. There are no digits, quotation marks or brackets in
them, and a full stop only ever ends a sentence.
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources

TEMPLATES = (
    "The {character} {person} {handled} the {look} {thing} {place}.",
    "{time}, the {person} {handled} the {look} {thing} and the {goods}.",
    "{name} {handled} the {look} {thing} that the {person} had left {place}.",
    "The {look} {thing} stood {place} {span}, and the {person} was sorry about it.",
    "While {sky}, the {person} and {name} {craft} {place}.",
    "{name} and {name} {craft} {span}, although the {person} wanted to {task}.",
    "The {animal} {moved} {place} while the {person} {craft}.",
    "There was a smell of {smell} {place}, and the {character} {person} {craft}.",
    "The {person} heard {sound} {place} and began to {task}.",
    "{time}, {sky}, and the {animal} {moved} {place}.",
    "The {person} at the {site} told {name} about {topic} {manner}.",
    "{name} walked along {street} to the {site} to look for the {look} {thing}.",
    "The road to the {site} follows {street}, where the {person} and the {animal} rested {time}.",
    "In the {container} there were {goods}, {goods}, and the {look} {thing} of the {person}.",
    "{name} packed the {goods} into the {container} and took them to the {site} {time}.",
    "The {character} {person} never spoke about {topic}, but {name} did so {time}.",
    "Because {sky}, {name} stayed at the {site} {span} and {craft}.",
    "The {person} sold {goods} {place}, and {name} {craft} {manner}.",
    "Nobody at the {site} knew why the {person} had put the {goods} in the {look} {container}.",
    "{name} was {character} and the {person} was {character}, so they {craft} {manner}.",
    "When {sky}, the {person} put the {look} {thing} under the {container} and {craft}.",
    "From the window of the {site} {name} saw the {animal}, the {look} {thing}, and {street}.",
    "The {site} was closed {time}, so {name} and the {person} {craft} {place}.",
    "The {person} had promised to {task} {time}, but {name} {craft} instead.",
    "{name} asked the {character} {person} about {topic}, and they talked {span}.",
    "The letter from {name} told of {topic}, the {look} {thing}, and the {weather} at the {site}.",
    "After the {weather} the {person} {handled} the {goods} {place} {manner}.",
    "The {animal} followed the {character} {person} along {street} as far as the {site}.",
    "{time}, {name} carried the {container} of {goods} along {street} to the {site}.",
    "It took {name} and the {person} a long time to {task}, for {sky} and the {animal} was hungry.",
    "The {thing} in the {site} was {look}, and the one {place} was {look}.",
    "{name} remembered {sound}, the smell of {smell}, and the {look} {thing} {place}.",
    "If the {weather} returned, the {person} would {task} and {name} would {task}.",
    "Inside the {site} the air smelled of {smell} and {smell}, and the {person} was {character}.",
    "The {person} and the {person} argued about {topic} {span}, and {name} {craft}.",
    "At the {site} the {person} heard {sound} and {sound} {time}.",
    "The {look} {thing} belonged to {name}, who kept it near the {goods} in the {site}.",
    "{sky}, but the {character} {person} {craft} {place} {manner}.",
    "The {animal} and the {animal} {moved} {place} {time}.",
    "{name} learned from the {person} how to {task} and {craft} {span}.",
    "Along {street} the {person} planted {look} posts, and {name} {craft} {time}.",
    "The old story about the {person} and the {animal} begins {place}, where {sky} {time}.",
    "{time}, the {person} from the {site} came to {task} {manner}.",
    "The {character} {person} thought that the {look} {thing} would please {name}.",
)

_SLOT = re.compile(r"\{(\w+)\}")


@cache
def word_lists() -> dict[str, tuple[str, ...]]:
    """Reads the word lists, by the name of the slot they fill."""
    text = (resources.files(__package__) / "texts" / "words.txt").read_text(encoding="ascii")
    sections = re.split(r"^\[(\w+)\]$", text, flags=re.MULTILINE)
    return {
        name: tuple(word.strip() for word in re.split(r"[,\n]", body) if word.strip())
        for name, body in zip(sections[1::2], sections[2::2], strict=True)
    }


def _draw(rng: random.Random, words: Sequence[str], used: set[str]) -> str:
    """Draws a word that is not in `used` yet, and adds it there.

    Only `random.random` keeps its sequence across Python versions, hence no `choice`.
    """
    while (word := words[int(rng.random() * len(words))]) in used:
        pass
    used.add(word)
    return word


def sentences(seed: int) -> Iterator[str]:
    """Yields plain English sentences without end.

    Args:
        seed: The same seed gives the same sentences on every machine and Python version.

    Yields:
        One sentence, from its capital letter to its full stop.
    """
    rng = random.Random(seed)
    lists = word_lists()
    previous: set[str] = set()
    while True:
        template = _draw(rng, TEMPLATES, previous)
        previous = {template}
        used: set[str] = set()
        filled = [
            _draw(rng, lists[part], used) if index % 2 else part
            for index, part in enumerate(_SLOT.split(template))
        ]
        sentence = "".join(filled)
        yield sentence[0].upper() + sentence[1:]
