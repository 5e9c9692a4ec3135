"""An effect of order is told from chance: none is found where there is none, and the truth lies in the interval."""

import numpy as np
import pytest

from diffattn.evals.orders import by_group, spread


def hits(rng: np.random.Generator, effect: float, items: int = 40, orders: int = 10) -> np.ndarray:
    """Items of different difficulty; an order adds a normal effect of that deviation to the chance of all."""
    easy = rng.uniform(0.3, 0.7, (items, 1))
    return (rng.random((items, orders)) < easy + effect * rng.standard_normal(orders)).astype(float)


# Of 100 repetitions at 95 % the share lies within 89 and 99 % with 98 % probability; the seed is fixed.
@pytest.mark.parametrize("effect", [0.0, 0.1])
def test_the_deviation_is_covered_and_its_variance_unbiased(effect: float) -> None:
    rng = np.random.default_rng(5)
    found = [spread(hits(rng, effect)) for _ in range(100)]
    covered = np.mean([f.deviation.low <= effect <= f.deviation.high for f in found])
    assert 0.89 <= covered <= 0.99
    variances = [f.variance for f in found]
    assert abs(np.mean(variances) - effect**2) < 3 * np.std(variances) / 100**0.5
    alarms = np.mean([f.p <= 0.05 for f in found])
    # Exchanging scores is exact: at most 5 % without an effect, of 100 repetitions up to 10 %.
    assert alarms <= 0.1 if effect == 0 else alarms > 0.6


def test_without_effect_the_range_is_that_of_exchanges() -> None:
    rng = np.random.default_rng(6)
    found = [spread(hits(rng, 0.0)) for _ in range(40)]
    # Ten shares of 40 items differ by more than 20 points where order does nothing.
    expected = np.mean([f.range_without_effect for f in found])
    assert expected > 0.2
    assert np.mean([f.range for f in found]) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("orders", [5, 7, 10])
def test_what_is_the_same_in_every_order_has_no_spread_not_even_of_rounding(orders: int) -> None:
    rng = np.random.default_rng(8)
    for items in (3, 7, 30):
        for scores in (rng.random(items), rng.integers(0, 2, items)):
            same = np.repeat(scores[:, None], orders, axis=1)
            found = spread(same)
            assert (found.range, found.range_without_effect, found.variance, found.p) == (0, 0, 0, 1)
            assert (found.deviation.value, found.deviation.low, found.deviation.high) == (0, 0, 0)
            assert by_group(same, ["a", "b", "c"] * (items // 3) + ["a"] * (items % 3)) == {
                "variance": 0,
                "without_effect": 0,
                "p": 1,
            }


def test_all_items_that_turn_together_are_an_effect() -> None:
    found = spread(np.tile([1.0, 0.0, 1.0, 0.0], (20, 1)))
    # Shares 1, 0, 1, 0: their variance is 1/3, and nothing else varies.
    assert found.variance == pytest.approx(1 / 3)
    assert found.deviation.low > 0.3 and found.p == pytest.approx(1 / 1001)


def test_effects_that_cancel_between_groups_are_seen_group_by_group() -> None:
    # Each order is right on one half of the items only: the share is one half every time.
    half = np.tile([1.0, 0.0, 1.0, 0.0], (10, 1))
    scores, groups = np.concatenate([half, 1 - half]), ["a"] * 10 + ["b"] * 10
    assert spread(scores).range == 0
    assert by_group(scores, groups)["p"] == pytest.approx(1 / 1001)
    rng = np.random.default_rng(7)
    alarms = [by_group(hits(rng, 0.0, items=20), groups)["p"] <= 0.05 for _ in range(60)]
    assert np.mean(alarms) <= 0.1


def test_one_item_or_one_order_has_no_spread() -> None:
    for shape in ((1, 5), (5, 1)):
        with pytest.raises(ValueError, match="2 items under 2 orders"):
            spread(np.zeros(shape))
