"""Answers told apart: by the kind of question, and wrong ones by what was given instead."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from diffattn.data.base import NOT_SCORED, Batch, Grader


@dataclass(frozen=True)
class Kind:
    """All questions of one kind, and how they were answered."""

    name: str
    unit: str
    """Kinds of one unit are steps of a quantity; empty: of none."""
    place: float | None
    """How much of it."""
    count: int
    loss: float
    """Nats per answer."""
    guess: float
    """Share that would be right if the values that stand before a question were guessed among."""
    answers: dict[str, int]
    """How often each kind of answer was given, the right one first; together they are `count`."""


def grades(grader: Grader, batch: Batch, given: Tensor) -> dict[str, np.ndarray]:
    """Grade what was given [N], a token for each scored target in order of rows: columns kind, answer and guess [N]."""
    tokens, targets = batch.tokens.tolist(), batch.targets.tolist()
    asked = [(row, place) for row, wanted in enumerate(targets) for place, t in enumerate(wanted) if t != NOT_SCORED]
    found = [
        grader.grade(tokens[row][: place + 1], targets[row][place], answer)
        for (row, place), answer in zip(asked, given.tolist(), strict=True)
    ]
    return {
        "kind": np.array([grade.question for grade in found], dtype=np.int64),
        "answer": np.array([grade.answer for grade in found], dtype=np.int64),
        "guess": np.array([grade.guess for grade in found], dtype=np.float64),
    }


def by_kind(grader: Grader, columns: Mapping[str, np.ndarray]) -> list[Kind]:
    """Sum the columns loss, kind, answer and guess [N]; kinds that no question belongs to are left out."""
    found = []
    for number, question in enumerate(grader.questions):
        own = columns["kind"] == number
        if not own.any():
            continue
        given = np.bincount(columns["answer"][own], minlength=len(grader.answers))
        found.append(
            Kind(
                name=question.name,
                unit=question.unit,
                place=question.place,
                count=int(own.sum()),
                loss=float(columns["loss"][own].mean()),
                guess=float(columns["guess"][own].mean()),
                answers=dict(zip(grader.answers, given.tolist(), strict=True)),
            )
        )
    return found
