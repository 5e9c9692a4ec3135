"""A baseline trained first, which every arm of its seed continues."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffattn import recipes
from diffattn.hub.convert import load
from diffattn.lab import forecast, runner
from diffattn.lab.plan import Arm, Plan, Task, resolve
from diffattn.lab.report import write_report
from diffattn.lab.runs import base_runs, judged_runs, sweep_runs
from diffattn.recipes.added import with_variants
from diffattn.variants.dex import Dex
from diffattn.variants.diff_v2 import DiffV2
from diffattn.variants.softmax import Softmax
from support.plans import tiny_plan, tiny_task

OUTPUT = ("layers.*.mixer.o.weight",)
ARMS = (
    Arm(name="softmax", mixer=Softmax(heads=4)),
    Arm(name="output_only", mixer=Softmax(heads=4), trains=OUTPUT),
    Arm(name="diff_v2", mixer=DiffV2(heads=4)),
    Arm(name="dex", mixer=Dex(heads=4)),
)


def continued(**changes: object) -> Task:
    """Four arms that continue a baseline of 4 steps."""
    return tiny_task(**{"arms": ARMS, "base_steps": 4, "ruler": False, "quarter": False, **changes})


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("plan") / "tiny"
    runner.compare(tiny_plan(continued()), out, workers=2, quiet=True)
    return out


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load(folder / "model").named_parameters())


def moved(out: Path, arm: str, seed: int) -> set[str]:
    """The parameters of an arm's run that are other than in the base of its seed, or are not in it."""
    base, trained = weights(out / f"base-s{seed}"), weights(out / f"{arm}-lr0.005-s{seed}")
    return {name for name in trained if name not in base or not torch.equal(trained[name], base[name])}


def test_there_is_one_base_for_each_seed_with_its_own_start_and_data():
    plan = tiny_plan(continued(base_learning_rate=1e-3, quarter=True, ruler=True))
    runs = judged_runs(plan)
    bases = base_runs(plan, runs)
    assert [(base.folder, base.config.seed) for base in bases] == [("base-s0", 200), ("base-s1", 201)]
    assert {(base.config.train.steps, base.learning_rate, base.arm) for base in bases} == {(4, 1e-3, "softmax")}
    assert Counter(run.config.labels["base"] for run in runs) == {"base-s0": 9, "base-s1": 9}
    assert {run.config.seed for run in runs} == {0, 1}


def test_a_task_without_a_base_has_none():
    assert base_runs(tiny_plan(), judged_runs(tiny_plan())) == []
    assert all("base" not in run.config.labels for run in judged_runs(tiny_plan()))


def test_folders_name_the_task_where_there_are_several():
    plan = tiny_plan(continued(), continued(name="again"), tiny_task(name="fresh"))
    bases = [base.folder for base in base_runs(plan, judged_runs(plan))]
    assert bases == ["recall-base-s0", "again-base-s0", "recall-base-s1", "again-base-s1"]


def test_a_sweep_and_a_quarter_start_from_the_base_of_their_seed():
    task = continued(learning_rates=(5e-3, 1e-2), quarter=True)
    plan = tiny_plan(task)
    swept = sweep_runs(plan, task, task.learning_rates)
    assert {(run.seed, run.config.labels["base"]) for run in swept} == {(100, "base-s100"), (101, "base-s101")}
    # The rate of the base is no part of the sweep.
    assert {base.learning_rate for base in base_runs(plan, swept)} == {5e-3}
    quarter = next(run for run in judged_runs(plan) if run.budget == "quarter")
    assert (quarter.config.train.steps, quarter.config.labels["base"]) == (2, "base-s0")


def test_arms_keep_the_feed_forward_of_the_base_and_their_mismatch_is_told():
    resolved = resolve(continued())
    assert {arm.model.ffn_width for arm in resolved.values()} == {88}
    assert resolved["diff_v2"].mismatch_percent > 5
    assert resolve(continued(base_steps=0, arms=ARMS[:3]))["diff_v2"].model.ffn_width < 88


