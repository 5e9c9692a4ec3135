"""Loss against parameters N and tokens D: one curve for all arms, each arm shifted along N and along D.

L = E + A (s_N N)^-alpha + B (s_D D)^-beta (Hoffmann et al. 2022, arXiv 2203.15556, eq. 2, which has no shifts). E, A, B
and both exponents are shared; an arm's s_N and s_D say how many times more parameters and tokens it acts as if it had,
and are 1 for the baseline. Five numbers per arm would not be identified on a ladder of less than a factor of ten: many
curves of different E and exponents go through its points equally well. The shared ones are hardly better known, but
what is asked, how far an arm lies from the baseline measured by the slope there, depends little on which they are.

Arrays of fits have one axis more in front, so that all starts, or all bootstraps, are fitted at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from diffattn import stats

HUBER = 1.345
"""Standard deviations up to which a log residual counts as a square, beyond in proportion: 95 % efficient if normal."""
LEAST_SD = 1e-3
"""Of log losses, assumed where there are no two seeds to tell it."""
EXPONENT, EXPONENT_SPREAD, SHIFT_SPREAD = 0.3, 1.0, 1.0
"""Weak priors: exponents within a factor of e of 0.3, shifts within a factor of e of 1. They decide only what the
points leave open: that exponents stay finite, and how a lead is split between s_N and s_D where either explains it."""
SHARED = 5
"""log E, log A and log B (the terms at the centre of the points), log alpha, log beta; then of each arm but the
baseline log s_N and log s_D."""
ROUNDS = 200
"""Most steps of a descent; 20 to 60 are usual."""
BOOTSTRAPS = 200


@dataclass(frozen=True)
class Points:
    """Finished runs, one per entry of each array [R]."""

    arm: np.ndarray
    """Number of the arm; 0 is the baseline."""
    parameters: np.ndarray
    """N, without embeddings."""
    tokens: np.ndarray
    """D."""
    loss: np.ndarray
    """Nats per token."""
    seed: np.ndarray
    """Seed of the run."""

    @property
    def seeds(self) -> list[int]:
        return sorted(set(self.seed.tolist()))

    @property
    def arms(self) -> int:
        return int(self.arm.max()) + 1


def differ(values: ArrayLike) -> bool:
    """Whether these are several sizes, or budgets: arms are matched to within a percent, which is no other size."""
    return float(np.ptp(np.log(values))) > 0.1


def varies(parameters: ArrayLike, tokens: ArrayLike) -> tuple[bool, bool]:
    """Whether sizes differ, and whether token budgets do, over some runs.

    ValueError: neither does, both grow in step, or there are fewer points than the curves have numbers.
    """
    logs = np.log(np.stack([np.asarray(parameters, dtype=float), np.asarray(tokens, dtype=float)]))
    sizes, budgets = differ(parameters), differ(tokens)
    if not sizes and not budgets:
        raise ValueError("a ladder needs several sizes or several token budgets, and these runs have one of each")
    if sizes and budgets and abs(np.corrcoef(logs)[0, 1]) > 0.999:
        raise ValueError(
            "tokens grow in step with the size, so that nothing can tell what either does; give each size a second "
            "token budget"
        )
    points, needed = len(np.unique(logs.round(1), axis=1).T), 1 + 2 * sizes + 2 * budgets
    if points < needed:
        raise ValueError(f"a ladder of {points} points cannot tell a curve of {needed} numbers; add sizes or budgets")
    return sizes, budgets


@dataclass(frozen=True)
class Curves:
    """Fitted curves: parameters p [..., 5 + 2 (arms - 1)], with any batch axes in front."""

    p: np.ndarray
    centre: tuple[float, float]
    """Means of log N and log D, where A and B are measured."""

    def terms(self, arm: int, parameters: ArrayLike, tokens: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """The arm's two terms in nats, of its parameters and of its tokens, without E."""
        n, d = self.shifts(arm)
        x, y = np.log(parameters) - self.centre[0], np.log(tokens) - self.centre[1]
        alpha, beta = self.exponents
        return np.exp(self.p[..., 1] - alpha * (x + n)), np.exp(self.p[..., 2] - beta * (y + d))

    def loss(self, arm: int, parameters: ArrayLike, tokens: ArrayLike) -> np.ndarray:
        """Nats per token."""
        size, data = self.terms(arm, parameters, tokens)
        return self.floor + size + data

    @property
    def floor(self) -> np.ndarray:
        """E, the loss of endless parameters and tokens."""
        return np.exp(self.p[..., 0])

    @property
    def exponents(self) -> tuple[np.ndarray, np.ndarray]:
        """alpha and beta."""
        return np.exp(self.p[..., 3]), np.exp(self.p[..., 4])

    def shifts(self, arm: int) -> tuple[np.ndarray, np.ndarray]:
        """log s_N and log s_D of an arm."""
        if arm == 0:
            return np.zeros(self.p.shape[:-1]), np.zeros(self.p.shape[:-1])
        at = SHARED + 2 * (arm - 1)
        return self.p[..., at], self.p[..., at + 1]


