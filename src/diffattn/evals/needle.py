"""Needles: cities with magic numbers in a haystack, and what makes them harder, each by itself.

The first is the multi-needle retrieval of arXiv 2410.05258, section 3.3; key-value pairs are those of arXiv 2307.03172.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

from diffattn.evals.facts import Sample, cities, keys, listed, lookalikes, numbers
from diffattn.evals.hiding import Cell
from diffattn.evals.retrieval import Retrieval
from diffattn.variants.base import check_whole

PAPER = (Cell(1, 1), Cell(2, 2), Cell(4, 2), Cell(6, 2))
"""(facts, asked) of arXiv 2410.05258, Table 2 and Figure 5."""
PAPER_SAMPLES = 50
"""At each length and depth, as there."""
ATTRIBUTES = ("Postal code", "Phone prefix", "Founding number", "Record number")
Depths = list[tuple[float, str]]


def magic(city: str, number: str) -> str:
    """Tell a city's number."""
    return f"Magic number of {city}: {number}."


def question(names: Sequence[str]) -> str:
    """Ask for numbers in the words of the facts, so that a model that was never taught to answer can go on."""
    return f"Magic number{'s' if len(names) > 1 else ''} of {listed(names)}:"


@dataclass(frozen=True, kw_only=True)
class Cities(Retrieval):
    """Magic numbers of cities; what the tasks about them share."""

    facts: int = 4
    """Cities that are told, N."""
    asked: int = 2
    """Cities that are asked for, R: they stand together at the depth, the others anywhere."""

    def cells(self) -> Sequence[Cell]:
        """One cell."""
        check_whole("asked", self.asked, 1)
        check_whole("facts", self.facts, self.asked)
        return (Cell(self.facts, self.asked),)

    def told(
        self,
        draw: random.Random,
        cell: Cell,
        depth: float,
        names: Sequence[str],
        told: Sequence[str],
        beside: Sequence[tuple[str, str]] = (),
    ) -> Sample:
        """Make the sample of cities and their numbers; beside: (sentence, tempting number) that stand anywhere."""
        asked = cell.asked
        sentences: Depths = [(depth, magic(*pair)) for pair in zip(names[:asked], told[:asked], strict=True)]
        sentences += [
            (draw.random(), magic(*pair)) for pair in zip(names[asked:], told[asked : len(names)], strict=True)
        ]
        sentences += [(draw.random(), sentence) for sentence, _ in beside]
        return Sample(
            sentences=tuple(sentences),
            question=question(names[:asked]),
            answers=tuple(told[:asked]),
            numbers=tuple(told),
            names=tuple(names),
            tempting=frozenset(number for _, number in beside),
        )


@dataclass(frozen=True, kw_only=True)
class Needle(Cities):
    """Magic numbers of cities, hidden in filler; some of them are asked for."""

    name: ClassVar[str] = "needle"

    preset: Literal["none", "paper"] = "none"
    """"paper": (facts, asked) = (1, 1), (2, 2), (4, 2), (6, 2), and 50 samples at each length and depth."""

    def cells(self) -> Sequence[Cell]:
        """One cell, or the paper's."""
        return PAPER if self.preset == "paper" else super().cells()

    def each(self) -> int:
        """The paper's number of samples with the paper's cells."""
        return PAPER_SAMPLES if self.preset == "paper" else self.samples

    def draw(self, draw: random.Random, cell: Cell, depth: float) -> Sample:
        """Cities that are not asked for are the distractors."""
        return self.told(draw, cell, depth, cities(draw, cell.facts), numbers(draw, cell.facts, self.digits))


@dataclass(frozen=True, kw_only=True)
class NeedleAlike(Cities):
    """Needles beside lookalikes: cities whose names differ from an asked one in a single letter."""

    name: ClassVar[str] = "needle_alike"

    facts: int = 2
    asked: int = 1
    lookalikes: int = 2
    """Of each city that is asked for, 1 to 4; they have numbers of their own."""

    def draw(self, draw: random.Random, cell: Cell, depth: float) -> Sample:
        """Lookalikes stand anywhere."""
        check_whole("lookalikes", self.lookalikes, 1)
        names = cities(draw, cell.facts)
        alike = [other for city in names[: cell.asked] for other in lookalikes(draw, city, self.lookalikes)]
        told = numbers(draw, cell.facts + len(alike), self.digits)
        beside = [(magic(*pair), pair[1]) for pair in zip(alike, told[cell.facts :], strict=True)]
        return self.told(draw, cell, depth, names, told, beside)


