"""What a number of samples can tell, before any model is asked."""

from collections.abc import Callable
from functools import cache
from math import comb, lgamma, sqrt
from typing import Any

import numpy as np

from diffattn.evals.intervals import Z

ALPHA, POWER = 0.05, 0.8
MOST = 1000
"""More samples than that see differences of a few points; the sum over all outcomes would take long."""


def told(samples: int) -> dict[str, Any]:
    """Say what so many samples, each right or wrong, can tell: ready for JSON.

    half_width: of Wilson's 95 % interval around a share of 0.5 and of 0.9. difference: the least one between two models
    on the same samples that McNemar's exact test finds at 5 % in 80 % of repetitions, where the better model fails on
    nothing that the other can do ("nested"), and where the two, the worse one with a share of 0.5, fail independently;
    None: even from 0.5 to 1 it would not be found, or there are more than 1000 samples.
    """
    nested, independent = differences(samples) if samples <= MOST else (None, None)
    return {
        "samples": samples,
        "half_width": {"0.5": wilson_half_width(samples, 0.5), "0.9": wilson_half_width(samples, 0.9)},
        "difference": {"nested": nested, "independent": independent},
    }


@cache
def differences(samples: int) -> tuple[float | None, float | None]:
    """Give the least differences that are found: nested, and independent."""
    nested = _least(samples, 1.0, lambda d: (0.0, d))
    return nested, _least(samples, 0.5, lambda d: (0.5 * (0.5 - d), 0.5 * (0.5 + d)))


def wilson_half_width(samples: int, share: float) -> float:
    """Half the width of Wilson's 95 % interval."""
    inside = share * (1 - share) / samples + Z * Z / (4 * samples * samples)
    return Z / (1 + Z * Z / samples) * sqrt(inside)


def mcnemar_power(samples: int, lost: float, won: float) -> float:
    """Probability that McNemar's exact test rejects at 5 %: a sample is lost or won with these probabilities."""
    differ = np.arange(samples + 1)
    logs = np.array([lgamma(n + 1) for n in range(samples + 1)])
    either = lost + won
    if not either:
        return 0.0
    total = 0.0
    for many, chance in zip(differ, _binomial(logs, samples, either), strict=True):
        few = _critical(int(many))
        if few >= 0 and chance > 1e-12:
            wins = _binomial(logs, int(many), won / either)
            total += float(chance * (wins[: few + 1].sum() + wins[many - few :].sum()))
    return total


def _binomial(logs: np.ndarray, n: int, p: float) -> np.ndarray:
    """Probability of 0, 1, ... n; logs: those of the factorials."""
    if p in (0.0, 1.0):
        return np.eye(n + 1)[round(p * n)]
    k = np.arange(n + 1)
    return np.exp(logs[n] - logs[: n + 1] - logs[n::-1] + k * np.log(p) + (n - k) * np.log1p(-p))


@cache
def _critical(differ: int) -> int:
    """Of so many samples that differ, the most on the smaller side that are significant; -1: none is."""
    tail, few = 0, -1
    while few + 1 < differ and 2 * (tail := tail + comb(differ, few + 1)) <= ALPHA * 2**differ:
        few += 1
    return few


def _least(samples: int, most: float, cells: Callable[[float], tuple[float, float]]) -> float | None:
    """Halve until the difference is known to a thousandth."""
    low, high = 0.0, most
    if mcnemar_power(samples, *cells(high)) < POWER:
        return None
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if mcnemar_power(samples, *cells(middle)) >= POWER else (middle, high)
    return high