def fit(points: Points) -> Curves:
    """Fit the curves to all runs from 27 starts, and keep the best: Huber loss on log residuals.

    A ladder of one size, or of one budget, has no term for it: what it adds is part of E. ValueError: `varies`.
    """
    problem = _Problem(points)
    found, value = problem.descend(problem.starts(), np.ones(len(points.loss)))
    return Curves(found[np.argmin(value)], problem.centre)


def bootstrap(points: Points, fitted: Curves, draws: int = BOOTSTRAPS, random_seed: int = 0) -> Curves:
    """Fit again with seeds drawn with replacement, each with all of its runs, starting from the fitted curves: [draws].

    Runs of one seed share data order and initial draws, so that the seed, not the run, is the unit.
    """
    problem, seeds = _Problem(points), points.seeds
    drawn = np.random.default_rng(random_seed).multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=draws)
    weights = drawn[:, np.searchsorted(seeds, points.seed)].astype(float)
    found, _ = problem.descend(np.repeat(fitted.p[None], draws, axis=0), weights)
    return Curves(found, problem.centre)


def interval(value: float, drawn: np.ndarray, seeds: int, level: float = 0.95) -> tuple[float, float] | None:
    """value +- t(n - 1) s, s being the bootstrap's standard deviation x sqrt(n / (n - 1)); None with one seed.

    The percentiles of a bootstrap over few seeds are too narrow twice: resampling n values shows (n - 1) / n of their
    variance, and knows nothing of how badly n values tell it. Both are mended as for a mean of n normal values, which a
    smooth function of all runs nearly is: at 3 seeds the interval is 2.7 times as wide as the percentiles', and covers
    the truth in 90 to 99 % of simulated ladders where the percentiles do in about 70 (tests/lab/test_scaling.py).

    value and drawn are logarithms of a factor, +inf where none is enough. Then there is no upper end, and the lower one
    is that of the reciprocal, which is 0 there and so has a standard deviation.
    """
    if seeds < 2:
        return None
    wider = stats.t_critical(seeds, 1 - level) * np.sqrt(seeds / (seeds - 1))
    if np.isfinite(value) and np.isfinite(drawn).all():
        half = wider * float(np.std(drawn))
        return float(value - half), float(value + half)
    with np.errstate(divide="ignore"):
        return float(-np.log(np.exp(-value) + wider * np.std(np.exp(-drawn)))), np.inf


