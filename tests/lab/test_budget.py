"""Arms cost the same, and a plan says beforehand what it costs and what it can see."""

from dataclasses import replace

import pytest

from diffattn import recipes
from diffattn.lab import forecast
from diffattn.lab.budget import LEFT_ALONE_PERCENT, match, run_flops
from diffattn.lab.losses import Losses
from diffattn.lab.plan import Arm, resolve
from diffattn.lab.runs import judged_runs
from diffattn.lab.verdict import Rules, judge
from diffattn.model.config import ModelConfig
from diffattn.variants.diff_v2 import DiffV2
from diffattn.variants.softmax import Softmax
from support.plans import tiny_plan, tiny_task


@pytest.mark.parametrize("name", recipes.names())
def test_arms_of_every_recipe_agree_in_parameters_to_half_a_percent(name):
    for task in recipes.get(name).tasks:
        for arm in resolve(task).values():
            # Arms that continue a trained baseline keep its feed-forward.
            if arm.arm.match == "ffn" and arm.arm.ffn_width is None and not task.shares_base:
                assert abs(arm.mismatch_percent) < LEFT_ALONE_PERCENT


def test_the_feed_forward_is_the_nearest_one_in_steps_of_1():
    model = ModelConfig(width=96, layers=3, ffn_width=256, mixer=DiffV2(heads=6))
    target = replace(model, mixer=Softmax(heads=6)).cost().other_parameters
    matched = match(model, target)
    assert matched.ffn_width < 256

    def off(width):
        return abs(replace(matched, ffn_width=width).cost().other_parameters - target)

    assert off(matched.ffn_width) <= min(off(matched.ffn_width - 1), off(matched.ffn_width + 1))


def test_a_small_mismatch_keeps_the_baselines_feed_forward():
    task = tiny_task(arms=(*tiny_task().arms, Arm(name="norm", mixer=Softmax(heads=4, norm=True))))
    assert {arm.model.ffn_width for arm in resolve(task).values()} == {task.model.ffn_width}


def test_a_native_arm_keeps_its_parameters_and_they_are_told():
    task = tiny_task(arms=(tiny_task().arms[0], Arm(name="v2", mixer=DiffV2(heads=4), match="native")))
    native = resolve(task)["v2"]
    assert native.model.ffn_width == task.model.ffn_width
    assert native.mismatch_percent > 5


def test_an_attention_larger_than_the_whole_budget_is_refused():
    model = ModelConfig(width=32, layers=1, ffn_width=8, mixer=Softmax(heads=32, head_dim=32))
    target = replace(model, mixer=Softmax(heads=4)).cost().other_parameters
    with pytest.raises(ValueError, match="match='native'"):
        match(model, target)


def test_flops_of_a_run_grow_with_its_steps():
    runs = {run.budget: run for run in judged_runs(tiny_plan()) if run.arm == "softmax" and run.seed == 0}
    full, ruler = run_flops(runs["full"].config), run_flops(runs["ruler"].config)
    step = runs["full"].config.model.cost().flops_executed * 4 * 32
    assert ruler - full == pytest.approx(2 * step)


def test_more_seeds_see_smaller_differences():
    task = recipes.get("quick").tasks[0]
    # A screen pools the variance of its arms and a look does not, so 4 seeds can see what 5 cannot.
    for seeds in ((3, 4), (5, 10)):
        fewer, more = (forecast.visible_difference(task, n) for n in seeds)
        assert 0.03 < more < fewer < 0.12


def test_the_forecast_of_a_screen_is_what_the_report_of_such_a_screen_says():
    task = recipes.get("quick").tasks[0]
    losses = {arm.name: {seed: 2.0 + spread for seed, spread in enumerate((-1.0, 0.0, 1.0))} for arm in task.arms}
    # Three values one apart have sd 1 in each arm; scaled to an arm's share of the recorded sd.
    scaled = {arm: {s: x * task.recorded_sd / 2**0.5 for s, x in runs.items()} for arm, runs in losses.items()}
    found = judge(Losses(full=scaled), Rules(baseline="softmax"))[0]
    assert found.numbers["detectable_difference"] is None  # the arms are copies of each other
    scaled["diff_v1"][0], scaled["diff_v1"][1] = scaled["diff_v1"][1], scaled["diff_v1"][0]
    found = next(f for f in judge(Losses(full=scaled), Rules(baseline="softmax")) if f.arm == "diff_v1")
    assert found.numbers["detectable_difference"] == pytest.approx(forecast.visible_difference(task, 3), rel=1e-9)


def test_without_a_recorded_deviation_no_difference_is_promised():
    assert forecast.visible_difference(tiny_task(), 5) is None


def test_the_seeds_that_fit_into_hours_do_and_one_more_does_not():
    plan, speeds = tiny_plan(tiny_task(learning_rates=(5e-3, 1e-2))), {"recall": 1e6}

    def hours(seeds):
        task = replace(plan.tasks[0], seeds=seeds)
        return forecast.plan_seconds(replace(plan, tasks=(task,)), speeds, 2) / 3600

    fit = forecast.seeds_that_fit(plan, speeds, 2, hours(7) * 1.001)
    assert fit == 7
    assert forecast.seeds_that_fit(plan, speeds, 2, hours(1) / 10) == 0


def test_a_dry_run_tells_arms_costs_runs_and_what_can_be_seen(monkeypatch):
    monkeypatch.setattr(forecast, "measure_speed", lambda run, threads: (5e10, "measured: 3 steps of the baseline"))
    told = forecast.describe(recipes.get("quick"), workers=2, threads=1, hours=1.0)
    for word in ("softmax_norm", "332,448", "+0.09 %", "a screen, never a verdict", "sd 0.03", "51 runs", "--seeds 10"):
        assert word in told
    assert "text sees" in told
