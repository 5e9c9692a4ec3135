"""Losses in, verdicts out: each rule of the comparison has a case where it decides, and each sentence its wording."""

import json
import math
import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from diffattn import stats
from diffattn.lab.losses import failed_runs
from diffattn.lab.sentence import describe_setting
from diffattn.lab.verdict import Finding, Losses, Rules, judge

RULES = Rules(baseline="softmax", setting="330k non-embedding parameters")
SPREAD = np.array([-1.2, 0.7, 0.1, 1.1, -0.7, 0.4, -0.9, 0.8, -0.5, 0.2, 0.6, -0.3])
OTHER = np.array([0.5, 0.9, -1.3, -0.2, 0.1, -0.6, 1.0, 0.3, -1.1, 0.4, -0.4, 0.7])
"""Two lists of noise with a mean near 0 and a standard deviation near 0.8."""


def runs(level: float, spread: np.ndarray = SPREAD, n: int = 5, sd: float = 0.01) -> dict[int, float]:
    """Seed -> loss."""
    return {seed: level + sd * float(x) for seed, x in enumerate(spread[:n])}


def one_arm(level: float, n: int = 5, ruler: float | None = -0.08, sd: float = 0.01) -> Losses:
    """Baseline at 1.75 nats, V1 at a level of its own, the ruler at its effect."""
    return Losses(
        full={"softmax": runs(1.75, n=n, sd=sd), "V1": runs(level, OTHER, n, sd)},
        ruler={} if ruler is None else runs(1.75 + ruler, OTHER, n, sd),
    )


def only(losses: Losses, rules: Rules = RULES) -> Finding:
    """The finding of the only arm."""
    (finding,) = judge(losses, rules)
    return finding


def test_better_gives_difference_interval_seeds_and_worth_in_tokens() -> None:
    finding = only(one_arm(1.69))
    assert finding.verdict == "BETTER"
    assert finding.mean is not None and finding.low is not None and finding.high is not None
    assert re.match(
        r"V1 is better: -0\.0\d\d nats \(-0\.\d\d\d to -0\.\d\d\d, 5 seeds\), worth \d+ % of tokens\. ",
        finding.sentence,
    )
    gain = finding.numbers["ruler"]["gain"]  # pyright: ignore[reportIndexIssue]
    assert finding.worth_percent_of_tokens == pytest.approx(100 * (1.25 ** (-finding.mean / gain) - 1))
    assert finding.sentence.endswith("Against softmax; 330k non-embedding parameters.")


def test_worse_mirrors_better() -> None:
    finding = only(one_arm(1.81))
    assert finding.verdict == "WORSE"
    assert re.match(
        r"V1 is worse: \+0\.0\d\d nats \(\+0\.\d\d\d to \+0\.\d\d\d, 5 seeds\), worth -\d+ % of", finding.sentence
    )


def test_a_metric_that_should_rise_turns_the_verdict_round() -> None:
    losses = one_arm(1.81, ruler=0.08)
    assert only(losses, replace(RULES, lower_is_better=False)).verdict == "BETTER"
    assert only(losses).verdict == "WORSE"


def test_the_worth_of_a_difference_far_beyond_the_ruler_is_a_bound() -> None:
    assert "worth more than 95 % of tokens" in only(one_arm(1.35)).sentence


def test_a_seen_difference_inside_the_margin_is_too_small_to_matter() -> None:
    finding = only(one_arm(1.74, sd=0.001))
    assert finding.verdict == "TOO SMALL"
    assert "too small to matter by the margin fixed beforehand (0.0" in finding.sentence


def test_an_interval_inside_the_margin_is_no_difference_and_names_the_margin_in_tokens() -> None:
    finding = only(one_arm(1.75, sd=0.002))
    assert finding.verdict == "NO DIFFERENCE"
    assert re.search(r"no difference larger than 0\.03\d+ nats \(10 % of tokens\)", finding.sentence)
    own = only(one_arm(1.75, sd=0.002, ruler=None), replace(RULES, margin=0.05))
    assert own.verdict == "NO DIFFERENCE"
    assert "larger than 0.0500 nats" in own.sentence or "larger than 0.050 nats" in own.sentence


def test_unresolved_tells_what_these_seeds_see_and_how_many_the_margin_needs() -> None:
    finding = only(one_arm(1.76, sd=0.06, ruler=-0.3))
    assert finding.verdict == "UNRESOLVED"
    assert re.match(
        r"V1: between -0\.\d+ and \+0\.\d+ nats; 5 seeds can see 0\.\d+; \d+ would see the margin of 0\.\d+\. ",
        finding.sentence,
    )


