"""Tokens to a share of right answers, often never: compared by ranks of log2 ratios, because the outcomes are bimodal.

Never (inf) is counted as twice the budget: one doubling beyond what was trained. The convention moves the size of a
difference, not the error of the test: under "no difference" a pair's two values may be swapped, so every sign pattern
of the log2 ratios is equally likely, whatever stands for never. Pairs that both never reach it are ties.
"""

import math
from dataclasses import dataclass

import numpy as np

from diffattn import stats
from diffattn.lab.effects import Pairs
from diffattn.lab.rules import Rules

DEFAULT_MARGIN = math.log2(1.1)
"""In doublings: 10 % of tokens."""


@dataclass(frozen=True, kw_only=True)
class RankEffect:
    """One arm's log2 ratios of tokens to the baseline's: Hodges-Lehmann centre and Wilcoxon's signed-rank interval."""

    arm: str
    pairs: Pairs
    mean: float
    low: float
    high: float
    """Infinite where so few seeds can never decide."""
    alpha: float
    comparisons: int
    margin: float
    reached: int
    reached_baseline: int
    median: float
    """Tokens; inf if at least half of the seeds never reached it."""
    median_baseline: float

    @property
    def n(self) -> int:
        """Seeds it rests on."""
        return len(self.pairs.seeds)

    @property
    def worth(self) -> float | None:
        """Percent of tokens that the baseline needs more than the arm; None where ranks cannot decide."""
        return 100 * (2.0**-self.mean - 1) if math.isfinite(self.low) else None

    @property
    def censored(self) -> bool:
        """Whether any run never reached it."""
        return self.reached < self.n or self.reached_baseline < self.n

    @property
    def open_ties(self) -> bool:
        """Whether on some seed neither reached it: what they would have done later is not known."""
        return bool(np.any(np.isinf(self.pairs.arm) & np.isinf(self.pairs.baseline)))

    @property
    def identical(self) -> bool:
        """Whether both reached it at the same time on every seed."""
        return not self.open_ties and bool(np.all(self.pairs.arm == self.pairs.baseline))

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference was seen."""
        return self.low > 0 or self.high < 0

    @property
    def within_margin(self) -> bool:
        """Whether the interval lies inside the margin and no seed is open."""
        return not self.open_ties and self.low >= -self.margin and self.high <= self.margin

    @property
    def seeds_to_decide(self) -> int:
        """Fewest seeds at which all of them agreeing is evidence enough: 2 / 2^n <= alpha / m."""
        return math.ceil(math.log2(2 * self.comparisons / self.alpha) - 1e-9)


def rank_effect(arm: str, pairs: Pairs, rules: Rules, alpha: float, comparisons: int) -> RankEffect:
    """Compare tokens (inf: never) seed by seed; pairs hold the seeds of one look, or of a screen."""
    assert rules.token_budget is not None
    ratios = log2_ratios(pairs, rules.token_budget)
    mean, low, high = stats.signed_rank_interval(ratios, alpha, comparisons)
    return RankEffect(
        arm=arm,
        pairs=pairs,
        mean=mean,
        low=low,
        high=high,
        alpha=alpha,
        comparisons=comparisons,
        margin=rules.margin or DEFAULT_MARGIN,
        reached=int(np.isfinite(pairs.arm).sum()),
        reached_baseline=int(np.isfinite(pairs.baseline).sum()),
        median=float(np.median(pairs.arm)),
        median_baseline=float(np.median(pairs.baseline)),
    )


def log2_ratios(pairs: Pairs, budget: float) -> np.ndarray:
    """log2(arm / baseline) per seed, in doublings of tokens; never counts as twice the budget."""
    arm, baseline = (np.where(np.isinf(x), 2 * budget, x) for x in (pairs.arm, pairs.baseline))
    return np.log2(arm) - np.log2(baseline)
