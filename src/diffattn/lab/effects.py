"""What an arm's losses measure against the baseline's: pairs, interval, ruler, margin, the lead along budgets."""

import math
from dataclasses import dataclass, replace

import numpy as np

from diffattn import stats
from diffattn.lab.losses import Losses, Runs
from diffattn.lab.rules import MARGIN_OF_RULER, SCREEN_ALPHA, Rules

Interval = tuple[float, float, float]
"""Mean, low, high."""
Noise = tuple[float, int]
"""Pooled within-arm standard deviation and its degrees of freedom."""


@dataclass(frozen=True)
class Pairs:
    """An arm's values and the baseline's on the seeds that both have, in rising order."""

    seeds: list[int]
    arm: np.ndarray
    baseline: np.ndarray

    @property
    def differences(self) -> np.ndarray:
        """arm - baseline per seed."""
        return self.arm - self.baseline

    def first(self, n: int) -> "Pairs":
        """The first n seeds."""
        return Pairs(self.seeds[:n], self.arm[:n], self.baseline[:n])


@dataclass(frozen=True)
class Ruler:
    """What 25 % more tokens did for the baseline; gain > 0 is an improvement."""

    gain: float
    low: float
    high: float
    n: int

    @property
    def seen(self) -> bool:
        """Whether the interval says that more tokens helped."""
        return self.low > 0


@dataclass(frozen=True)
class Quarter:
    """The difference at a quarter of the tokens, and the contrast full - quarter per seed."""

    difference: Interval
    change: Interval
    trend: str
    """shrinks, grows, flips or cannot tell."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One arm against the baseline at one look, or in a screen."""

    arm: str
    pairs: Pairs
    mean: float
    low: float
    high: float
    alpha: float
    comparisons: int
    ruler: Ruler | None
    margin: float | None
    worth: float | None
    quarter: Quarter | None
    noise: Noise | None = None
    """What a screen's interval rests on; None: the arm's own paired differences."""
    runs: int = 2
    """Runs behind each difference: an arm's and the baseline's, or the four of a contrast."""

    @property
    def n(self) -> int:
        """Seeds it rests on."""
        return len(self.pairs.seeds)

    @property
    def sd(self) -> float:
        """Standard deviation of the paired differences; nan with one seed."""
        return float(self.pairs.differences.std(ddof=1)) if self.n > 1 else math.nan

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference was seen."""
        return self.low > 0 or self.high < 0

    @property
    def within_margin(self) -> bool:
        """Whether the whole interval lies inside the margin."""
        return self.margin is not None and self.low >= -self.margin and self.high <= self.margin

    @property
    def margin_worth(self) -> float | None:
        """The margin in percent of tokens; None where the ruler was not seen."""
        if self.margin is None or self.ruler is None or not self.ruler.seen:
            return None
        return stats.token_worth(self.margin, self.ruler.gain)

    @property
    def identical(self) -> bool:
        """Whether the arm is a copy: not one seed differs."""
        return bool(np.all(self.pairs.differences == 0))

    @property
    def constant(self) -> bool:
        """Whether every seed shows one difference other than 0, up to rounding: an interval of no width."""
        return self.n > 1 and not self.identical and self.sd <= 1e-9 * abs(self.mean)

    @property
    def detectable(self) -> float:
        """The true difference that these seeds see with 80 % power, by this interval."""
        if self.noise is not None:
            return detectable_in_screen(self.noise, self.n, self.comparisons, self.runs)
        return stats.detectable_difference(self.sd, self.n, self.alpha, self.comparisons)

    def seeds_for_margin(self, looks: tuple[tuple[int, float], ...]) -> int | None:
        """Seeds that see a difference of the margin with 80 % power: a look still to come, else beyond the last one."""
        if self.margin is None or self.sd == 0:
            return None
        for n, alpha in looks:
            if n > self.n and stats.paired_power(self.margin, self.sd, n, alpha, self.comparisons) >= 0.8:
                return n
        return max(self.n + 1, stats.seeds_needed(self.margin, self.sd, looks[-1][1], self.comparisons))

    @property
    def correlation(self) -> float | None:
        """Correlation of the arm with the baseline over seeds: what common random numbers brought."""
        if self.n < 3 or self.pairs.arm.std() == 0 or self.pairs.baseline.std() == 0:
            return None
        return float(np.corrcoef(self.pairs.arm, self.pairs.baseline)[0, 1])


def pair(runs: Runs, arm: str, baseline: str) -> Pairs:
    """Values on the seeds that the arm and the baseline share."""
    one, other = runs.get(arm, {}), runs.get(baseline, {})
    seeds = sorted(one.keys() & other.keys())
    return Pairs(seeds, np.array([one[s] for s in seeds]), np.array([other[s] for s in seeds]))


def pair_differences(runs: Runs, first: tuple[str, str], second: tuple[str, str]) -> Pairs:
    """The two differences of a contrast, on the seeds that its four arms share."""
    one, other = pair(runs, *first), pair(runs, *second)
    seeds = [seed for seed in one.seeds if seed in other.seeds]
    halves = (half.differences[[half.seeds.index(seed) for seed in seeds]] for half in (one, other))
    return Pairs(seeds, *halves)


def effect_at_look(
    arm: str, pairs: Pairs, early: Pairs, losses: Losses, rules: Rules, alpha: float, comparisons: int
) -> Effect:
    """Paired t interval with the arm's own variance, Bonferroni over the comparisons; pairs hold the look's seeds.

    early: the same pairs at a quarter of the tokens, as far as there are any.
    """
    interval = _paired(pairs.differences, alpha, comparisons)
    gains = _ruler_gains(losses, rules, pairs)
    # The ruler is none of the m comparisons: its own interval at the look's alpha.
    ruler = Ruler(*_paired(gains, alpha, 1), len(gains)) if gains is not None else None
    quarter = _quarter(early, pairs, interval, alpha, comparisons)
    return _effect(arm, pairs, interval, rules, alpha, comparisons, ruler, quarter)


def effect_in_screen(
    arm: str, pairs: Pairs, losses: Losses, rules: Rules, noise: Noise, comparisons: int, runs: int = 2
) -> Effect:
    """Dunnett's interval with the pooled within-arm sd; infinite where no arm has two seeds. runs: as `Effect.runs`."""
    interval = _pooled(pairs.differences, noise, comparisons, runs)
    gains = _ruler_gains(losses, rules, pairs)
    ruler = Ruler(*_pooled(gains, noise, 1, 2), len(gains)) if gains is not None else None
    effect = _effect(arm, pairs, interval, rules, SCREEN_ALPHA, comparisons, ruler, None)
    return replace(effect, noise=noise, runs=runs)


