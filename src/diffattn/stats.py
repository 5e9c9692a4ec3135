"""Intervals, tests, corrections and power for comparisons over seeds: numpy and scipy only.

Shapes: n seeds on the last axis; every other axis is a batch, so that a simulation of 10,000 comparisons is one call.
alpha is the error of a whole family at one look, comparisons (m) its size: each interval gets alpha / m, half a side.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

MOST_SEEDS = 100_000
"""`seeds_needed` says this number when no smaller one is enough: nobody trains that many."""

MOST_FLIPPED = 20
"""Seeds up to which `sign_flip_p` enumerates all flips."""


def paired_interval(differences: ArrayLike, alpha: float, comparisons: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half-width of the t interval with Bonferroni's correction: mean +- t(1 - alpha / 2m, n - 1) s / sqrt(n).

    differences: [..., n] arm - baseline per seed, n >= 2. Each comparison has its own s. Returns two arrays [...].
    """
    d = np.asarray(differences, dtype=float)
    n = d.shape[-1]
    assert n >= 2, "an interval needs two seeds"
    half = t_critical(n, alpha, comparisons) * d.std(axis=-1, ddof=1) / np.sqrt(n)
    return d.mean(axis=-1), half


def t_critical(n: int, alpha: float, comparisons: int = 1) -> float:
    """The quantile t(1 - alpha / 2m, n - 1)."""
    return float(stats.t.ppf(1 - alpha / (2 * comparisons), n - 1))


def pooled_sd(groups: Sequence[ArrayLike]) -> tuple[float, int]:
    """Within-group standard deviation and its degrees of freedom; groups [n_i] of any sizes. No pair: (nan, 0)."""
    arrays = [np.asarray(group, dtype=float) for group in groups]
    df = sum(len(a) - 1 for a in arrays if len(a) > 1)
    if df == 0:
        return float("nan"), 0
    return float(np.sqrt(sum(((a - a.mean()) ** 2).sum() for a in arrays if len(a) > 1) / df)), df


def sd_interval(sd: float, df: int, level: float = 0.95) -> tuple[float, float]:
    """Chi-square interval of a standard deviation estimated with df degrees of freedom."""
    tail = (1 - level) / 2
    return sd * float(np.sqrt(df / stats.chi2.ppf(1 - tail, df))), sd * float(np.sqrt(df / stats.chi2.ppf(tail, df)))


@lru_cache(maxsize=256)
def dunnett_critical(comparisons: int, df: int, alpha: float = 0.05) -> float:
    """Two-sided critical value c for m arms against one baseline, all with the same number of seeds (Dunnett 1955).

    The family's intervals are mean difference +- c s sqrt(2 / n), s pooled with df degrees of freedom.
    P(all |T_i| <= c) is a double integral over the baseline's mean z and over s: given both, the arms are independent.
    """
    z, weight = np.polynomial.hermite_e.hermegauss(80)
    weight = weight / weight.sum()
    u, weight_u = np.polynomial.legendre.leggauss(80)
    s = np.sqrt(stats.chi2.ppf((u + 1) / 2, df) / df)

    def miss(c: float) -> float:
        edge = np.sqrt(2) * c * s[:, None]
        inside = (stats.norm.cdf(z + edge) - stats.norm.cdf(z - edge)) ** comparisons
        return 1 - float((weight_u / 2) @ inside @ weight) - alpha

    bonferroni = float(stats.t.ppf(1 - alpha / (2 * comparisons), df))
    return _root(miss, 0.1, 1.1 * bonferroni + 0.1)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(optimize.brentq(function, low, high, xtol=1e-10))  # pyright: ignore[reportArgumentType]


def sign_flip_p(differences: ArrayLike) -> float:
    """Exact two-sided p value of the mean difference [n] under all 2^n flips of sign, n <= 20; it never decides."""
    d = np.asarray(differences, dtype=float)
    assert 1 <= len(d) <= MOST_FLIPPED, "all flips are enumerated"
    sums = np.zeros(1)
    for x in d:
        sums = np.concatenate([sums + x, sums - x])
    # The observed sum is among them; rounding must not exclude it.
    return float(np.mean(np.abs(sums) >= abs(d.sum()) - 1e-12 * np.abs(d).sum()))


def signed_rank_interval(differences: ArrayLike, alpha: float, comparisons: int = 1) -> tuple[float, float, float]:
    """Hodges-Lehmann centre and the interval of Wilcoxon's exact signed-rank test: (centre, low, high).

    differences: [n]. The ends are ordered Walsh averages: the closed interval excludes 0 exactly when the test rejects,
    and ties only make it more cautious. Infinite ends say that n seeds cannot reject at alpha / m.
    """
    d = np.asarray(differences, dtype=float)
    n = len(d)
    i, j = np.triu_indices(n)
    walsh = np.sort((d[i] + d[j]) / 2)
    drop = _walsh_averages_dropped(n, alpha / (2 * comparisons))
    centre = float(np.median(walsh))
    if drop == 0:
        return centre, -np.inf, np.inf
    return centre, float(walsh[drop - 1]), float(walsh[len(walsh) - drop])