def test_a_setting_that_did_not_see_the_ruler_is_blind() -> None:
    finding = only(one_arm(1.755, ruler=0.0))
    assert finding.verdict == "BLIND"
    assert "this setting did not see 25 % more tokens; it cannot answer" in finding.sentence
    assert finding.worth_percent_of_tokens is None


def test_a_blind_setting_still_says_what_it_saw_but_not_what_it_is_worth() -> None:
    finding = only(one_arm(1.95, ruler=0.0))
    assert finding.verdict == "WORSE"
    assert "worth in tokens unknown" in finding.sentence


def test_without_ruler_and_margin_nothing_can_be_called_small_and_the_sentence_says_so() -> None:
    finding = only(one_arm(1.752, ruler=None, sd=0.002))
    assert finding.verdict == "UNRESOLVED"
    assert "no ruler and no margin of yours" in finding.sentence
    assert "whether it matters is open" in only(one_arm(1.69, ruler=None)).sentence


@pytest.mark.parametrize("n", [3, 4])
def test_fewer_than_five_seeds_are_a_screen_with_one_width_for_all_arms(n: int) -> None:
    losses = one_arm(1.25, n)
    losses.full["V2"] = runs(1.75, SPREAD[::-1], n)
    first, second = judge(losses, replace(RULES, confirm_runs=7, confirm_minutes=35.2))
    assert first.verdict == second.verdict == "SCREEN"
    assert first.high is not None and first.mean is not None and second.high is not None and second.mean is not None
    assert first.high - first.mean == pytest.approx(second.high - second.mean)
    assert re.match(
        rf"V1: {n} seeds: -0\.\d+ \+- 0\.\d+ nats, no verdict; "
        r"`--confirm V1` adds 7 fresh runs of this task, about 35 min\.",
        first.sentence,
    )


def test_a_screen_can_see_what_its_own_interval_excludes_from_zero_with_80_percent_power() -> None:
    losses = one_arm(1.25, 3)
    losses.full["V2"] = runs(1.75, 9 * SPREAD[::-1], 3)
    first, second = judge(losses, RULES)
    seen = first.numbers["detectable_difference"]
    assert seen == second.numbers["detectable_difference"]
    rng = np.random.default_rng(0)
    sd, df = stats.pooled_sd([list(values.values()) for values in losses.full.values()])
    # Many screens of three arms with this true difference: how often Dunnett's interval lies on its side of 0.
    means = rng.normal(size=(20_000, 2)) * sd / np.sqrt(3)
    noise = sd * np.sqrt(rng.chisquare(df, 20_000) / df)
    half = stats.dunnett_critical(2, df) * noise * np.sqrt(2 / 3)
    # 20,000 draws: three standard errors of a share of 0.8 are 0.0085.
    assert np.mean(seen + means[:, 0] - means[:, 1] > half) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(("n", "words"), [(1, "1 seed"), (2, "2 seeds")])
def test_fewer_than_three_seeds_have_neither_interval_nor_verdict(n: int, words: str) -> None:
    finding = only(one_arm(1.25, n=n))
    assert (finding.verdict, finding.low, finding.high) == ("NO VERDICT", None, None)
    assert finding.numbers["detectable_difference"] is None
    assert f"{words}: -0." in finding.sentence
    assert "no interval, no verdict (fewer than 3 seeds allow no interval worth reading)" in finding.sentence


def test_seeds_between_looks_are_exploratory_and_change_nothing() -> None:
    five, seven = only(one_arm(1.70)), only(one_arm(1.70, n=7))
    assert (seven.verdict, seven.mean, seven.low, seven.n) == (five.verdict, five.mean, five.low, 5)
    assert seven.numbers["exploratory_seeds"] == [5, 6]
    assert "2 seeds after the look: exploratory, not judged" in seven.sentence


def test_ten_seeds_are_the_second_look_at_its_own_alpha() -> None:
    finding = only(one_arm(1.70, n=10))
    assert (finding.n, finding.numbers["alpha"]) == (10, 0.03)
    assert finding.numbers["verdict_at_looks"] == {"5": "BETTER", "10": "BETTER"}


def test_an_earlier_look_that_had_decided_is_not_hidden() -> None:
    losses = one_arm(1.70, n=10)
    for seed in range(5, 10):
        losses.full["V1"][seed] += 0.1
    assert "; the look at 5 seeds had said BETTER" in only(losses).sentence