class _Problem:
    """The residuals of some runs, and Levenberg's and Marquardt's descent over many starts or weightings at once."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self.has_size, self.has_tokens = varies(points.parameters, points.tokens)
        logs = np.log(points.parameters), np.log(points.tokens)
        self.centre = float(logs[0].mean()), float(logs[1].mean())
        self.x, self.y = logs[0] - self.centre[0], logs[1] - self.centre[1]
        self.log_loss = np.log(points.loss)
        self.sd = max(LEAST_SD, _spread(points, self.log_loss))
        shifts = 2 * (points.arms - 1)
        self.middle = np.array([0, 0, 0, np.log(EXPONENT), np.log(EXPONENT), *[0.0] * shifts])
        # A prior counts as one residual, of as many standard deviations as the parameter lies from its middle.
        held = [0, 0, 0, EXPONENT_SPREAD**-2, EXPONENT_SPREAD**-2, *[SHIFT_SPREAD**-2] * shifts]
        self.prior = np.array(held)

    def starts(self) -> np.ndarray:
        """Shares of E, and exponents, over what curves of trainings have."""
        lowest, terms = float(self.points.loss.min()), self.has_size + self.has_tokens
        found = []
        for share in (0.2, 0.5, 0.8):
            for alpha in (0.1, 0.3, 0.6):
                for beta in (0.1, 0.3, 0.6):
                    term = np.log((1 - share) * lowest / terms)
                    sizes, tokens = term if self.has_size else -np.inf, term if self.has_tokens else -np.inf
                    found.append([np.log(share * lowest), sizes, tokens, np.log(alpha), np.log(beta)])
        return np.hstack([np.array(found), np.zeros((len(found), len(self.middle) - SHARED))])

    def residuals(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residuals [K, R] in standard deviations, and what they gain by each parameter [K, R, P]."""
        arm = self.points.arm
        alpha, beta = np.exp(p[:, 3:4]), np.exp(p[:, 4:5])
        shift = np.concatenate([np.zeros((len(p), 2)), p[:, SHARED:]], axis=1)
        x, y = self.x + shift[:, 2 * arm], self.y + shift[:, 2 * arm + 1]
        floor = np.exp(p[:, 0:1]) + np.zeros_like(x)
        size, tokens = np.exp(p[:, 1:2] - alpha * x), np.exp(p[:, 2:3] - beta * y)
        total = floor + size + tokens
        gains = np.zeros((*x.shape, p.shape[1]))
        for at, gain in enumerate((floor, size, tokens, -size * alpha * x, -tokens * beta * y)):
            gains[..., at] = gain
        for other in range(1, self.points.arms):
            own, at = arm == other, SHARED + 2 * (other - 1)
            gains[..., at] = np.where(own, -size * alpha, 0)
            gains[..., at + 1] = np.where(own, -tokens * beta, 0)
        return (np.log(total) - self.log_loss) / self.sd, gains / (total * self.sd)[..., None]

    def value(self, p: np.ndarray, residuals: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Half of the weighted Huber loss of the runs and of the priors [K]."""
        size = np.abs(residuals)
        huber = np.where(size < HUBER, size**2 / 2, HUBER * (size - HUBER / 2))
        return (weights * huber).sum(axis=1) + (self.prior * self._away(p) ** 2).sum(axis=1) / 2

    def descend(self, p: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Minimise from every start [K, P] under its weights [K, R] or [R]; gives parameters and values."""
        weights = np.broadcast_to(weights, (len(p), len(self.log_loss)))
        damping = np.full(len(p), 1e-2)
        residuals, gains = self.residuals(p)
        value = self.value(p, residuals, weights)
        for _ in range(ROUNDS):
            # The curvature of Huber's loss, as if it were a square that the residual's size makes lighter.
            lighter = weights * np.minimum(1, HUBER / np.maximum(np.abs(residuals), 1e-9))
            weighted = np.swapaxes(gains * lighter[..., None], 1, 2)
            slope = (weighted @ residuals[..., None])[..., 0] + self.prior * self._away(p)
            curvature = weighted @ gains + np.diag(self.prior)
            diagonal = np.einsum("kpp->kp", curvature)
            damped = curvature + (damping[:, None] * diagonal + 1e-9)[..., None] * np.eye(p.shape[1])
            step = np.linalg.solve(damped, -slope[..., None])[..., 0]
            trial = p + np.clip(step, -1, 1)
            new_residuals, new_gains = self.residuals(trial)
            new = self.value(trial, new_residuals, weights)
            better = new < value
            small = np.abs(step).max(axis=1) < 1e-6
            settled = small | better & (value - new < 1e-9 * (1 + new)) | ~better & (damping > 1e6)
            p, value = np.where(better[:, None], trial, p), np.where(better, new, value)
            residuals = np.where(better[:, None], new_residuals, residuals)
            gains = np.where(better[:, None, None], new_gains, gains)
            damping = np.where(better, np.maximum(damping / 5, 1e-9), damping * 4)
            if settled.all():
                break
        return p, value

    def _away(self, p: np.ndarray) -> np.ndarray:
        """How far parameters lie from the middle of their priors; a term that is not there (-inf) has none."""
        return np.where(self.prior > 0, p - self.middle, 0)


def _spread(points: Points, values: np.ndarray) -> float:
    """Standard deviation between seeds of the same arm, size and budget; 0 where each has one seed."""
    keys: Sequence[tuple[float, ...]] = list(zip(points.arm, points.parameters, points.tokens, strict=True))
    groups = [values[[key == other for other in keys]] for key in dict.fromkeys(keys)]
    sd, degrees = stats.pooled_sd(groups)
    return sd if degrees else 0.0
