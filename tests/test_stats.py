"""Intervals, tests and power agree with tables, with scipy's own procedures, and with simulation."""

import numpy as np
import pytest
from scipy import stats as reference

from diffattn import stats

DRAWS = 20_000
"""A rate near 5 % then has a standard error of 0.15 %, one near 80 % of 0.28 %; four of them are allowed."""


def test_the_paired_interval_is_students_with_bonferronis_level() -> None:
    d = np.array([-0.03, -0.01, -0.05, -0.02, 0.01])
    mean, half = stats.paired_interval(d, alpha=0.02, comparisons=2)
    expected = reference.ttest_1samp(d, 0).confidence_interval(0.99)
    assert (mean - half, mean + half) == pytest.approx((expected.low, expected.high), rel=1e-12)


def test_a_batch_of_comparisons_is_one_call() -> None:
    d = np.random.default_rng(0).normal(size=(7, 3, 5))
    mean, half = stats.paired_interval(d, 0.05, 3)
    assert mean.shape == half.shape == (7, 3)
    assert half[4, 1] == stats.paired_interval(d[4, 1], 0.05, 3)[1]


@pytest.mark.parametrize(
    ("df", "values"),
    # Dunnett's two-sided 5 % points (Biometrics 20, 1964, table II) for 1 to 4 arms against one baseline.
    [(5, (2.57, 3.03, 3.29, 3.48)), (10, (2.23, 2.57, 2.76, 2.89)), (20, (2.09, 2.38, 2.54, 2.65))],
)
def test_dunnetts_critical_values_are_those_of_his_table(df: int, values: tuple[float, ...]) -> None:
    found = [stats.dunnett_critical(m, df) for m in range(1, 5)]
    assert found == pytest.approx(values, abs=0.0051)  # printed with two digits


def test_dunnetts_family_has_its_level_where_few_seeds_make_it_hardest() -> None:
    # Three arms of 2 seeds: 4 degrees of freedom; scipy integrates the multivariate t by quasi Monte Carlo.
    c = stats.dunnett_critical(3, 4, alpha=0.05)
    shape = np.full((3, 3), 0.5) + 0.5 * np.eye(3)
    law = reference.multivariate_t(shape=shape, df=4, seed=0)  # pyright: ignore[reportArgumentType]
    assert law.cdf([c] * 3, lower_limit=[-c] * 3) == pytest.approx(0.95, abs=5e-4)


def test_the_pooled_sd_weights_groups_by_their_degrees_of_freedom() -> None:
    sd, df = stats.pooled_sd([[1.0, 3.0], [0.0, 0.0, 3.0], [9.0]])
    assert df == 3
    assert sd == pytest.approx(np.sqrt((2.0 + 6.0) / 3))
    assert stats.pooled_sd([[1.0], [2.0]])[1] == 0


def test_the_chi_square_interval_covers_the_true_sd() -> None:
    sds = np.random.default_rng(1).normal(size=(DRAWS, 4)).std(axis=1, ddof=1)
    low, high = stats.sd_interval(1.0, 3)
    assert (low, high) == pytest.approx((0.5665, 3.7285), abs=1e-4)  # sqrt(3 / 9.3484), sqrt(3 / 0.2158)
    covered = np.mean((sds * low <= 1) & (sds * high >= 1))
    assert covered == pytest.approx(0.95, abs=0.006)
    # A 90 % interval must fail the same check.
    low, high = stats.sd_interval(1.0, 3, level=0.90)
    assert np.mean((sds * low <= 1) & (sds * high >= 1)) < 0.92


@pytest.mark.parametrize(("n", "smallest"), [(3, 0.25), (5, 0.0625), (6, 0.03125), (9, 0.00390625)])
def test_the_smallest_sign_flip_p_is_two_over_two_to_the_n(n: int, smallest: float) -> None:
    assert stats.sign_flip_p(np.full(n, 0.01)) == smallest


def test_the_sign_flip_p_counts_flips_at_least_as_extreme() -> None:
    # Sums of +-1 +-2 +-4: |sum| >= |1 + 2 - 4| holds for all 8; |sum| >= 5 for four of them.
    assert stats.sign_flip_p([1, 2, -4]) == 1.0
    assert stats.sign_flip_p([-1, 2, 4]) == 0.5


