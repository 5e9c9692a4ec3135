"""Intervals of needles hold a planted reader's rates as often as they say, in each of the tasks."""

import math
from collections import Counter
from typing import Any

import pytest

from diffattn.evals.intervals import share
from diffattn.evals.needle import Needle, NeedleAlike, NeedleChain, NeedleCorrupted, NeedleDistractors, NeedlePairs
from support.needles import now_and_then, run

RATE, ALIKE, REPETITIONS = 0.7, 0.9, 120
FOUR: dict[str, Any] = {"facts": 4, "asked": 4}
HOW: dict[str, Any] = {"depths": (0, 100), "lengths": (1.0,), "samples": 20, "source": "noise"}


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(Needle(**FOUR, **HOW), marks=pytest.mark.slow),
        pytest.param(NeedleAlike(lookalikes=1, **FOUR, **HOW), marks=pytest.mark.slow),
        pytest.param(NeedleDistractors(distractors=1, **FOUR, **HOW), marks=pytest.mark.slow),
        pytest.param(NeedleCorrupted(**FOUR, **HOW), marks=pytest.mark.slow),
        NeedleChain(**HOW),
        NeedlePairs(pairs=(8,), **HOW),
    ],
    ids=lambda task: task.name,
)
def test_intervals_cover_the_rates_of_a_planted_reader(task: Any) -> None:
    """Answers of a sample are found together nine times in ten; 120 repetitions of 40 samples of 4 answers, or of 1.

    Of 120 intervals of 95 % from 107 to 119 hold the truth with 99 % probability; the seeds are fixed.
    """
    (cell,) = task.cells()
    covered: Counter[str] = Counter()
    for seed in range(REPETITIONS):
        result = run(task, now_and_then(RATE, ALIKE, seed, context=600 if cell.asked > 1 else 260), seed=seed)
        (found,) = result.parts["cells"].values()
        written, chosen = found["written"]["each"], found["chosen"]
        others = 1 / chosen["guess"] - 1
        assert (result.measure.n, written["n"]) == (40, 40 * cell.asked)
        # A choice's chance is its share of what the options have together.
        right, wrong = math.log(1 + others * 0.1 / 0.9), math.log(1 + others * 0.95 / 0.05)
        for name, measure, truth in (
            ("all", result.measure.to_dict(), ALIKE * RATE + (1 - ALIKE) * RATE**cell.asked),
            ("written", written, RATE),
            ("chosen", chosen["each"], RATE),
            ("log-loss", chosen["log_loss"], RATE * right + (1 - RATE) * wrong),
            ("written, as if alone", as_if_alone(written), RATE),
        ):
            covered[name] += measure["low"] <= truth <= measure["high"]
    alone = covered.pop("written, as if alone")
    assert all(107 <= count <= 119 for count in covered.values()), covered
    # Four answers of a sample are not 4 items: so wide an interval, half of what it must be, holds 70 %.
    assert cell.asked == 1 or alone < 0.8 * REPETITIONS, alone


def as_if_alone(measure: dict[str, Any]) -> dict[str, Any]:
    hits = round(measure["n"] * measure["value"])
    return share([1] * hits + [0] * (measure["n"] - hits)).to_dict()
