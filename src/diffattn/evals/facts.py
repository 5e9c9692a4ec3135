"""What retrieval tasks tell and ask: names and numbers that nobody has seen, and how a written answer is judged."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from diffattn.evals.grounding import WORD

BEGINNINGS = re.findall(
    r"\w+",
    "Alm Bal Bor Cal Cor Dal Dor Elm Fal Fen Gal Gor Hal Hel Ist Jor Kal Kem Lan Lor Mar Mel Nar Nol Olm Ost Pal Per "
    "Ran Ros Sal Sor Tal Tor Ulm Urd Val Vor Wal Wen Yar Zan",
)
VOWELS = "aeiou"
ENDINGS = re.findall(r"\w+", "bar dan dor fen gar lin mar mon nar nis pol ran rin sta tan tov var vik zen zin")
"""A name is a beginning, a vowel and an ending. All are equally long, so that none is a part of another."""
MOST_DIGITS = 18
"""Of more there are more numbers than can be counted in 64 bits."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"

Given = Literal["right", "tempting", "other", "absent", "none"]
"""What was given for an asked number: it; one of a lookalike, another attribute or a corrupted telling; another one of
the facts; any other; no number at all."""
GIVEN: tuple[Given, ...] = ("right", "tempting", "other", "absent", "none")


@dataclass(frozen=True)
class Sample:
    """Facts to hide, and a question about some of them."""

    sentences: tuple[tuple[float, str], ...]
    """Each with its depth: the share of the filler that stands before it. At 0 it is the very first, at 1 the last."""
    question: str
    answers: tuple[str, ...]
    """The asked numbers, in the order of the question."""
    numbers: tuple[str, ...]
    """All that stand in the context, those of the answers among them."""
    names: tuple[str, ...]
    tempting: frozenset[str] = frozenset()
    """Numbers of the context that a careless reader gives."""
    head: str = ""
    tail: str = ""
    """Before and behind all sentences."""
    gap: str = " "
    """Between the question and a number."""

    def context(self, words: Sequence[str]) -> str:
        """Hide the sentences, a line each, among words of filler, which bring their own spaces."""
        lines, done = [self.head], 0
        for depth, sentence in sorted(self.sentences):
            here = round(depth * len(words))
            lines += [_lines(words[done:here]), sentence + "\n"]
            done = here
        return "".join([*lines, _lines(words[done:]), self.tail])

    def prompt(self, words: Sequence[str], given: int = 0) -> str:
        """Context and question; given: so many of the answers stand there already."""
        return self.context(words) + self.question + self.reply(given)

    def reply(self, count: int) -> str:
        """The first answers as they are to be written, up to where the next one begins: " 1234," or " 1234 and"."""
        many = len(self.answers)
        joints = [("" if i == many - 1 else " and" if i == many - 2 else ",") for i in range(count)]
        return "".join(f"{self.gap}{answer}{joint}" for answer, joint in zip(self.answers, joints, strict=False))


def _lines(words: Sequence[str]) -> str:
    text = "".join(words).rstrip()
    return text + "\n" if text else ""


def given(text: str, sample: Sample) -> list[Given]:
    """Judge a written text: what it gives for each of the asked numbers.

    The first words with a digit 0 to 9 are the answers, in the order of the question; other words do not count, nor
    does what follows the last one asked for. A word is `grounding.WORD`, with all that is joined to it, and is compared
    whole: -8647, 8647.5, .8647, 8647/2, 8,647 and x8647 state something else than 8647, a full stop or a comma behind
    it is none of it, and a space cuts a number in two. In another order they are wrong too.
    """
    told: list[str | None] = [word for word in re.findall(WORD, text) if re.search("[0-9]", word)]
    told += [None] * len(sample.answers)
    return [kind(number, answer, sample) for number, answer in zip(told, sample.answers, strict=False)]


def kind(number: str | None, answer: str, sample: Sample) -> Given:
    """Say what a number is, where `answer` was asked for."""
    if number is None:
        return "none"
    if number == answer:
        return "right"
    if number in sample.tempting:
        return "tempting"
    return "other" if number in sample.numbers else "absent"


def cities(draw: random.Random, count: int) -> list[str]:
    """Draw names that all begin differently. ValueError: more than there are beginnings."""
    if count > len(BEGINNINGS):
        raise ValueError(f"{count} cities are needed, and there are {len(BEGINNINGS)}: tell fewer facts")
    return [f"{start}{draw.choice(VOWELS)}{draw.choice(ENDINGS)}" for start in draw.sample(BEGINNINGS, count)]


def lookalikes(draw: random.Random, city: str, count: int) -> list[str]:
    """Draw names that differ from a city's in one letter. ValueError: more than there are."""
    others = [vowel for vowel in VOWELS if vowel != city[3]]
    if count > len(others):
        raise ValueError(f"a name has {len(others)} lookalikes, {count} were asked for")
    return [city[:3] + vowel + city[4:] for vowel in draw.sample(others, count)]


def keys(draw: random.Random, count: int) -> list[str]:
    """Draw distinct keys of five letters."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(draw.choices(LETTERS, k=5))] = None
    return list(found)


def numbers(draw: random.Random, count: int, digits: int) -> list[str]:
    """Draw distinct numbers of so many digits, so that none is a part of another. ValueError: there are too few."""
    if digits > MOST_DIGITS:
        raise ValueError(f"numbers have {MOST_DIGITS} digits at most, {digits} were asked for")
    least = 10 ** (digits - 1)
    if count > 9 * least:
        raise ValueError(f"there are {9 * least} numbers of {digits} digits, {count} are needed: give more digits")
    return [str(number) for number in draw.sample(range(least, 10 * least), count)]


def listed(names: Sequence[str]) -> str:
    """Write names as a list: "A", "A and B", "A, B and C"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