def test_a_plan_may_declare_one_look_of_its_own() -> None:
    own = replace(RULES, looks=((6, 0.05),))
    assert only(one_arm(1.70, n=6), own).n == 6
    early = only(one_arm(1.70, n=5), own)
    assert early.verdict == "SCREEN" and "the first look is at 6 seeds" in early.sentence


@pytest.mark.parametrize(
    ("looks", "message"),
    [
        (((3, 0.05),), "5 or more"),
        (((10, 0.03), (5, 0.02)), "rising"),
        (((5, 0.05), (10, 0.05)), "sum to at most 0.05"),
    ],
)
def test_looks_that_break_the_promise_are_refused(looks: tuple[tuple[int, float], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rules(baseline="softmax", looks=looks)


def test_more_comparisons_make_wider_intervals_and_undeclared_arms_are_refused() -> None:
    losses = one_arm(1.70)
    alone, of_six = only(losses), only(losses, replace(RULES, comparisons=6))
    assert alone.high is not None and of_six.high is not None and of_six.high > alone.high
    losses.full["V2"] = runs(1.75)
    with pytest.raises(ValueError, match="declares only 1"):
        judge(losses, replace(RULES, comparisons=1))


def test_a_seed_without_its_pair_takes_no_part() -> None:
    losses = one_arm(1.70, n=6)
    del losses.full["softmax"][2]
    assert only(losses).numbers["seeds"] == [0, 1, 3, 4, 5]


def test_sign_flip_p_appears_from_six_seeds_and_correlation_always() -> None:
    assert only(one_arm(1.70)).numbers["sign_flip_p"] is None
    finding = only(one_arm(1.70, n=10))
    assert finding.numbers["sign_flip_p"] == pytest.approx(2 / 2**10)
    expected = np.corrcoef(SPREAD[:10], OTHER[:10])[0, 1]
    assert finding.numbers["correlation_over_seeds"] == pytest.approx(expected)


def with_quarter(full: float, quarter: float, sd: float = 0.005) -> Losses:
    losses = Losses(full={"softmax": runs(1.75, sd=sd), "V1": runs(full, OTHER, sd=sd)})
    early = {"softmax": runs(2.2, OTHER[::-1], sd=sd), "V1": runs(2.2 + quarter, SPREAD[::-1], sd=sd)}
    return replace(losses, quarter=early)


@pytest.mark.parametrize(
    ("full", "quarter", "words"),
    [
        (1.70, -0.15, "at a quarter of the tokens -0.149: the lead shrinks"),
        (1.60, -0.05, ": the lead grows"),
        (1.60, +0.15, ": the lead flips"),
        (1.70, -0.06, ": cannot tell whether the lead shrinks or grows"),
        (1.90, +0.30, ": the lag shrinks"),
    ],
)
def test_the_lead_along_tokens_is_told_where_its_change_was_seen(full: float, quarter: float, words: str) -> None:
    assert words in only(with_quarter(full, quarter)).sentence


def test_a_lead_that_was_there_early_and_is_gone_is_told_too() -> None:
    finding = only(with_quarter(1.75, -0.2), replace(RULES, margin=0.001))
    assert finding.verdict == "UNRESOLVED" and "the lead shrinks" in finding.sentence


@pytest.mark.parametrize("loss", [math.nan, math.inf, 4.0])
def test_a_failed_run_makes_the_arm_unstable_without_a_verdict_on_its_loss(loss: float) -> None:
    losses = one_arm(1.60)
    losses.full["V1"][3] = loss
    finding = only(losses)
    assert (finding.verdict, finding.mean, finding.low) == ("UNSTABLE", None, None)
    assert "V1 is unstable: 1 of 5 runs failed (softmax 0 of 5; Fisher's exact p = 1)" in finding.sentence
    assert finding.numbers["failed_seeds"] == [3]


def test_a_failed_run_of_the_baseline_leaves_nothing_to_compare_with() -> None:
    losses = one_arm(1.60)
    losses.full["softmax"][0] = math.nan
    finding = only(losses)
    assert finding.verdict == "UNSTABLE" and "the baseline is unstable" in finding.sentence


def test_two_failures_do_not_hide_behind_each_other() -> None:
    losses = one_arm(1.75)
    losses.full["V1"] |= {1: 3.0, 4: 3.1}
    assert failed_runs(losses.full, "softmax") == {"softmax": [], "V1": [1, 4]}


def test_an_arm_that_is_evenly_bad_has_not_failed_but_one_that_scatters_has() -> None:
    losses = one_arm(3.0)
    assert failed_runs(losses.full, "softmax")["V1"] == []
    losses.full["V1"] = {0: 3.0, 1: 5.0, 2: 2.6, 3: 7.0, 4: 4.0}
    assert failed_runs(losses.full, "softmax")["V1"] == [0, 1, 2, 3, 4]


def test_a_copy_is_identical_and_nothing_else() -> None:
    losses = one_arm(1.75)
    losses.full["V1"] = dict(losses.full["softmax"])
    finding = only(losses)
    assert (finding.verdict, finding.mean) == ("NO DIFFERENCE", 0.0)
    assert finding.sentence.startswith("V1: identical to softmax on all 5 seeds")


def test_one_difference_on_every_seed_is_judged_but_marked() -> None:
    losses = one_arm(1.75)
    losses.full["V1"] = {seed: x + 0.125 for seed, x in losses.full["softmax"].items()}
    finding = only(losses)
    assert finding.verdict == "WORSE" and "the same difference on every seed" in finding.sentence


@pytest.mark.parametrize(("n", "word"), [(3, "SCREEN"), (5, "WORSE")])
def test_losses_that_no_seed_changes_are_remarked_on(n: int, word: str) -> None:
    losses = Losses(full={"softmax": dict.fromkeys(range(n), 1.75), "V1": dict.fromkeys(range(n), 1.8)})
    finding = only(losses)
    assert finding.verdict == word
    remark = "V1 and softmax each have identical losses on all seeds: the seeds changed nothing"
    assert remark in finding.sentence
    assert remark not in only(one_arm(1.8, n=n)).sentence


TOKENS = Rules(baseline="softmax", metric="tokens_to_50", unit="tokens", token_budget=1e6)


def test_tokens_to_half_are_compared_by_ranks_with_never_counted() -> None:
    slow = [6e5, 7e5, math.inf, 8e5, math.inf, 5e5, 9e5, math.inf, 7e5, 6e5]
    losses = Losses(full={"softmax": dict(enumerate(slow)), "V1": dict(enumerate(4e5 + 1e4 * SPREAD[:10]))})
    finding = only(losses, TOKENS)
    assert finding.verdict == "BETTER"
    assert "reached 50 % in 10 of 10 runs, median 402k tokens; softmax in 7 of 10, median 750k" in finding.sentence
    assert finding.numbers["median_of_baseline"] == 7.5e5


def test_five_seeds_never_decide_by_ranks_and_the_sentence_says_how_many_do() -> None:
    losses = Losses(full={"softmax": dict.fromkeys(range(5), math.inf), "V1": dict.fromkeys(range(5), 1e5)})
    finding = only(losses, TOKENS)
    assert finding.verdict == "UNRESOLVED"
    assert "5 seeds cannot decide by ranks, 7 can" in finding.sentence


def test_arms_that_never_reach_it_are_not_called_equal() -> None:
    never = {"softmax": dict.fromkeys(range(10), math.inf), "V1": dict.fromkeys(range(10), math.inf)}
    assert only(Losses(full=never), TOKENS).verdict == "UNRESOLVED"


def test_a_tokens_screen_counts_and_says_no_more() -> None:
    losses = Losses(full={"softmax": {0: 1e5, 1: math.inf, 2: math.inf}, "V1": {0: 1e5, 1: 2e5, 2: 1e5}})
    finding = only(losses, TOKENS)
    assert finding.verdict == "SCREEN" and "softmax in 1 of 3, median never, no verdict" in finding.sentence
    two = Losses(full={arm: {seed: runs[seed] for seed in (0, 1)} for arm, runs in losses.full.items()})
    assert only(two, TOKENS).verdict == "NO VERDICT" and "fewer than 3 seeds" in only(two, TOKENS).sentence
    with pytest.raises(ValueError, match="token_budget"):
        Rules(baseline="softmax", metric="tokens_to_50")


def test_findings_are_json() -> None:
    losses = one_arm(1.70, n=1)
    losses.full["V2"] = {0: math.nan}
    assert [json.loads(json.dumps(asdict(f), allow_nan=False))["arm"] for f in judge(losses, RULES)] == ["V1", "V2"]


def test_the_setting_names_size_tokens_corpus_policy_and_what_was_not_equal() -> None:
    words = describe_setting(
        parameters=330_000,
        tokens=717_000,
        corpus="standard library, bytes",
        learning_rate_policy="one shared, untuned learning rate",
        not_equal="FFN width",
    )
    assert words == (
        "330k non-embedding parameters, 717k tokens, 2.2 tokens per parameter, standard library, bytes, "
        "one shared, untuned learning rate; not equal: FFN width"
    )
