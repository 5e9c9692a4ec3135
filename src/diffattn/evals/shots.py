"""Prompts for many-shot learning: as many labelled examples as fit, classes in turn, in many orders."""

from collections.abc import Sequence
from math import factorial

import numpy as np

from diffattn.evals.labelled import Example, Labelled
from diffattn.evals.reader import Reader

LENGTHS = (200, 100, 50, 25)
"""Characters to cut texts to where it is not said: the first with which a few demonstrations fit."""
FEW = 4
ARRANGED = ("blocks", "own class last", "own class first")
"""Orders by class; in the last two the block of the question's class has that place."""


def fitted(data: Labelled, reader: Reader, characters: int | None, classes: int | None) -> Labelled:
    """Cut texts and classes to what the context holds, as far as they are left open (None)."""
    lengths = LENGTHS if characters is None else (characters,)
    cut = data.cut(lengths[0], classes)
    for length in lengths[1:]:
        if _capacity(reader, cut) >= FEW:
            break
        cut = data.cut(length, classes)
    return cut if classes else cut.cut(lengths[0], max(2, _capacity(reader, cut)))


def choice(label: str) -> str:
    """Give what follows a prompt: with the line's end, or a label that begins another would always be likelier."""
    return f" {label}\n"


def _line(example: Example) -> str:
    return f"{example.text} ->{choice(example.label)}"


def _prompt(demonstrations: Sequence[Example], question: Example) -> str:
    return "".join(map(_line, demonstrations)) + f"{question.text} ->"


def _room(reader: Reader, data: Labelled) -> int:
    return reader.context - max(reader.count(choice(label)) for label in data.labels)


def _capacity(reader: Reader, data: Labelled) -> int:
    """The power of two of demonstrations of mean length that fit before a question of that length."""
    some = data.shown[:: 1 + len(data.shown) // 500]
    each = sum(reader.count(_line(example)) - 1 for example in some) / len(some)
    return _power(int(_room(reader, data) / each) - 1)


def _power(number: int) -> int:
    return 1 << (number.bit_length() - 1) if number > 0 else 0


def _balanced(data: Labelled, count: int, rng: np.random.Generator) -> list[Example]:
    """Draw demonstrations: each class in turn, in an order drawn for each round, until its texts are used up."""
    by_class = {label: [] for label in data.labels}
    for example in data.shown:
        by_class[example.label].append(example)
    mixed = [[texts[i] for i in rng.permutation(len(texts))[:count]] for texts in by_class.values()]
    found: list[Example] = []
    for turn in range(max(map(len, mixed))):
        found += [mixed[c][turn] for c in rng.permutation(len(mixed)) if turn < len(mixed[c])]
        if len(found) >= count:
            break
    return found[:count]


def curve(reader: Reader, data: Labelled, questions: Sequence[Example], seed: int) -> dict[int, list[str]]:
    """Give the prompts of every question by number of demonstrations: the first 0, 1, 2, 4 ... of its own.

    ValueError: not even one fits.
    """
    room = _room(reader, data)
    most = _power(min(len(data.shown), max(room, 1)))  # a demonstration has at least one token
    own = [_balanced(data, most, np.random.default_rng([seed, i])) for i in range(len(questions))]
    found = {0: [_prompt((), question) for question in questions]}
    for n in (2**i for i in range(most.bit_length())):
        prompts = [_prompt(shown[:n], question) for shown, question in zip(own, questions, strict=True)]
        if max(map(reader.count, prompts)) > room:
            break
        found[n] = prompts
    if max(found) == 0:
        raise ValueError(
            f"many_shot: the model's context of {reader.context} tokens does not hold one demonstration, a question "
            f"and a label of {data.name}; cut texts with --many-shot.characters or take fewer classes"
        )
    return found


def ordered(
    reader: Reader, data: Labelled, questions: Sequence[Example], shots: int, orders: int, rng: np.random.Generator
) -> tuple[int, dict[str, list[str]]]:
    """Give how many demonstrations all questions share, and the prompts of every question by their order.

    Random orders are distinct. (0, {}): fewer than two demonstrations fit, or one question is asked.
    """
    chain = _balanced(data, shots, rng)
    while shots > 1 and len(questions) > 1:
        found = _in_orders(data, questions, chain[:shots], orders, rng)
        # A tokenizer may need more tokens for a text that comes first than behind others.
        if max(reader.count(prompt) for prompts in found.values() for prompt in prompts) <= _room(reader, data):
            return shots, found
        shots //= 2
    return 0, {}


def _in_orders(
    data: Labelled, questions: Sequence[Example], shown: Sequence[Example], orders: int, rng: np.random.Generator
) -> dict[str, list[str]]:
    shots = len(shown)
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < (min(orders, factorial(shots)) if shots < 20 else orders):
        drawn[tuple(rng.permutation(shots).tolist())] = None
    found = {
        f"order {k}": [_prompt([shown[i] for i in order], question) for question in questions]
        for k, order in enumerate(drawn)
    }
    blocks = sorted(shown, key=lambda example: data.labels.index(example.label))
    for name, sign in zip(ARRANGED, (0, 1, -1), strict=True):
        arranged = (sorted(blocks, key=lambda example, q=q: sign * (example.label == q.label)) for q in questions)
        found[name] = [_prompt(lines, question) for lines, question in zip(arranged, questions, strict=True)]
    return found
