"""Gates on the laboratory itself: on arms that differ in nothing, how often would it say that they differ?

10,000 made-up experiments for each kind of noise and each number of comparisons. The promise is a family error of at
most 5.5 % over the whole procedure: a look at 5 seeds, and, where nothing was seen, another at 10.
"""

import numpy as np
import pytest

from diffattn import stats
from diffattn.lab.losses import failed_runs
from diffattn.lab.verdict import Finding, Losses, Rules, judge

DRAWS = 10_000
MOST_FALSE_ALARMS = 0.055
LOOKS = Rules(baseline="softmax").looks

# Held-out nats of 60 real runs: byte-level perceptrons (8 bytes of context) of 32, 48 and 64 hidden units on the
# standard library, 250 steps, 20 seeds each. What remains after each size's mean is the noise of real training.
REAL_RUNS = np.array(
    [
        [2.428, 2.4671, 2.4506, 2.3845, 2.4136, 2.4269, 2.4224, 2.4413, 2.4775, 2.4287]
        + [2.4724, 2.4377, 2.4678, 2.4496, 2.4399, 2.4913, 2.4801, 2.498, 2.5035, 2.4156],
        [2.4051, 2.4045, 2.425, 2.3101, 2.3575, 2.3672, 2.3565, 2.3801, 2.4129, 2.3532]
        + [2.3752, 2.3969, 2.4054, 2.3732, 2.367, 2.4198, 2.3876, 2.4434, 2.4383, 2.3709],
        [2.352, 2.3419, 2.3787, 2.2855, 2.3206, 2.3294, 2.3083, 2.3178, 2.3607, 2.3168]
        + [2.3374, 2.3249, 2.3533, 2.3119, 2.3048, 2.3452, 2.3552, 2.3921, 2.3962, 2.3184],
    ]
)
RESIDUALS = (REAL_RUNS - REAL_RUNS.mean(axis=1, keepdims=True)).ravel()

kinds = pytest.mark.parametrize("kind", ["normal", "t with 3 degrees", "pooled residuals"])
families = pytest.mark.parametrize("comparisons", range(1, 7))


def same_arms(kind: str, comparisons: int, seeds: int, draws: int = DRAWS) -> np.ndarray:
    """Losses [draws, arms, seeds] of the baseline (first) and of arms that are no different."""
    rng = np.random.default_rng([comparisons, seeds])
    shape = (draws, comparisons + 1, seeds)
    if kind == "normal":
        return rng.normal(size=shape)
    return rng.standard_t(3, size=shape) if kind == "t with 3 degrees" else rng.choice(RESIDUALS, size=shape)


def called_different(losses: np.ndarray, seeds: int, alpha: float, comparisons: int) -> np.ndarray:
    """Whether a look at the first seeds calls each arm different: [draws, arms]."""
    d = (losses[:, 1:] - losses[:, :1])[..., :seeds]
    mean, half = stats.paired_interval(d, alpha, comparisons)
    return np.abs(mean) > half


def family_rate(losses: np.ndarray, looks: tuple[tuple[int, float], ...], comparisons: int) -> float:
    """Share of experiments in which any look calls any arm different: stopping at the first is the same event."""
    alarms = [called_different(losses, n, alpha, comparisons).any(axis=1) for n, alpha in looks]
    return float(np.mean(np.logical_or.reduce(alarms)))


@kinds
@families
def test_family_false_alarms_over_both_looks_stay_below_the_gate(kind: str, comparisons: int) -> None:
    rate = family_rate(same_arms(kind, comparisons, 10), LOOKS, comparisons)
    assert 0.01 < rate <= MOST_FALSE_ALARMS  # a procedure that never speaks would pass from above alone


def test_without_a_correction_for_the_comparisons_the_gate_is_broken() -> None:
    assert family_rate(same_arms("normal", 4, 10), LOOKS, comparisons=1) > 2 * MOST_FALSE_ALARMS


def test_two_looks_at_five_percent_each_break_the_gate() -> None:
    assert family_rate(same_arms("normal", 1, 10), ((5, 0.05), (10, 0.05)), 1) > 1.3 * MOST_FALSE_ALARMS


def test_looking_after_every_seed_breaks_the_gate() -> None:
    looks = tuple((n, 0.05) for n in range(3, 11))
    assert family_rate(same_arms("normal", 1, 10), looks, 1) > 2 * MOST_FALSE_ALARMS