@dataclass(frozen=True, kw_only=True)
class NeedleDistractors(Cities):
    """Needles beside other numbers of the same cities."""

    name: ClassVar[str] = "needle_distractors"

    facts: int = 2
    asked: int = 1
    distractors: int = 2
    """Other numbers of each city that is asked for, 1 to 4: a postal code, a phone prefix and the like."""

    def draw(self, draw: random.Random, cell: Cell, depth: float) -> Sample:
        """Distractors stand anywhere."""
        check_whole("distractors", self.distractors, 1)
        if self.distractors > len(ATTRIBUTES):
            raise ValueError(f"a city has {len(ATTRIBUTES)} other numbers, {self.distractors} were asked for")
        names = cities(draw, cell.facts)
        other = [(what, city) for city in names[: cell.asked] for what in draw.sample(ATTRIBUTES, self.distractors)]
        told = numbers(draw, cell.facts + len(other), self.digits)
        beside = [(f"{what} of {city}: {n}.", n) for (what, city), n in zip(other, told[cell.facts :], strict=True)]
        return self.told(draw, cell, depth, names, told, beside)


@dataclass(frozen=True, kw_only=True)
class NeedleCorrupted(Cities):
    """Needles that are told several times, sometimes wrong: the answer is the number that is told most often."""

    name: ClassVar[str] = "needle_corrupted"

    facts: int = 1
    asked: int = 1
    tellings: int = 3
    """Of each city that is asked for: one at the depth, the others anywhere."""
    corrupted: int = 1
    """Of these, with a wrong number each; at least two more are right, or it could not be told."""

    def draw(self, draw: random.Random, cell: Cell, depth: float) -> Sample:
        """Every wrong telling has a number of its own."""
        check_whole("corrupted", self.corrupted, 0)
        right = self.tellings - self.corrupted
        check_whole("tellings", self.tellings, self.corrupted + (2 if self.corrupted else 1))
        names = cities(draw, cell.facts)
        told = numbers(draw, cell.facts + cell.asked * self.corrupted, self.digits)
        wrong = iter(told[cell.facts :])
        beside: list[tuple[str, str]] = []
        for city in names[: cell.asked]:
            for number in (next(wrong) for _ in range(self.corrupted)):
                beside.append((magic(city, number), number))
        sample = self.told(draw, cell, depth, names, told, beside)
        again = [
            (draw.random(), magic(*pair))
            for pair in zip(names[: cell.asked], told[: cell.asked], strict=True)
            for _ in range(right - 1)
        ]
        return replace(sample, sentences=(*sample.sentences, *again))


@dataclass(frozen=True, kw_only=True)
class NeedleChain(Retrieval):
    """Chains: the number of a city is that of its twin's twin, so that facts have to be put together."""

    name: ClassVar[str] = "needle_chain"

    facts: int = 2
    """Chains that are told; one is asked for."""
    hops: int = 2
    """Facts of a chain, the number among them: with 2, "A's twin is B" and "B's number is 1234"."""

    def cells(self) -> Sequence[Cell]:
        """One cell; a fact is a chain."""
        check_whole("facts", self.facts, 1)
        check_whole("hops", self.hops, 2)
        return (Cell(self.facts, 1),)

    def draw(self, draw: random.Random, cell: Cell, depth: float) -> Sample:
        """The number of the asked chain stands at the depth, all other facts anywhere."""
        names = cities(draw, cell.facts * self.hops)
        told = numbers(draw, cell.facts, self.digits)
        chains = [names[i :: cell.facts] for i in range(cell.facts)]
        sentences: Depths = [(depth, magic(chains[0][-1], told[0]))]
        sentences += [
            (draw.random(), magic(chain[-1], number)) for chain, number in zip(chains[1:], told[1:], strict=True)
        ]
        sentences += [(draw.random(), f"Twin of {one}: {other}.") for chain in chains for one, other in pairwise(chain)]
        asked = "the twin of " * (self.hops - 1) + chains[0][0]
        return Sample(tuple(sentences), question([asked]), (told[0],), tuple(told), tuple(names))


@dataclass(frozen=True, kw_only=True)
class NeedlePairs(Retrieval):
    """Key-value pairs written as JSON without filler; one is asked for, at each depth."""

    name: ClassVar[str] = "needle_pairs"
    filled: ClassVar[bool] = False

    lengths: tuple[float, ...] = (1.0,)
    pairs: tuple[int, ...] = (75, 140)
    """How many are told, each count by itself; fewer where the length does not hold them."""

    def cells(self) -> Sequence[Cell]:
        """A cell for each count."""
        if not self.pairs:
            raise ValueError("pairs is empty; name one count at least")
        for count in self.pairs:
            check_whole("pairs", count, 1)
        return tuple(Cell(count, 1) for count in self.pairs)

    def draw(self, draw: random.Random, cell: Cell, depth: float) -> Sample:
        """The others are spread evenly, so that the depth is the share of them before the asked one."""
        names, told = keys(draw, cell.facts), numbers(draw, cell.facts, self.digits)
        others = [depth, *((i + 0.5) / (cell.facts - 1) for i in range(cell.facts - 1))]
        pairs = zip(others, names, told, strict=True)
        sentences = tuple((place, f'"{name}": "{number}",') for place, name, number in pairs)
        asked = f'"{names[0]}": "'
        return Sample(sentences, asked, (told[0],), tuple(told), tuple(names), head="{\n", tail="}\n", gap="")


NEEDLES = (Needle, NeedleAlike, NeedleChain, NeedleCorrupted, NeedleDistractors, NeedlePairs)
"""All of them, each with a result of its own."""
