"""Text to hide facts in: words of a corpus, or noise."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from diffattn.evals.facts import LETTERS
from diffattn.evals.texts import documents

NOISE = "noise"
ENOUGH = 16
"""Words are read until there are so many times those of the longest prompt: samples begin at places of their own."""


@dataclass(frozen=True)
class Filler:
    """Words with the white space behind them, in the order of their documents; behind the last comes the first."""

    words: Sequence[str]

    def take(self, begin: int, count: int) -> list[str]:
        """Give `count` words from a place on."""
        begin %= len(self.words)
        found = list(self.words[begin : begin + count])
        while len(found) < count:
            found += self.words[: count - len(found)]
        return found


def filler(source: str, longest: int) -> Filler:
    """Read filler for prompts of up to `longest` words.

    source: as `documents` takes it, its held-out part "dev"; "noise": words of 2 to 8 random letters. DataError: no
    such source; ValueError: there is no word in that part.
    """
    wanted = ENOUGH * longest
    if source == NOISE:
        return Filler(noise(wanted))
    words: list[str] = []
    for document in documents(source):
        # A document ends in a line of its own, whatever its last character.
        words += re.findall(r"\S+\s*", document.decode(errors="replace").rstrip() + "\n")
        if len(words) >= wanted:
            break
    if not words:
        raise ValueError(f"{source} holds no text out to hide facts in: name another or a longer source, or noise")
    return Filler(words)


@cache
def noise(count: int) -> Sequence[str]:
    """Give words of 2 to 8 random letters, always the same ones."""
    draw = random.Random("noise")
    return ["".join(draw.choices(LETTERS, k=draw.randint(2, 8))) + " " for _ in range(count)]
