"""Planted readers of needles: they find the facts in a prompt by rule."""

import math
import random
import re
from collections import Counter
from typing import Any

from diffattn.evals.base import Progress, Result
from support.readers import Planted

QUIET = Progress(quiet=True)


def magic_numbers(prompt: str) -> dict[str, str]:
    """The number that a prompt tells of each city, most often where it tells several."""
    told: dict[str, Counter[str]] = {}
    for city, number in re.findall(r"Magic number of (\w+): (\d+)\.", prompt):
        told.setdefault(city, Counter())[number] += 1
    return {city: counts.most_common(1)[0][0] for city, counts in told.items()}


def answers(prompt: str) -> list[str]:
    """What is asked for at the end of a prompt: all of it, whether or not some is answered already."""
    if prompt.startswith("{\n"):
        told = dict(re.findall(r'"(\w+)": "(\d+)"', prompt))
        return [told[prompt.rsplit('"', 3)[-3]]]
    question = prompt.rsplit("\n", 1)[-1]
    twins, numbers = dict(re.findall(r"Twin of (\w+): (\w+)\.", prompt)), magic_numbers(prompt)
    names = re.findall(r"[A-Z]\w+", question.removeprefix("Magic"))
    for _ in range(question.count("the twin of")):
        names = [twins[name] for name in names]
    return [numbers[name] for name in names]


def copies(prompt: str) -> str:
    """Write all answers, and go on talking."""
    return " and ".join(answers(prompt)) + ". Magic number of Nowhere: 1\nand more"


def given(prompt: str) -> int:
    """How many of the asked answers a prompt holds already."""
    return len(re.findall(r"\d+", prompt.rsplit("\n", 1)[-1].split(":", 1)[1]))


def knows(prompt: str, continuation: str) -> float:
    """Log-probability of a choice: nearly all of it on the answer that comes next."""
    return -0.01 if continuation.strip() == answers(prompt)[given(prompt)] else -9.0


def copier(context: int = 512) -> Planted:
    return Planted(chance=knows, speaks=copies, context=context)


def now_and_then(rate: float, alike: float, seed: int, context: int) -> Planted:
    """Finds each answer at a rate; in a share `alike` of the samples all or none, in the others independently.

    What it would write it chooses as well: with a probability of .9, or of .05 where it is mistaken.
    """

    def found(prompt: str) -> list[bool]:
        # The sample, however many of its answers are given.
        draw, count = random.Random(f"{seed}{prompt.rsplit(':', 1)[0]}"), len(answers(prompt))
        together, *luck = (draw.random() for _ in range(1 + count))
        return [chance < rate for chance in (luck[:1] * count if together < alike else luck)]

    def speaks(prompt: str) -> str:
        pairs = zip(answers(prompt), found(prompt), strict=True)
        return ", ".join(name if hit else "0000" for name, hit in pairs)

    def chance(prompt: str, continuation: str) -> float:
        at = given(prompt)
        right, hit = continuation.strip() == answers(prompt)[at], found(prompt)[at]
        return math.log(0.9 if hit else 0.05) if right else math.log(0.1 if hit else 0.95)

    return Planted(chance=chance, speaks=speaks, context=context)


def run(task: Any, reader: Any, limit: int | None = None, seed: int = 0) -> Result:
    return task.run(reader, limit, seed, QUIET)
