"""Intervals, tests, corrections and power for comparisons over seeds: numpy and scipy only."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def paired_interval(differences: ArrayLike, alpha: float, comparisons: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half-width over the last axis: mean +- t(1 - alpha / 2m, n - 1) s / sqrt(n)."""
    raise NotImplementedError


def pooled_sd(groups: Sequence[ArrayLike]) -> tuple[float, int]:
    """Within-group standard deviation and its degrees of freedom."""
    raise NotImplementedError


def sd_interval(sd: float, df: int, level: float = 0.95) -> tuple[float, float]:
    """Chi-square interval of a standard deviation with df degrees of freedom."""
    raise NotImplementedError


def dunnett_critical(comparisons: int, df: float, alpha: float = 0.05) -> float:
    """Two-sided critical value for `comparisons` arms against one baseline of the same number of seeds."""
    raise NotImplementedError


def sign_flip_p(differences: ArrayLike) -> float:
    """Exact two-sided p value under flips of the differences' signs."""
    raise NotImplementedError


def fisher_exact_p(failed_a: int, runs_a: int, failed_b: int, runs_b: int) -> float:
    """Two-sided p value of Fisher's exact test for two counts of failed runs."""
    raise NotImplementedError


def paired_power(difference: float, sd: float, n: int, alpha: float, comparisons: int = 1) -> float:
    """Probability that the interval of `paired_interval` excludes 0 on the right side when the truth is `difference`."""
    raise NotImplementedError


def detectable_difference(sd: float, n: int, alpha: float, comparisons: int = 1, power: float = 0.8) -> float:
    """Smallest true difference that n seeds see with the given power; sd is that of the paired differences."""
    raise NotImplementedError


def seeds_needed(difference: float, sd: float, alpha: float, comparisons: int = 1, power: float = 0.8) -> int:
    """Smallest number of seeds that sees `difference` with the given power."""
    raise NotImplementedError


def cluster_bootstrap(
    arm: ArrayLike, baseline: ArrayLike, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of arm - baseline loss per token over resampled documents, for these trained models.

    arm, baseline: [documents, 2] of (summed loss, scored tokens), the same documents in the same order.
    """
    raise NotImplementedError
