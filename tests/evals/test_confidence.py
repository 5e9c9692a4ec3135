"""Signals of being wrong: numbers worked out by hand, and intervals that hold the truth."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from diffattn.evals.confidence import across, auroc, judged, probe
from diffattn.evals.diversity import METHODS, at_entropy, distinct, distinct_ngrams, entropy
from diffattn.evals.reader import GREEDY, Sampling


def test_numbers_are_those_worked_out_by_hand() -> None:
    found = judged(np.array([0.9, 0.8, 0.3, 0.2]), np.array([True, False, False, True]), range(4), True)
    assert found["auroc"]["value"] == 0.5
    assert found["raw"]["brier"] == pytest.approx((0.01 + 0.64 + 0.09 + 0.64) / 4)
    # Each in a bin of its own.
    assert found["raw"]["calibration_error"] == pytest.approx((0.1 + 0.8 + 0.3 + 0.8) / 4)
    assert {name: risk["value"] for name, risk in found["risk"].items()} == {
        "25 %": 0.0,
        "50 %": 0.5,
        "75 %": pytest.approx(2 / 3),
        "100 %": 0.5,
    }
    tied = auroc(np.array([0.5, 0.5, 0.9, 0.1]), np.array([True, False, True, False]), range(4))
    assert tied.value == 3.5 / 4
    apart = auroc(np.array([3.0, 2.0, 1.0]), np.array([True, True, False]), range(3))
    assert (apart.value, apart.high) == (1, 1) and apart.low < 0.5
    same = judged(np.array([0.9, 0.8]), np.array([True, True]), range(2), False)
    assert same["auroc"] is None and same["raw"] is None
    with pytest.raises(ValueError, match="right and answers that are wrong"):
        auroc(np.array([0.5]), np.array([True]), [0])


def test_the_interval_of_auroc_covers_where_records_share_their_noise() -> None:
    """A record's four answers are all right or all wrong, and nine tenths of their noise are the record's."""
    rng, truth = np.random.default_rng(0), NormalDist().cdf(1 / math.sqrt(2))
    records = np.repeat(np.arange(40), 4)
    found, naive = [], []
    for _ in range(200):
        right = (rng.random(40) < 0.6)[records]
        noise = math.sqrt(0.9) * rng.standard_normal(40)[records] + math.sqrt(0.1) * rng.standard_normal(160)
        found.append(auroc(right + noise, right, records.tolist()))
        naive.append(auroc(right + noise, right, range(160)))
    # Of 200 repetitions at 95 % 182 to 197 cover with 99 % probability; the seed is fixed.
    assert 182 <= sum(one.low <= truth <= one.high for one in found) <= 197
    # Taken as single answers they would not.
    assert sum(one.low <= truth <= one.high for one in naive) < 174
    # As wide as the areas spread, whose deviation is known to 5 %.
    spread = 2 * NormalDist().inv_cdf(0.975) * np.std([one.value for one in found])
    assert np.mean([one.high - one.low for one in found]) == pytest.approx(spread, rel=0.15)


def test_calibration_turns_any_ranking_into_probabilities() -> None:
    rng = np.random.default_rng(0)
    chance = rng.random(400)
    right = rng.random(400) < chance
    # Log-odds times 10 and shifted: no probability, but a logistic curve away from one.
    found = judged(10 * np.log(chance / (1 - chance)) + 3, right, range(400), False)
    assert found["calibrated"]["brier"] == pytest.approx(((chance - right) ** 2).mean(), abs=0.01)
    # Ten bins of 40 differ from their mean by 0.05 or so.
    assert found["calibrated"]["calibration_error"] < 0.1


def test_a_probe_sees_what_is_in_the_state_of_other_records_only() -> None:
    rng = np.random.default_rng(0)
    records = np.repeat(np.arange(30), 4).tolist()
    right = rng.random(120) < 0.5
    states = rng.standard_normal((120, 32))
    blind = auroc(probe(states, right, records), right, records)
    assert blind.low < 0.5 < blind.high
    states[:, 3] = 4.0 * right
    assert auroc(probe(states, right, records), right, records).value > 0.95
    assert set(probe(np.zeros((120, 8)), right, records)) == {0.0}
    seen = across(records, lambda train, test: np.full(len(test), len({records[i] for i in train})))
    # Five folds of six records each.
    assert seen is not None and set(seen) == {24.0}
    assert across([0, 0], lambda train, test: np.zeros(len(test))) is None


def test_every_way_to_sample_meets_an_entropy() -> None:
    logits = 3 * torch.randn(64, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain = entropy(logits, Sampling(temperature=1.0))
    for target in (0.2, 0.5 * plain, 0.9 * plain):
        assert entropy(logits, at_entropy(logits, "temperature", target)) == pytest.approx(target, abs=1e-4)
        for method in ("top_p", "min_p"):
            # In one of 64 places a token more: log 2 at most.
            assert entropy(logits, at_entropy(logits, method, target)) == pytest.approx(target, abs=math.log(2) / 64)
    even = torch.zeros(1, 4)
    assert entropy(even, METHODS["temperature"](1.0)) == pytest.approx(math.log(4))
    assert entropy(even, METHODS["top_p"](0.5)) == pytest.approx(math.log(2))
    assert entropy(even, GREEDY) == 0


def test_how_much_texts_differ() -> None:
    assert distinct([" Red", "red ", "blue"]) == 0.5
    assert (distinct(["a", "a"]), distinct(["a", "b"]), distinct(["a"])) == (0, 1, 0)
    assert distinct_ngrams(["a b c d", "A b c d"]) == 0.5
    assert distinct_ngrams(["a b", ""]) is None