def test_every_run_of_a_seed_starts_from_the_weights_of_its_base(compared):
    everything = set(weights(compared / "base-s0"))
    assert moved(compared, "softmax", 0) == everything
    assert moved(compared, "output_only", 1) == {"layers.0.mixer.o.weight"}
    assert moved(compared, "dex", 1) == {"layers.0.mixer.w_d", "layers.0.mixer.lam_learned"}
    assert moved(compared, "diff_v2", 0) == everything | {"layers.0.mixer.lambda_proj.weight"}
    first, second = weights(compared / "base-s0"), weights(compared / "base-s1")
    assert not any(torch.equal(first[name], second[name]) for name in first if first[name].ndim > 1)


def test_bases_are_trained_and_not_judged(compared):
    for seed in (0, 1):
        assert json.loads((compared / f"base-s{seed}" / "done").read_text())["step"] == 4
        assert not (compared / f"base-s{seed}" / "evals" / "test.json").exists()
    task = json.loads((compared / "plan.json").read_text())["tasks"][0]
    assert {run["arm"] for run in task["runs"]} == {arm.name for arm in ARMS}
    assert {run["budget"] for run in task["runs"]} == {"full"}


def test_the_plan_and_the_report_tell_what_was_trained_before_and_what_now(compared):
    task = json.loads((compared / "plan.json").read_text())["tasks"][0]
    assert task["base_tokens"] == 4 * 4 * 32
    assert "continues one softmax model, trained on 512 tokens before (rate 0.005)" in task["learning_rate_policy"]
    arms = {arm["name"]: arm for arm in task["arms"]}
    assert arms["output_only"]["trained_parameters"] == 32 * 32
    assert arms["dex"]["trained_parameters"] == 8 * 8 + 1
    everything = arms["softmax"]["other_parameters"] + arms["softmax"]["embedding_parameters"]
    assert arms["softmax"]["trained_parameters"] == everything
    write_report(compared)
    report = (compared / "report.md").read_text()
    assert "trained on 512 tokens before" in report
    assert "parameters trained" in report


def test_a_lost_base_is_trained_again_before_what_needs_it(compared, tmp_path):
    lost = ("base-s0", "dex-lr0.005-s0", "dex-lr0.005-s1")
    before = [weights(compared / name) for name in lost]
    kept = compared / "base-s1" / "model" / "model.safetensors"
    stamp = kept.stat().st_mtime_ns
    for name in lost:
        (compared / name).rename(tmp_path / name)
    runner.compare(tiny_plan(continued()), compared, workers=2, quiet=True)
    assert kept.stat().st_mtime_ns == stamp
    for name, old in zip(lost, before, strict=True):
        assert all(torch.equal(value, old[part]) for part, value in weights(compared / name).items())


def test_a_base_that_fails_ends_the_comparison_with_advice(tmp_path):
    train = replace(tiny_task().train, clip=None, warmup=0.0)
    task = continued(train=train, base_steps=40, base_learning_rate=1e30, seeds=1)
    with pytest.raises(ValueError, match=r"base-s0.* is non-finite; give the task a lower base_learning_rate"):
        runner.compare(tiny_plan(task), tmp_path / "out", workers=1, quiet=True)


@pytest.mark.slow
def test_a_confirmation_trains_fresh_bases_at_the_screens_rate(compared, monkeypatch):
    monkeypatch.setattr("diffattn.lab.confirm.SEEDS", 1)
    runner.compare(tiny_plan(continued()), compared, confirm=["dex"], workers=2, quiet=True)
    confirmed = json.loads((compared.with_name("tiny-confirm") / "plan.json").read_text())["tasks"][0]
    assert confirmed["seeds"] == [2]
    base = json.loads((compared.with_name("tiny-confirm") / "base-s2" / "config.json").read_text())
    assert (base["seed"], base["train"]["learning_rate"], base["train"]["steps"]) == (202, 5e-3, 4)


