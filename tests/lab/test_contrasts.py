"""Interactions are declared in the plan, counted among its comparisons, and judged by the rule of the arms."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from diffattn import stats
from diffattn.lab import forecast, manifest
from diffattn.lab.arms import Arm
from diffattn.lab.contrasts import judge_contrasts
from diffattn.lab.effects import detectable_in_screen
from diffattn.lab.losses import Losses
from diffattn.lab.plan import Plan, resolve, select
from diffattn.lab.report.words import differences, inequalities
from diffattn.lab.rules import Contrast, Rules
from diffattn.lab.runs import judged_runs
from diffattn.variants.softmax import Softmax
from support.plans import tiny_plan, tiny_task

CONTRAST = Contrast(
    name="rope_against_alibi",
    first=("v1", "softmax"),
    second=("v1_alibi", "softmax_alibi"),
    lead="V1's lead over softmax",
    under=("under rope", "under ALiBi"),
)
RULES = Rules(baseline="softmax", comparisons=4, confirm_runs=90, confirm_minutes=12, setting="0.33M parameters")


def losses(seeds: int, interaction: float = 0.0, sd: float = 0.02, ruler: float = 0.1, at: int = 0) -> Losses:
    """V1 is ahead by 0.05 under ALiBi and by 0.05 + interaction under rope."""
    draw = np.random.default_rng(at)
    centres = {"softmax": 2.0, "v1": 1.95 - interaction, "softmax_alibi": 2.1, "v1_alibi": 2.05}
    full = {arm: {s: float(c + sd * draw.normal()) for s in range(seeds)} for arm, c in centres.items()}
    return Losses(full=full, ruler={s: loss - ruler for s, loss in full["softmax"].items()})


def judged(found: Losses, rules: Rules = RULES):
    (finding,) = judge_contrasts(found, rules, [CONTRAST])
    return finding


def by_hand(found: Losses) -> np.ndarray:
    v1, softmax, v1_alibi, alibi = (np.array(list(found.full[arm].values())) for arm in CONTRAST.arms)
    return (v1 - softmax) - (v1_alibi - alibi)


def test_at_a_look_the_interval_is_the_paired_one_of_the_differences_of_differences():
    found = losses(10)
    mean, half = stats.paired_interval(by_hand(found), 0.03, 4)
    finding = judged(found)
    assert (finding.mean, finding.low, finding.high) == pytest.approx((mean, mean - half, mean + half))
    assert finding.n == 10


def test_in_a_screen_the_interval_rests_on_four_times_the_pooled_variance():
    found = losses(3)
    sd, df = stats.pooled_sd([list(runs.values()) for runs in found.full.values()])
    half = stats.t_critical(df + 1, 0.05, 4) * sd * math.sqrt(4 / 3)
    finding = judged(found)
    assert finding.verdict == "SCREEN"
    assert finding.high == pytest.approx(by_hand(found).mean() + half)


@pytest.mark.parametrize(("interaction", "word", "side"), [(0.15, "LARGER", "larger"), (-0.15, "SMALLER", "smaller")])
def test_a_lead_that_is_another_elsewhere_is_seen_and_said_in_words(interaction, word, side):
    finding = judged(losses(10, interaction))
    assert finding.verdict == word
    assert f"under ALiBi: {side} under rope by 0.1" in finding.sentence
    assert finding.sentence.startswith("V1's lead over softmax is ")
    assert finding.sentence.endswith("Per seed (v1 - softmax) - (v1_alibi - softmax_alibi); 0.33M parameters.")


def test_a_lead_that_is_the_same_is_no_difference_or_open_depending_on_the_noise():
    # The margin is 0.43 of a ruler of 0.1 nats.
    assert judged(losses(10, sd=0.005)).verdict == "NO DIFFERENCE"
    assert judged(losses(10, sd=0.05)).verdict == "UNRESOLVED"
    assert judged(losses(10, sd=0.05, ruler=0.0)).verdict == "BLIND"
    assert judged(losses(10, interaction=0.02, sd=0.002)).verdict == "TOO SMALL"


def test_a_screen_says_how_to_confirm_all_four_arms():
    assert "`--confirm v1 v1_alibi softmax_alibi` adds 90 fresh runs" in judged(losses(3, 0.15)).sentence


def test_a_failed_run_of_any_of_the_four_arms_leaves_no_verdict():
    found = losses(5, 0.15)
    found.full["softmax_alibi"][2] = math.nan
    finding = judged(found)
    assert (finding.verdict, finding.mean) == ("UNSTABLE", None)
    assert "softmax_alibi" in finding.sentence


def test_four_seeds_that_no_arm_shares_say_nothing():
    found = losses(5)
    found.full["v1"] = {seed + 5: loss for seed, loss in found.full["v1"].items()}
    assert judge_contrasts(found, RULES, [CONTRAST]) == []


def test_without_an_interaction_false_alarms_stay_below_their_share():
    # One of four comparisons at alpha 0.02: Bonferroni leaves it 0.005; 3 standard errors of 300 draws above that.
    words = [judged(losses(5, at=at)).verdict for at in range(300)]
    alarms = sum(word in ("LARGER", "SMALLER", "TOO SMALL") for word in words) / len(words)
    assert alarms <= 0.005 + 3 * math.sqrt(0.005 * 0.995 / len(words))


def test_tokens_are_contrasted_as_doublings_by_a_test_on_ranks():
    rules = Rules(baseline="softmax", comparisons=2, metric="tokens_to_50", token_budget=1e5, setting="recall")
    full = {"softmax": 4e4, "v1": 1e4, "softmax_alibi": 4e4, "v1_alibi": 2e4}
    # A half, then a quarter of the tokens; spread a little, the same for all arms of a seed.
    found = Losses(full={arm: {s: tokens * 1.01**s for s in range(10)} for arm, tokens in full.items()})
    finding = judged(found, rules)
    assert finding.verdict == "LARGER"
    assert finding.mean == pytest.approx(-1.0)
    assert (
        "is a factor of 4.00 under rope and 2.00 under ALiBi: larger under rope by a factor of 2.00" in finding.sentence
    )
    screen = judged(Losses(full={arm: {s: runs[s] for s in range(3)} for arm, runs in found.full.items()}), rules)
    assert (screen.verdict, screen.low) == ("SCREEN", None)


def contrasted_plan() -> Plan:
    arms = tuple(
        Arm(name=name, mixer=Softmax(heads=heads), model=model)
        for name, heads, model in (
            ("softmax", 4, {}),
            ("v1", 2, {}),
            ("softmax_alibi", 4, {"positions": "alibi"}),
            ("v1_alibi", 2, {"positions": "alibi"}),
        )
    )
    return tiny_plan(tiny_task(arms=arms, contrasts=(CONTRAST,)))


def test_a_plan_with_contrasts_and_settings_survives_json():
    plan = contrasted_plan()
    plan.validate()
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.hash() == plan.hash()


def test_another_contrast_or_setting_is_another_plan():
    task = contrasted_plan().tasks[0]
    unset = tuple(replace(arm, model={}) for arm in task.arms)
    hashes = {tiny_plan(changed).hash() for changed in (task, replace(task, contrasts=()), replace(task, arms=unset))}
    assert len(hashes) == 3


def test_contrasts_count_among_the_comparisons():
    assert contrasted_plan().tasks[0].comparisons == 3 + 1


@pytest.mark.parametrize(
    ("contrast", "says"),
    [
        (replace(CONTRAST, second=("v1", "softmax")), "four different arms"),
        (replace(CONTRAST, second=("v1_none", "softmax_none")), "no arm 'v1_none'"),
        (replace(CONTRAST, name="v1"), "used once"),
    ],
)
def test_a_contrast_without_four_arms_or_a_name_of_its_own_is_refused(contrast, says):
    with pytest.raises(ValueError, match=says):
        tiny_plan(replace(contrasted_plan().tasks[0], contrasts=(contrast,))).validate()


def test_a_selection_keeps_the_contrasts_whose_arms_it_keeps():
    task = contrasted_plan().tasks[0]
    assert select(task, ["v1", "v1_alibi", "softmax_alibi"]).contrasts == (CONTRAST,)
    assert select(task, ["v1"]).contrasts == ()


def test_an_arms_setting_reaches_its_model_alone():
    runs = {run.arm: run.config.model.positions for run in judged_runs(contrasted_plan())}
    assert runs == {"softmax": "rope", "v1": "rope", "softmax_alibi": "alibi", "v1_alibi": "alibi"}


@pytest.mark.parametrize(("model", "says"), [({"context": 16}, "cannot be set"), ({"position": "x"}, "'positions'")])
def test_a_setting_that_arms_share_or_that_does_not_exist_is_refused(model, says):
    task = contrasted_plan().tasks[0]
    with pytest.raises(ValueError, match=says):
        tiny_plan(replace(task, arms=(*task.arms, Arm(name="x", mixer=Softmax(heads=4), model=model)))).validate()


def test_a_setting_of_one_arm_is_named_among_what_was_not_equal():
    plan = contrasted_plan()
    around = {"recall": manifest.Surroundings("recall")}
    content = manifest.plan_json(plan, plan, command="", surroundings=around, chosen={}, runs=[])
    measured = {"learning_rate": 1e-2, "tokens_per_second": None}
    arms = {arm["name"]: {**arm, **measured} for arm in content["tasks"][0]["arms"]}
    assert "positions alibi against rope" in differences(arms["softmax_alibi"], arms["softmax"])
    assert "positions" not in differences(arms["v1"], arms["softmax"])
    assert "positions" in inequalities(arms, "softmax")


def test_a_dry_run_tells_the_question_its_limits_and_what_is_contrasted(monkeypatch):
    monkeypatch.setattr(forecast, "measure_speed", lambda run, threads: (5e10, "as given"))
    plan = replace(contrasted_plan(), question="Is it only RoPE?", limits="Too few seeds.")
    told = forecast.describe(plan, workers=1, threads=1)
    for words in (
        "Is it only RoPE?",
        "Too few seeds.",
        "V1's lead over softmax, under rope against under ALiBi: (v1 - softmax) - (v1_alibi - softmax_alibi)",
    ):
        assert words in told


def test_an_interaction_needs_twice_the_variance_to_be_seen():
    # One comparison with many degrees of freedom: both critical values are Student's, so only sqrt 2 is left.
    one, four = (detectable_in_screen((0.02, 1000), 3, 1, runs) for runs in (2, 4))
    assert four == pytest.approx(math.sqrt(2) * one, rel=1e-3)


def test_all_arms_of_a_contrasted_plan_have_equal_parameters():
    for arm in resolve(contrasted_plan().tasks[0]).values():
        assert abs(arm.mismatch_percent) < 0.5