@kinds
@families
def test_the_screens_intervals_cover_all_arms_at_once(kind: str, comparisons: int) -> None:
    losses = same_arms(kind, comparisons, seeds=3)
    df = 2 * (comparisons + 1)
    sd = np.sqrt(losses.var(axis=2, ddof=1).mean(axis=1))
    half = stats.dunnett_critical(comparisons, df) * sd * np.sqrt(2 / 3)
    mean = (losses[:, 1:] - losses[:, :1]).mean(axis=2)
    assert np.mean((np.abs(mean) <= half[:, None]).all(axis=1)) >= 0.94


def test_the_screens_intervals_for_one_arm_alone_do_not_cover_six() -> None:
    losses = same_arms("normal", 6, seeds=3)
    half = stats.dunnett_critical(1, 14) * np.sqrt(losses.var(axis=2, ddof=1).mean(axis=1) * 2 / 3)
    mean = (losses[:, 1:] - losses[:, :1]).mean(axis=2)
    assert np.mean((np.abs(mean) <= half[:, None]).all(axis=1)) < 0.90


@pytest.mark.parametrize("size", range(3))
def test_the_splits_of_one_real_pool_of_runs_are_called_different_no_more_often(size: int) -> None:
    # All 184,756 ways to call ten of the twenty runs the baseline and the other ten the arm.
    assert 0.01 < stats.false_alarms_over_splits(REAL_RUNS[size], alpha=0.05) <= MOST_FALSE_ALARMS


def as_losses(values: np.ndarray, scale: float = 0.03) -> Losses:
    """One experiment [arms, seeds] as the losses of a plan, around 1.75 nats."""
    names = ["softmax", *(f"arm{i}" for i in range(1, len(values)))]
    arms = zip(names, values, strict=True)
    return Losses(full={arm: {s: 1.75 + scale * float(x) for s, x in enumerate(row)} for arm, row in arms})


@pytest.mark.parametrize(("seeds", "alpha"), LOOKS)
def test_judge_decides_as_the_simulated_procedure_does(seeds: int, alpha: float) -> None:
    losses = same_arms("normal", 2, seeds, draws=40)
    losses[:, 1] -= 1.5  # a real lead of 1.5 sd, so that both outcomes occur
    expected = called_different(losses, seeds, alpha, 2)
    rules = Rules(baseline="softmax")
    found = [[f.verdict in ("BETTER", "WORSE") for f in judge(as_losses(x), rules)] for x in losses]
    assert np.array_equal(found, expected)
    assert 0.1 < expected[:, 0].mean() < 1


@pytest.mark.parametrize("seeds", [5, 10])
def test_runs_without_failures_are_almost_never_called_unstable(seeds: int) -> None:
    losses = same_arms("normal", 3, seeds, draws=1000)
    alarms = [any(failed_runs(as_losses(x).full, "softmax").values()) for x in losses]
    assert np.mean(alarms) <= 0.002


@pytest.mark.parametrize("seeds", [5, 10])
@pytest.mark.parametrize("ruler", [True, False])
def test_a_planted_worse_arm_is_worse_and_a_planted_copy_is_nothing(seeds: int, ruler: bool) -> None:
    rng = np.random.default_rng(seeds)
    verdicts: dict[str, list[str]] = {"worse": [], "copy": [], "redrawn": []}
    for _ in range(25):
        base = {s: float(x) for s, x in enumerate(rng.normal(1.75, 0.02, size=seeds))}
        # What a thirtieth of the learning rate does to short runs: 0.7 nats, and a spread of its own.
        worse = {s: float(x) for s, x in enumerate(rng.normal(2.45, 0.03, size=seeds))}
        redrawn = {s: float(x) for s, x in enumerate(rng.normal(1.75, 0.02, size=seeds))}
        losses = Losses(
            full={"softmax": base, "worse": worse, "copy": dict(base), "redrawn": redrawn},
            ruler={s: x - 0.05 + 0.005 * float(rng.normal()) for s, x in base.items()} if ruler else {},
        )
        for finding in judge(losses, Rules(baseline="softmax")):
            verdicts[finding.arm].append(finding.verdict)
    assert (
        verdicts["worse"].count("WORSE") >= 24
    )  # an arm far off must not pass as unstable; its spread seldom looks so
    assert set(verdicts["copy"]) == {"NO DIFFERENCE"}
    called = sum(word in ("BETTER", "WORSE", "TOO SMALL") for word in verdicts["redrawn"])
    assert called <= 3  # at most 3 % of 25: four or more happen once in 160


def test_a_screen_never_says_better() -> None:
    for x in same_arms("normal", 2, 4, draws=20):
        x[1] -= 50
        findings: list[Finding] = judge(as_losses(x), Rules(baseline="softmax"))
        assert [finding.verdict for finding in findings] == ["SCREEN", "SCREEN"]
        assert all(" is better" not in finding.sentence for finding in findings)