def test_a_forecast_counts_the_bases(monkeypatch):
    monkeypatch.setattr(forecast, "measure_speed", lambda run, threads: (1e9, "as given"))
    told = forecast.describe(tiny_plan(continued()), workers=1, threads=1)
    assert "2 base, 8 full" in told
    assert "in all: 10 runs" in told
    assert "every run of a seed continues one softmax model" in told
    seconds = [
        forecast.plan_seconds(tiny_plan(task), {"recall": 1e6}, 1) for task in (continued(), continued(base_steps=8))
    ]
    # FLOPs at 1e6 a second: four more steps of two bases.
    assert seconds[1] - seconds[0] > 4 * 2 * 4 * 32 * ARMS[0].model_from(tiny_task().model).cost().flops_executed / 1e6


def test_a_plan_with_a_base_survives_json_and_any_change_is_another_plan():
    plan = tiny_plan(continued(base_learning_rate=1e-3))
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.hash() == plan.hash()
    wider = (*ARMS[:1], replace(ARMS[1], trains=("*",)), *ARMS[2:])
    for change in ({"base_steps": 5}, {"base_learning_rate": 2e-3}, {"arms": wider}):
        assert tiny_plan(continued(**{"base_learning_rate": 1e-3, **change})).hash() != plan.hash()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"base_steps": -1}, "needs 0 or more steps"),
        ({"base_steps": 0}, "arm 'dex' trains from a loaded model only; give task 'recall' base_steps"),
        (
            {"base_steps": 0, "arms": (ARMS[0], replace(ARMS[0], name="one", mixers_by_layer={0: Dex(heads=4)}))},
            "arm 'one' trains from a loaded model only",
        ),
        ({"arms": ARMS[2:], "baseline": "dex"}, "it cannot be the baseline of 'recall' that base_steps train"),
        ({"arms": (*ARMS, replace(ARMS[0], name="wide", ffn_width=90))}, "can differ in its attention only"),
        ({"arms": (*ARMS, replace(ARMS[0], name="bare", model={"positions": "none"}))}, "in its attention only"),
        ({"arms": (*ARMS, replace(ARMS[0], name="copy", redraw_attention=1000))}, "in its attention only"),
        ({"train": replace(tiny_task().train, init_from="model")}, "can start from one only"),
    ],
)
def test_what_cannot_continue_a_base_is_refused(changed, says):
    with pytest.raises(ValueError, match=says):
        tiny_plan(continued(**changed)).validate()


@pytest.mark.parametrize("base_steps", [0, 4])
def test_a_pattern_without_a_parameter_is_refused_by_its_plan(base_steps):
    nope = Arm(name="none", mixer=Softmax(heads=4), trains=("layers.*.mixer.oo.weight",))
    with pytest.raises(ValueError, match=r"arm 'none': .*no parameter is called 'layers"):
        tiny_plan(continued(arms=(*ARMS[:3], nope), base_steps=base_steps)).validate()
    train = replace(tiny_task().train, train_only=("nope.*",))
    with pytest.raises(ValueError, match=r"no parameter is called 'nope\.\*'"):
        tiny_plan(continued(arms=ARMS[:1], base_steps=base_steps, train=train)).validate()


def test_patterns_that_are_no_list_are_refused_also_out_of_json():
    for arm in (replace(ARMS[1], trains="layers.*"), Arm.from_dict({**ARMS[1].to_dict(), "trains": "layers.*"})):
        with pytest.raises(ValueError, match=r"arm 'output_only': trains is 'layers\.\*'"):
            arm.validate()


def test_other_heads_than_the_bases_are_refused_before_anything_is_told_or_trained(tmp_path):
    plan = with_variants(recipes.get("retrofit"), ["diff_v1"])
    with pytest.raises(ValueError, match=r"arm 'diff_v1': layer 0 .*softmax with 6 output .* diff_v1 with 3 output"):
        runner.compare(plan, tmp_path / "out", dry_run=True)
