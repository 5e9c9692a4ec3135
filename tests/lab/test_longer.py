"""Every arm's own model is trained first, at a shorter context, and then continued."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffattn import recipes
from diffattn.hub.convert import load
from diffattn.lab import forecast, runner
from diffattn.lab.budget import run_flops
from diffattn.lab.confirm import confirmation
from diffattn.lab.plan import Arm, Plan, Task, resolve
from diffattn.lab.runs import base_runs, judged_runs, sweep_runs
from diffattn.variants.dex import Dex
from diffattn.variants.diff_v1 import DiffV1
from diffattn.variants.diff_v2 import DiffV2
from diffattn.variants.softmax import Softmax
from support.plans import tiny_plan, tiny_task

OUTPUT = ("layers.*.mixer.o.weight",)
ARMS = (
    Arm(name="softmax", mixer=Softmax(heads=4), trains=OUTPUT),
    Arm(name="diff_v1", mixer=DiffV1(heads=2), trains=OUTPUT),
)
LONGER = replace(tiny_task().model, context=64, rope_scaling="yarn", rope_factor=2.0)


def continued(**changes: object) -> Task:
    """Two arms of 4 steps at context 32, each continued at 64 in its output projection alone."""
    base = {"base_steps": 4, "base_of": "arm", "base_context": 32}
    return tiny_task(**{"model": LONGER, "arms": ARMS, "ruler": False, "quarter": False, **base, **changes})


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """A comparison of two seeds, in which one base has failed."""
    out = tmp_path_factory.mktemp("plan") / "tiny"
    failed = out / "diff_v1-base-s1"
    failed.mkdir(parents=True)
    (failed / "done").write_text('{"status": "non-finite", "step": 2, "loss": null}')
    runner.compare(tiny_plan(continued()), out, workers=2, quiet=True)
    return out


def test_there_is_one_base_for_each_arm_and_seed_that_all_its_runs_start_from():
    plan = tiny_plan(continued(quarter=True, ruler=True))
    runs = judged_runs(plan)
    bases = base_runs(plan, runs)
    names = ["softmax-base-s0", "diff_v1-base-s0", "softmax-base-s1", "diff_v1-base-s1"]
    assert [base.folder for base in bases] == names
    assert [(base.arm, base.config.seed) for base in bases[1:3]] == [("diff_v1", 200), ("softmax", 201)]
    # In full, at a quarter, and for the baseline the ruler.
    assert Counter(run.config.labels["base"] for run in runs) == dict(zip(names, (3, 2, 3, 2), strict=True))
    assert all(run.config.labels["base"].startswith(f"{run.arm}-base") for run in runs)


def test_a_base_is_the_arms_own_model_at_the_shorter_context_without_scaling():
    plan = tiny_plan(continued())
    runs = {run.arm: run.config for run in judged_runs(plan)}
    for base in base_runs(plan, judged_runs(plan)):
        unscaled = {"context": 32, "rope_scaling": "none", "rope_factor": 1.0}
        assert base.config.model == replace(runs[base.arm].model, **unscaled)
        # As many tokens a step, twice as many windows.
        assert base.config.train.batch_size * 32 == runs[base.arm].train.batch_size * 64
        assert base.config.train.train_only == ()


def test_a_base_can_have_the_context_of_the_runs_and_one_that_is_shared_a_shorter_one():
    (same, *_), (shared, *_) = (
        base_runs(plan, judged_runs(plan))
        for plan in (tiny_plan(continued(base_context=0)), tiny_plan(continued(base_of="baseline")))
    )
    assert (same.folder, same.config.model.context, same.config.model.rope_scaling) == ("softmax-base-s0", 64, "yarn")
    assert (shared.folder, shared.config.model.context) == ("base-s0", 32)


def test_parameters_are_matched_where_every_arm_has_its_own_base():
    arms = (ARMS[0], Arm(name="diff_v2", mixer=DiffV2(heads=4)))
    own, shared = (resolve(continued(arms=arms, base_of=owner))["diff_v2"] for owner in ("arm", "baseline"))
    assert (own.model.ffn_width < 88, abs(own.mismatch_percent) < 0.5) == (True, True)
    assert (shared.model.ffn_width, shared.mismatch_percent > 5) == (88, True)


def test_a_sweep_starts_from_its_arms_bases():
    task = continued(learning_rates=(5e-3, 1e-2))
    swept = sweep_runs(tiny_plan(task), task, task.learning_rates)
    assert len(swept) == 8
    assert [base.folder for base in base_runs(tiny_plan(task), swept)] == [
        f"{arm}-base-s{seed}" for seed in (100, 101) for arm in ("softmax", "diff_v1")
    ]


def test_a_forecast_counts_every_arms_bases_with_their_flops(monkeypatch):
    monkeypatch.setattr(forecast, "measure_speed", lambda run, threads: (1e9, "as given"))
    plan = tiny_plan(continued())
    runs = judged_runs(plan)
    told = forecast.describe(plan, workers=1, threads=1)
    assert "4 base, 4 full" in told
    flops = sum(run_flops(run.config) for run in [*base_runs(plan, runs), *runs])
    assert f"in all: 8 runs, {flops:.3g} FLOPs" in told
    assert "every run continues its arm's own model of that seed, trained on 1,024 tokens at context 32 before" in told


def test_runs_go_on_from_the_weights_of_their_arms_base_at_the_longer_context(compared):
    for name in ("softmax-lr0.005-s0", "diff_v1-lr0.005-s0", "softmax-lr0.005-s1"):
        run, base = compared / name, compared / name.replace("lr0.005", "base")
        before, after = load(base / "model"), load(run / "model")
        assert (before.config.context, before.config.rope_scaling) == (32, "none")
        assert (after.config.context, after.config.rope_scaling, after.config.rope_factor) == (64, "yarn", 2)
        old = dict(before.named_parameters())
        moved = {part for part, value in after.named_parameters() if not torch.equal(value, old[part])}
        assert moved == {"layers.0.mixer.o.weight"}
        assert json.loads((run / "evals" / "test.json").read_text())["loss"] > 0


def test_a_base_that_fails_takes_its_arms_runs_with_it_and_ends_nothing(compared):
    done = json.loads((compared / "diff_v1-lr0.005-s1" / "done").read_text())
    assert (done["status"], done["step"], done["layer"]) == ("non-finite", 0, "its base, diff_v1-base-s1")
    report = json.loads((compared / "report.json").read_text())
    assert report["plan"]["runs"] == {"planned": 4, "ended": 4, "failed": 1}
    arms = report["tasks"]["recall"]["arms"]
    assert (arms["diff_v1"]["failed_seeds"], arms["softmax"]["failed_seeds"]) == ([1], [])
    assert "beginning in its base, diff" in (compared / "report.md").read_text()


def test_the_report_says_what_the_runs_continue(compared):
    said = "its arm's own model of that seed, trained on 1,024 tokens at context 32 before (rate 0.005), under yarn"
    assert said in (compared / "report.md").read_text()


def test_only_what_is_lost_is_trained_again(compared, tmp_path):
    lost = ("softmax-base-s1", "softmax-lr0.005-s1")
    kept = {path: path.stat().st_mtime_ns for path in compared.glob("*/done") if path.parent.name not in lost}
    for name in lost:
        (compared / name).rename(tmp_path / name)
    runner.compare(tiny_plan(continued()), compared, workers=2, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    for name in lost:
        values = (load(folder / name / "model").state_dict() for folder in (compared, tmp_path))
        assert all(torch.equal(again, before) for again, before in zip(*map(dict.values, values), strict=True))


def test_a_confirmation_trains_every_arms_base_on_fresh_seeds(compared):
    fresh = confirmation(tiny_plan(continued()), compared, ["diff_v1"])
    bases = base_runs(fresh, judged_runs(fresh))
    assert [base.folder for base in bases[:3]] == ["softmax-base-s2", "diff_v1-base-s2", "softmax-base-s3"]
    assert {(base.config.model.context, base.learning_rate) for base in bases} == {(32, 5e-3)}


def test_plans_say_whose_base_it_is_only_where_it_is_not_the_baselines():
    plan = tiny_plan(continued())
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    hashes = {tiny_plan(continued(**change)).hash() for change in ({}, {"base_of": "baseline"}, {"base_context": 16})}
    assert len(hashes) == 3
    # Comparisons that were begun before there were other bases go on.
    assert not {"base_of", "base_context"} & set(tiny_task(base_steps=4).to_dict())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"base_steps": 0}, "has base_of or base_context, but no base_steps"),
        ({"base_steps": 0, "base_of": "baseline"}, "has base_of or base_context, but no base_steps"),
        ({"base_context": 128}, "base_context of 'recall' is 128; .* a divisor of the context 64 that is below it"),
        ({"base_context": 64}, "a divisor of the context 64 that is below it"),
        ({"base_context": 48}, "a divisor of the context 64 that is below it"),
        ({"base_context": -32}, "a divisor of the context 64 that is below it"),
        ({"base_context": 16}, "arm 'softmax': rope_factor is 4.0 in the model to start from and 2.0 in the new one"),
        ({"arms": (*ARMS, Arm(name="dex", mixer=Dex(heads=4)))}, "arm 'dex' .* has none of its own to continue"),
        ({"arms": (*ARMS, replace(ARMS[0], name="copy", redraw_attention=9))}, "leave redraw_attention alone"),
        (
            {"arms": (*ARMS, replace(ARMS[0], name="alibi", model={"positions": "alibi"}))},
            "arm 'alibi': rope_scaling is 'yarn' with positions 'alibi'; it needs rope",
        ),
    ],
)
def test_what_cannot_go_on_is_refused(changed, says):
    with pytest.raises(ValueError, match=says):
        tiny_plan(continued(**changed)).validate()


def test_arms_with_bases_of_their_own_may_differ_in_more_than_their_attention():
    alibi = {"positions": "alibi", "rope_scaling": "none", "rope_factor": 1.0}
    arms = (*ARMS, replace(ARMS[0], name="wide", ffn_width=90), replace(ARMS[0], name="alibi", model=alibi))
    tiny_plan(continued(arms=arms)).validate()


def test_data_that_need_a_longer_base_are_refused_before_anything_is_told(tmp_path):
    task = continued(base_context=4, model=replace(LONGER, rope_factor=16.0))
    with pytest.raises(ValueError, match="context"):
        runner.compare(tiny_plan(task), tmp_path / "out", dry_run=True)


def test_the_recipe_judges_at_a_longer_context_with_as_many_tokens_a_step():
    plan = recipes.get("longer")
    task, runs = plan.tasks[0], judged_runs(plan)
    assert [arm.name for arm in task.arms] == ["softmax", "softmax_norm", "diff_v1", "diff_v2"]
    assert len(base_runs(plan, runs)) == 4 * task.seeds == 12
    for base in base_runs(plan, runs):
        assert base.config.model.context * task.model.rope_factor == task.model.context == 512
        assert base.config.train.sequences * base.config.model.context == task.train.sequences * 512
