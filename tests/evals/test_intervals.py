"""Intervals hold the truth as often as they say, and edge cases have an answer."""

import math

import numpy as np
import pytest

from diffattn.evals.intervals import mcnemar, mean, share


def coverage(draw, measure, truth: float, repetitions: int = 200) -> float:
    rng = np.random.default_rng(3)
    found = [measure(*draw(rng)) for _ in range(repetitions)]
    return float(np.mean([m.low <= truth <= m.high for m in found]))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
@pytest.mark.parametrize("n", [20, 50, 120])
def test_shares_of_single_items_are_covered(p: float, n: int) -> None:
    # Exactly, over all outcomes; Wilson's interval moves around 95 % as shares of so few items are coarse.
    found = [share([1] * k + [0] * (n - k)) for k in range(n + 1)]
    chance = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    assert 0.925 <= sum(c for c, m in zip(chance, found, strict=True) if m.low <= p <= m.high) <= 0.985


# Of 200 repetitions at 95 % the share lies within 91 and 98.5 % with 99 % probability; the seed is fixed.
def test_shares_of_many_items_are_covered() -> None:
    assert 0.91 <= coverage(lambda rng: (rng.random(400) < 0.1,), share, 0.1) <= 0.985


def clustered(rng: np.random.Generator, documents: int, each: int, p: float):
    """Items of a document share its chance, which varies from document to document around p."""
    chance = rng.beta(2 * p, 2 * (1 - p), documents)
    return (rng.random((documents, each)) < chance[:, None]).ravel(), np.repeat(np.arange(documents), each).tolist()


@pytest.mark.parametrize(("documents", "each"), [(12, 6), (40, 6), (120, 5)])
def test_shares_of_items_that_share_documents_are_covered(documents: int, each: int) -> None:
    rate = coverage(lambda rng: clustered(rng, documents, each, 0.4), share, 0.4)
    assert 0.91 <= rate <= 0.985
    # Taken as single items they would not be.
    naive = coverage(lambda rng: (clustered(rng, documents, each, 0.4)[0],), share, 0.4)
    assert naive < 0.87


@pytest.mark.parametrize("documents", [8, 30, 100])
def test_means_over_documents_are_covered(documents: int) -> None:
    def draw(rng: np.random.Generator):
        sizes = rng.integers(5, 30, documents)
        level = np.repeat(rng.normal(3.0, 0.5, documents), sizes)
        return level + rng.normal(0, 1, sizes.sum()), np.repeat(np.arange(documents), sizes).tolist()

    assert 0.91 <= coverage(draw, mean, 3.0) <= 0.985


def test_paired_differences_are_covered() -> None:
    def draw(rng: np.random.Generator):
        easy = rng.random(80)
        return easy < 0.5, (easy < 0.6) ^ (rng.random(80) < 0.05)

    truth = (0.6 * 0.95 + 0.4 * 0.05) - 0.5
    assert 0.91 <= coverage(draw, lambda a, b: mcnemar(a, b)[0], truth) <= 0.99


def test_mcnemars_p_is_the_binomials() -> None:
    a, b = [True] * 8 + [False] * 2 + [True] * 10, [False] * 8 + [True] * 2 + [True] * 10
    difference, p = mcnemar(a, b)
    assert difference.value == pytest.approx(-6 / 20)
    assert p == pytest.approx(2 * sum(math.comb(10, k) for k in range(3)) / 2**10)
    assert mcnemar(a, a)[1] == 1.0


def test_all_right_is_not_certainly_right() -> None:
    found = share([True] * 50)
    assert found.value == found.high == 1.0
    assert found.low == pytest.approx(0.929, abs=1e-3)  # n / (n + z^2)
    # Fifty answers in five samples that are all alike are worth five.
    assert share([True] * 50, [i // 10 for i in range(50)]).low < 0.7


def test_one_document_tells_nothing_of_others() -> None:
    assert str(share([1, 0, 1], ["a"] * 3)) == "0.6667 (no interval: one document, n = 3)"
    assert (share([1, 0, 1], ["a"] * 3).low, share([1, 0, 1], ["a"] * 3).high) == (0.0, 1.0)
    assert math.isinf(mean([1.0, 2.0], ["a"] * 2).high)


@pytest.mark.parametrize("wrong", [[], [math.nan]])
def test_nothing_and_nan_are_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no item|not finite"):
        mean(wrong)
