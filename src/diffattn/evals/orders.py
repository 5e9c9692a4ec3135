"""Does the order of demonstrations matter beyond chance? The same items under several orders, judged item by item."""

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from diffattn.evals.intervals import LEVEL, Measure

DRAWS = 1000
"""Permutations."""
QUANTILE_DRAWS = 200_000
"""Draws behind a quantile of F: it is then within 1 % or so, a tenth of what it is used for."""


@dataclass(frozen=True)
class Spread:
    """Mean scores of n items under each of K orders that were drawn at random."""

    means: tuple[float, ...]
    """[K] of each order."""
    lowest: float
    highest: float
    range: float
    """highest - lowest; some of it is there without any effect of order."""
    range_without_effect: float
    """What it is on average when the orders' scores are exchanged within each item."""
    p: float
    """Share of such exchanges after which the orders differ as much: small where order matters for the mean."""
    variance: float
    """Variance between orders - what items alone would cause; unbiased, so it may be negative."""
    deviation: Measure
    """Standard deviation of the effect of order on the mean score: the root of that variance, 0 where negative."""

    def to_dict(self) -> dict[str, Any]:
        """Give the fields ready for JSON."""
        return asdict(self)


def spread(scores: np.ndarray) -> Spread:
    """Tell an effect of order from what items alone cause; scores [n, K], each row one item under K orders.

    Without an effect on the mean an item's K scores are exchangeable: which order made it right is chance. Exchanging
    them within each item, 1000 times, gives the range and the p value that such a model has. The variance of the effect
    is the random component of a two-way analysis of variance: x_ik = item_i + order_k + rest_ik, (MS_order - MS_rest) /
    n, where the rest of an item holds its own, accidental likes of orders; its interval inverts MS_order / MS_rest ~
    (1 + n variance / rest) F(K - 1, (n - 1)(K - 1)) (Searle, Casella and McCulloch 1992, 3.6), for effects that are
    about normal. It is about all orders of these demonstrations. ValueError: under 2 items or orders.
    """
    x = np.asarray(scores, dtype=float)
    if x.ndim != 2 or min(x.shape) < 2:
        raise ValueError(f"a spread over orders needs 2 items under 2 orders or more, got scores of shape {x.shape}")
    n, orders = x.shape
    means = x.mean(axis=0)
    x = _from_first(x)
    of_orders = x.mean(axis=0)
    between = n * float(of_orders.var(ddof=1))
    rest = x - of_orders - x.mean(axis=1, keepdims=True) + x.mean()
    within = float((rest**2).sum()) / ((n - 1) * (orders - 1))
    variance = (between - within) / n
    high, low = (
        np.sqrt(max(0.0, float(between / q - within)) / n) for q in _quantiles(orders - 1, (n - 1) * (orders - 1))
    )
    exchanged = _exchanged(x, np.full((1, n), 1 / n))[:, 0]
    ranges = exchanged.max(axis=1) - exchanged.min(axis=1)
    return Spread(
        means=tuple(means.tolist()),
        lowest=float(means.min()),
        highest=float(means.max()),
        range=float(means.max() - means.min()),
        range_without_effect=float(ranges.mean()),
        p=_share_above(exchanged.var(axis=1, ddof=1), float(of_orders.var(ddof=1))),
        variance=variance,
        deviation=Measure(float(np.sqrt(max(0.0, variance))), float(low), float(high), n, "F of a random effect"),
    )


def by_group(scores: np.ndarray, groups: Sequence[Hashable]) -> dict[str, float]:
    """Judge the same within groups of items, [n] names: an order that helps one class and harms another as much.

    variance: between orders, the mean over items of their group's; without_effect: what exchanging the scores within
    each item gives on average; p: the share of exchanges that give as much. A model that says the last label for
    everything may be right equally often in each order, but on another class each time.
    """
    x = _from_first(np.asarray(scores, dtype=float))
    names = list(dict.fromkeys(groups))
    member = np.array([[group == name for group in groups] for name in names], dtype=float)
    sizes = member.sum(axis=1)
    weights = member / sizes[:, None]
    share = sizes / sizes.sum()
    found = float(share @ (weights @ x).var(axis=1, ddof=1))
    exchanged = _exchanged(x, weights).var(axis=2, ddof=1) @ share
    return {
        "variance": found,
        "without_effect": float(exchanged.mean()),
        "p": _share_above(exchanged, found),
    }


def _from_first(x: np.ndarray) -> np.ndarray:
    """Scores [n, K] from each item's first: differences between orders stay, and where there are none, sums are 0."""
    return x - x[:, :1]


@cache
def _quantiles(above: int, below: int) -> tuple[float, float]:
    """Bounds that F with these degrees of freedom is between in 95 %."""
    draws = np.random.default_rng(0).f(above, below, QUANTILE_DRAWS)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _exchanged(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted means [DRAWS, g, K] after the scores of each item, [n, K], have changed places; weights [g, n]."""
    rng = np.random.default_rng(0)
    return np.stack([weights @ rng.permuted(x, axis=1) for _ in range(DRAWS)])


def _share_above(drawn: np.ndarray, found: float) -> float:
    """Count the finding itself as one draw, so that p is never 0 and holds its level; equal up to rounding counts."""
    return float(1 + (drawn >= found - 1e-12 - 1e-9 * abs(found)).sum()) / (1 + len(drawn))