@lru_cache(maxsize=256)
def _walsh_averages_dropped(n: int, tail: float) -> int:
    """How many sums k have P(T <= k) <= tail, T the signed-rank statistic: every rank is in it with probability 1/2."""
    p = np.ones(1)
    for rank in range(1, n + 1):
        p = (np.pad(p, (0, rank)) + np.pad(p, (rank, 0))) / 2
    return int(np.searchsorted(np.cumsum(p), tail * (1 + 1e-12), side="right"))


def fisher_exact_p(failed_a: int, runs_a: int, failed_b: int, runs_b: int) -> float:
    """Two-sided p value of Fisher's exact test: failed_a of runs_a against failed_b of runs_b."""
    table = [[failed_a, runs_a - failed_a], [failed_b, runs_b - failed_b]]
    return float(stats.fisher_exact(table).pvalue)  # pyright: ignore[reportAttributeAccessIssue]


def paired_power(difference: float, sd: float, n: int, alpha: float, comparisons: int = 1) -> float:
    """Probability that `paired_interval` excludes 0, on the difference's side, when the truth is `difference`.

    sd is the standard deviation of the paired differences; the statistic is then noncentral t.
    """
    if sd == 0:
        return float(difference != 0)
    noncentrality = abs(difference) / sd * np.sqrt(n)
    return float(stats.nct.sf(t_critical(n, alpha, comparisons), n - 1, noncentrality))


def detectable_difference(sd: float, n: int, alpha: float, comparisons: int = 1, power: float = 0.8) -> float:
    """Smallest true difference that n seeds see with the given power; sd is that of the paired differences."""
    # The normal answer plus twice the t quantile is beyond the root for every n >= 2.
    far = (2 * t_critical(n, alpha, comparisons) + stats.t.ppf(power, n - 1)) / np.sqrt(n)
    return sd * _root(lambda x: paired_power(x, 1.0, n, alpha, comparisons) - power, 0.0, far)


def seeds_needed(difference: float, sd: float, alpha: float, comparisons: int = 1, power: float = 0.8) -> int:
    """Smallest number of seeds that sees `difference` with the given power, at most MOST_SEEDS."""
    assert difference > 0
    few, many = 1, 2
    while many < MOST_SEEDS and paired_power(difference, sd, many, alpha, comparisons) < power:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        enough = paired_power(difference, sd, middle, alpha, comparisons) >= power
        few, many = (few, middle) if enough else (middle, many)
    return min(many, MOST_SEEDS)


def token_worth(gain: float, ruler_gain: float, ruler_ratio: float = 1.25) -> float:
    """What a gain is worth in tokens, in percent: 100 (ruler_ratio ^ (gain / ruler_gain) - 1).

    Loss is taken as linear in log tokens around the budget, with the slope that the ruler measured: ruler_gain for
    ruler_ratio x tokens. gain > 0 is an improvement; a loss of quality gives a negative percentage.
    """
    assert ruler_gain > 0
    return 100 * (ruler_ratio ** (gain / ruler_gain) - 1)


def cluster_bootstrap(
    arm: ArrayLike, baseline: ArrayLike, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of arm - baseline loss per token over resampled documents: "for these trained models" only.

    arm, baseline: [documents, 2] of (summed loss, scored tokens), the same documents in the same order.
    """
    a, b = np.asarray(arm, dtype=float), np.asarray(baseline, dtype=float)
    if a.shape != b.shape or a.ndim != 2 or a.shape[1] != 2:
        raise ValueError(f"the two models' documents must both be [documents, 2], got {a.shape} and {b.shape}")
    documents = len(a)
    weights = np.random.default_rng(seed).multinomial(documents, np.full(documents, 1 / documents), size=draws)
    totals_a, totals_b = weights @ a, weights @ b
    difference = totals_a[:, 0] / totals_a[:, 1] - totals_b[:, 0] / totals_b[:, 1]
    low, high = np.quantile(difference, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def false_alarms_over_splits(pool: ArrayLike, alpha: float) -> float:
    """Share of the splits of a pool of A/A losses [2 n] into two halves of n that `paired_interval` calls different.

    The pool holds runs that differ in nothing but their draws; halves are paired in the pool's order.
    """
    values = np.asarray(pool, dtype=float)
    n = len(values) // 2
    assert len(values) == 2 * n and 2 <= n <= 10, "an even pool of 4 to 20 runs"
    left = np.array(list(combinations(range(2 * n), n)))
    chosen = np.zeros((len(left), 2 * n), dtype=bool)
    np.put_along_axis(chosen, left, True, axis=1)
    right = np.nonzero(~chosen)[1].reshape(len(left), n)
    mean, half = paired_interval(values[left] - values[right], alpha)
    return float(np.mean(np.abs(mean) > half))