@pytest.mark.parametrize("n", [5, 7, 10])
def test_the_signed_rank_interval_excludes_zero_exactly_when_wilcoxons_test_rejects(n: int) -> None:
    rng = np.random.default_rng(n)
    rejected = 0
    for _ in range(100):
        d = rng.normal(loc=0.9, size=n)
        centre, low, high = stats.signed_rank_interval(d, alpha=0.05, comparisons=1)
        p = reference.wilcoxon(d, method="exact").pvalue  # pyright: ignore[reportAttributeAccessIssue]
        assert (low > 0 or high < 0) == (p <= 0.05)
        assert low <= centre <= high
        rejected += p <= 0.05
    assert (rejected == 0) if n == 5 else (20 < rejected < 100)  # both outcomes were seen; 5 seeds cannot reject


def test_ties_only_make_the_signed_rank_interval_more_cautious() -> None:
    rng = np.random.default_rng(3)
    # Tokens on a grid of 8 evaluations, a third of them never: A/A pairs full of ties.
    pairs = np.log2(rng.integers(5, 9, size=(1500, 2, 10)))
    intervals = [stats.signed_rank_interval(d, 0.03, 1) for d in pairs[:, 0] - pairs[:, 1]]
    assert np.mean([low > 0 or high < 0 for _, low, high in intervals]) <= 0.03 + 3 * 0.0044


def test_fishers_exact_p_is_the_hypergeometric_tail() -> None:
    # 2 of 5 against 0 of 5: 2 C(5,2) / C(10,2) = 20 / 45.
    assert stats.fisher_exact_p(2, 5, 0, 5) == pytest.approx(20 / 45)
    assert stats.fisher_exact_p(0, 5, 0, 5) == 1.0


@pytest.mark.parametrize(("n", "alpha", "comparisons"), [(3, 0.05, 1), (5, 0.02, 3), (10, 0.03, 3)])
def test_power_is_the_share_of_simulated_experiments_that_see_the_difference(
    n: int, alpha: float, comparisons: int
) -> None:
    difference = stats.detectable_difference(sd=0.03, n=n, alpha=alpha, comparisons=comparisons)
    d = np.random.default_rng(4).normal(-difference, 0.03, size=(DRAWS, n))
    mean, half = stats.paired_interval(d, alpha, comparisons)
    assert np.mean(mean + half < 0) == pytest.approx(0.8, abs=0.012)
    # Half the difference must not pass for it.
    assert np.mean(mean + difference / 2 + half < 0) < 0.5


def test_detectable_differences_are_those_of_the_pilot() -> None:
    # Standard deviation of a difference 0.03 nats, one comparison at 5 %.
    found = [stats.detectable_difference(0.03, n, 0.05) for n in (3, 5, 8, 16)]
    assert found == pytest.approx([0.10, 0.05, 0.035, 0.023], abs=0.0025)


def test_seeds_needed_is_the_smallest_number_with_the_power() -> None:
    n = stats.seeds_needed(0.02, sd=0.03, alpha=0.05, comparisons=3)
    assert stats.paired_power(0.02, 0.03, n, 0.05, 3) >= 0.8 > stats.paired_power(0.02, 0.03, n - 1, 0.05, 3)
    assert stats.seeds_needed(0.02, sd=0.001, alpha=0.05) <= 3
    assert stats.seeds_needed(1e-9, sd=1.0, alpha=0.05) == stats.MOST_SEEDS


def test_a_difference_of_one_ruler_is_worth_the_rulers_tokens() -> None:
    assert stats.token_worth(0.04, ruler_gain=0.04) == pytest.approx(25)
    assert stats.token_worth(0.43 * 0.04, ruler_gain=0.04) == pytest.approx(10, abs=0.1)
    assert stats.token_worth(-0.04, ruler_gain=0.04) == pytest.approx(-20)


def test_the_bootstrap_over_documents_finds_the_spread_of_documents() -> None:
    rng = np.random.default_rng(5)
    counts = np.full(400, 100.0)
    baseline = np.stack([2.0 * counts, counts], axis=1)
    arm = np.stack([(2.0 + rng.normal(0.1, 0.5, size=400)) * counts, counts], axis=1)
    low, high = stats.cluster_bootstrap(arm, baseline)
    difference = arm[:, 0].sum() / counts.sum() - 2.0
    # With equal counts this is the mean of 400 draws of sd 0.5; 2000 draws leave some 4 % on an end's distance.
    assert (low, high) == pytest.approx((difference - 1.96 * 0.025, difference + 1.96 * 0.025), abs=0.005)
    with pytest.raises(ValueError, match="documents"):
        stats.cluster_bootstrap(arm, baseline[:10])


def test_splits_of_one_pool_are_called_different_as_often_as_promised() -> None:
    rng = np.random.default_rng(6)
    rates = [stats.false_alarms_over_splits(rng.normal(size=10), alpha=0.05) for _ in range(200)]
    assert np.mean(rates) == pytest.approx(0.05, abs=0.015)  # pools of 10 differ: the mean's standard error is 0.3 %