def _paired(differences: np.ndarray, alpha: float, comparisons: int) -> Interval:
    if len(differences) < 2 or not np.all(np.isfinite(differences)):
        return (float(differences.mean()), -math.inf, math.inf)
    mean, half = stats.paired_interval(differences, alpha, comparisons)
    return float(mean), float(mean - half), float(mean + half)


def _pooled(differences: np.ndarray, noise: Noise, comparisons: int, runs: int) -> Interval:
    sd, df = noise
    mean = float(differences.mean())
    if df == 0 or not math.isfinite(mean):
        return mean, -math.inf, math.inf
    half = _critical(comparisons, df, runs) * sd * math.sqrt(runs / len(differences))
    return mean, mean - half, mean + half


def _critical(comparisons: int, df: int, runs: int) -> float:
    """Dunnett's value, which holds for arms that share one baseline; Bonferroni's for a contrast of four."""
    if runs == 2:
        return stats.dunnett_critical(comparisons, df, SCREEN_ALPHA)
    return stats.t_critical(df + 1, SCREEN_ALPHA, comparisons)


def detectable_in_screen(noise: Noise, n: int, comparisons: int, runs: int = 2, power: float = 0.8) -> float:
    """The true difference whose interval in a screen excludes 0, on its side, with this power: noncentral t."""
    from scipy import optimize
    from scipy.stats import nct

    sd, df = noise
    if df == 0:
        return math.nan
    critical = _critical(comparisons, df, runs)
    # The power at the critical value is about a half; with 1 degree of freedom it is 0.8 well before four times it.
    shift = optimize.brentq(lambda x: float(nct.sf(critical, df, x)) - power, 0.0, 4 * critical + 4)
    return float(shift) * sd * math.sqrt(runs / n)  # pyright: ignore[reportArgumentType]


def _effect(
    arm: str,
    pairs: Pairs,
    interval: Interval,
    rules: Rules,
    alpha: float,
    comparisons: int,
    ruler: Ruler | None,
    quarter: Quarter | None,
) -> Effect:
    gain = ruler.gain if ruler is not None and ruler.seen else None
    return Effect(
        arm=arm,
        pairs=pairs,
        mean=interval[0],
        low=interval[1],
        high=interval[2],
        alpha=alpha,
        comparisons=comparisons,
        ruler=ruler,
        margin=rules.margin or (MARGIN_OF_RULER * gain if gain is not None else None),
        worth=stats.token_worth(rules.sign * interval[0], gain) if gain is not None else None,
        quarter=quarter,
    )


def _ruler_gains(losses: Losses, rules: Rules, pairs: Pairs) -> np.ndarray | None:
    """Improvement by 25 % more tokens per seed, on those of the pairs' seeds whose ruler has run; None without any."""
    baseline = losses.full[rules.baseline]
    gains = [rules.sign * (losses.ruler[seed] - baseline[seed]) for seed in pairs.seeds if seed in losses.ruler]
    return np.array(gains) if gains else None


def _quarter(early: Pairs, pairs: Pairs, full: Interval, alpha: float, comparisons: int) -> Quarter | None:
    """The lead along budgets, on those of the pairs' seeds that have runs at a quarter; None without two."""
    seeds = [seed for seed in pairs.seeds if seed in early.seeds]
    if len(seeds) < 2:
        return None
    before = early.differences[[early.seeds.index(s) for s in seeds]]
    late = pairs.differences[[pairs.seeds.index(s) for s in seeds]]
    difference = _paired(before, alpha, comparisons)
    change = _paired(late - before, alpha, comparisons)
    return Quarter(difference, change, _trend(full, difference, change))


def _trend(full: Interval, quarter: Interval, change: Interval) -> str:
    """What the lead did from a quarter of the tokens to all of them, where the change per seed excludes 0."""

    def side(interval: Interval) -> int:
        return (interval[1] > 0) - (interval[2] < 0)

    if side(full) * side(quarter) < 0:
        return "flips"
    leading = side(full) or side(quarter)
    if not leading or not side(change):
        return "cannot tell"
    return "grows" if side(change) == leading else "shrinks"
