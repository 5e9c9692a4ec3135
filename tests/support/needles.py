"""Planted readers of needles: they find the facts in a prompt by rule."""

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


def knows(prompt: str, continuation: str) -> float:
    """Log-probability of a choice: nearly all of it on the answer that comes next."""
    question = prompt.rsplit("\n", 1)[-1]
    found = answers(prompt)
    given = len(re.findall(r"\d+", question.split(":", 1)[1]))
    return -0.01 if continuation.strip() == found[given] else -9.0


def copier(context: int = 512) -> Planted:
    return Planted(chance=knows, speaks=copies, context=context)


def now_and_then(rate: float, alike: float, seed: int, context: int = 300) -> Planted:
    """Finds each answer at a rate; in a share `alike` of the samples all or none, in the others independently."""

    def speaks(prompt: str) -> str:
        draw, right = random.Random(f"{seed}{prompt}"), answers(prompt)
        together, *luck = (draw.random() for _ in (None, *right))
        found = [chance < rate for chance in (luck[:1] * len(right) if together < alike else luck)]
        return ", ".join(name if hit else "0000" for name, hit in zip(right, found, strict=True))

    return Planted(speaks=speaks, context=context)


def run(task: Any, reader: Any, limit: int | None = None, seed: int = 0) -> Result:
    return task.run(reader, limit, seed, QUIET)
