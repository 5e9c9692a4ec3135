"""Prompts that hide facts: which of them a model's context holds, and each filled up to its length."""

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diffattn.evals.facts import Sample, numbers
from diffattn.evals.filler import Filler
from diffattn.evals.reader import Reader

TRIES = 50
"""Draws of a sample until none of its names and numbers stands in its filler, and it fits."""
SPARE = 4
"""Tokens that a model may write beyond the answer: enough to see a digit that is attached to it."""
OPTIONS = 4
"""Numbers to choose between at least: where a context tells fewer, others that do not stand in it are added."""


class Cell(NamedTuple):
    """How many facts are told, and how many of them are asked for."""

    facts: int
    asked: int

    def __str__(self) -> str:
        return f"{self.facts} told, {self.asked} asked"


class Place(NamedTuple):
    """Where the answers of a sample stand."""

    cell: Cell
    length: int
    """Most tokens of prompt and answer together."""
    depth: int
    """Per cent of the filler that stands before the answers."""

    def __str__(self) -> str:
        return f"{self.cell.facts}-{self.cell.asked}/{self.length}/{self.depth}"


@dataclass(frozen=True)
class Hidden:
    """A sample in its filler."""

    place: Place
    number: int
    """Of the samples at its place, from 0."""
    sample: Sample
    context: str
    """Everything before the question."""
    options: tuple[str, ...]
    """Numbers to choose between: those of the context, and `OPTIONS` at least."""
    tokens: int
    """Of context and question."""

    @property
    def id(self) -> str:
        """Its name, the same for every model that is asked the same."""
        return f"{self.place}/{self.number}"

    def prompt(self, given: int = 0) -> str:
        """Give the prompt, behind which so many of the answers stand already."""
        return self.context + self.sample.question + self.sample.reply(given)

    def choices(self, asked: int, turn: int) -> tuple[str, ...]:
        """Give the options as they go on behind `prompt(asked)`; with each turn the right one moves on by a place."""
        answer = self.sample.answers[asked]
        others = [option for option in self.options if option != answer]
        others.insert((turn + asked) % len(self.options), answer)
        return tuple(self.sample.gap + option for option in others)


Draw = Callable[[random.Random, Cell, float], Sample]
"""Draw a sample of a cell whose answers stand at a depth, 0 to 1."""


def room(sample: Sample) -> int:
    """Tokens that are kept free for the written answer: no token is shorter than a character."""
    return len(sample.reply(len(sample.answers))) + SPARE


def needed(reader: Reader, sample: Sample) -> int:
    """Tokens of a sample without any filler, with room for its answer."""
    return reader.count(sample.prompt([])) + room(sample)


def fitting(reader: Reader, draw: Draw, wanted: Sequence[Cell], length: int) -> dict[Cell, Cell]:
    """Give for each cell the largest of at most so many facts that a length holds. ValueError: not even one fact."""
    found: dict[Cell, Cell] = {}
    least = length
    for cell in wanted:
        for facts in range(cell.facts, 0, -1):
            smaller = Cell(facts, min(cell.asked, facts))
            least = needed(reader, draw(random.Random(str(smaller)), smaller, 0.5))
            if least <= length:
                found[cell] = smaller
                break
    if not found:
        raise ValueError(f"one fact, its question and the answer need {least} tokens, and {length} are there to read")
    return found


def hide(reader: Reader, draw: Draw, place: Place, number: int, seed: int, filler: Filler | None) -> Hidden | None:
    """Draw a sample and fill it up with the most words that its length holds; None: it does not fit.

    No name of the sample, whatever the case, and no number to choose stands in its filler.
    """
    for attempt in range(TRIES):
        chance = random.Random(f"{seed}/{place}/{number}/{attempt}")
        sample = draw(chance, place.cell, place.depth / 100)
        if needed(reader, sample) > place.length:
            continue
        budget = place.length - room(sample)
        strangers = [new for new in numbers(chance, OPTIONS, len(sample.answers[0])) if new not in sample.numbers]
        options = [*sample.numbers, *strangers[: max(0, OPTIONS - len(sample.numbers))]]
        words: list[str] = []
        if filler is not None:
            words = _most(reader, sample, filler.take(chance.randrange(len(filler.words)), budget), budget)
            text = "".join(words).casefold()
            if any(word.casefold() in text for word in (*sample.names, *options)):
                continue
        chance.shuffle(options)
        tokens = reader.count(sample.prompt(words))
        return Hidden(place, number, sample, sample.context(words), tuple(options), tokens)
    return None


def _most(reader: Reader, sample: Sample, words: list[str], budget: int) -> list[str]:
    """The most of the words with which the prompt is no longer than the budget: every word has a token of its own."""
    fits = range(len(words) + 1)
    return words[: bisect_right(fits, budget, key=lambda count: reader.count(sample.prompt(words[:count]))) - 1]


def all_hidden(
    reader: Reader, draw: Draw, places: Sequence[Place], samples: int, seed: int, filler: Filler | None
) -> tuple[list[Hidden], list[Place]]:
    """Hide so many samples at each place: all places' first ones, then their second ones; and places that hold none."""
    found: dict[Place, list[Hidden]] = {}
    for place in places:
        here: list[Hidden] = []
        while len(here) < samples and (hidden := hide(reader, draw, place, len(here), seed, filler)) is not None:
            here.append(hidden)
        if len(here) == samples:
            found[place] = here
    return [some[number] for number in range(samples) for some in found.values()], [p for p in places if p not in found]
