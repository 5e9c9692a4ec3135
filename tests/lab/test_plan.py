"""A plan is fixed beforehand: it survives JSON, any change is another plan, and its runs follow from it alone."""

import json
from dataclasses import replace

import pytest

from diffattn import recipes
from diffattn.lab import manifest
from diffattn.lab.confirm import confirmation
from diffattn.lab.plan import Arm, Plan, select
from diffattn.lab.runs import judged_runs, sweep_runs
from diffattn.lab.sweep import choose, sweep
from diffattn.variants.softmax import Softmax
from support.plans import tiny_plan, tiny_task

SURROUNDINGS = {"recall": manifest.Surroundings("associative recall")}


def write(plan: Plan, folder, chosen=None):
    content = manifest.plan_json(
        plan, plan, command="", surroundings=SURROUNDINGS, chosen=chosen or {}, runs=judged_runs(plan)
    )
    manifest.write_plan(folder, content)
    return content


@pytest.mark.parametrize("name", recipes.names())
def test_a_plan_survives_json_with_its_hash(name):
    plan = recipes.get(name)
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.hash() == plan.hash()


@pytest.mark.parametrize(
    "changed",
    [
        {"seeds": 3},
        {"margin": 0.1},
        {"train": replace(tiny_task().train, learning_rate=1e-3)},
        {"model": replace(tiny_task().model, token_shift=False)},
        {"arms": (*tiny_task().arms, Arm(name="wide", mixer=Softmax(heads=2)))},
        {"quarter": False},
    ],
)
def test_any_change_is_another_plan_and_refused_in_the_same_folder(tmp_path, changed):
    plan, other = tiny_plan(), tiny_plan(tiny_task(**changed))
    assert other.hash() != plan.hash()
    write(plan, tmp_path)
    manifest.refuse_another(plan, tmp_path)
    with pytest.raises(ValueError, match=next(iter(changed))) as refusal:
        manifest.refuse_another(other, tmp_path)
    assert "--out" in str(refusal.value)


def test_the_refusal_names_field_and_both_values(tmp_path):
    write(tiny_plan(), tmp_path)
    other = tiny_plan(tiny_task(train=replace(tiny_task().train, learning_rate=1e-3)))
    with pytest.raises(ValueError, match=r"tasks\.recall\.train\.learning_rate was 0\.005, is 0\.001"):
        manifest.refuse_another(other, tmp_path)


def test_a_file_that_is_no_plan_is_refused_in_one_line(tmp_path):
    (tmp_path / manifest.FILE).write_text('{"name": "x"}')
    with pytest.raises(ValueError, match=r"plan\.json is not a plan"):
        manifest.refuse_another(tiny_plan(), tmp_path)


def test_plan_json_holds_what_the_report_reads(tmp_path):
    content = write(tiny_plan(), tmp_path)
    task = json.loads((tmp_path / "plan.json").read_text())["tasks"][0]
    assert content["hash"] == tiny_plan().hash()
    assert task["learning_rate_policy"] == "one shared, untuned learning rate (0.005)"
    assert [arm["name"] for arm in task["arms"]] == ["softmax", "diff_v1"]
    assert task["tokens"] == 8 * 4 * 32 == task["steps"] * task["batch_tokens"]
    assert set(task["runs"][0]) == {"folder", "arm", "budget", "seed", "learning_rate", "sweep"}
    baseline, v1 = task["arms"]
    expected = 100 * (v1["other_parameters"] / baseline["other_parameters"] - 1)
    assert v1["mismatch_percent"] == pytest.approx(expected)


def test_folders_name_arm_budget_rate_and_seed_and_the_task_where_there_are_several():
    single = [run.folder for run in judged_runs(tiny_plan())]
    assert single[:3] == ["softmax-lr0.005-s0", "diff_v1-lr0.005-s0", "softmax-ruler-lr0.005-s0"]
    assert "diff_v1-quarter-lr0.005-s1" in single
    both = tiny_plan(tiny_task(), tiny_task(name="again"))
    folders = [run.folder for run in judged_runs(both)]
    assert folders[0] == "recall-softmax-lr0.005-s0"
    assert len(set(folders)) == len(folders)


def test_runs_are_listed_seed_by_seed_so_that_a_stopped_plan_has_whole_seeds():
    plan = tiny_plan(tiny_task(), tiny_task(name="longer", seeds=3))
    seeds = [run.seed for run in judged_runs(plan)]
    assert seeds == sorted(seeds)
    assert {run.task for run in judged_runs(plan) if run.seed == 2} == {"longer"}


def test_ruler_and_quarter_have_their_own_complete_schedules():
    runs = {(run.arm, run.budget): run for run in judged_runs(tiny_plan()) if run.seed == 0}
    steps = {key: run.config.train.steps for key, run in runs.items()}
    assert steps == {
        ("softmax", "full"): 8,
        ("diff_v1", "full"): 8,
        ("softmax", "ruler"): 10,
        ("softmax", "quarter"): 2,
        ("diff_v1", "quarter"): 2,
    }
    full = runs["softmax", "full"].config.train
    # Evaluations come at the same distances.
    assert runs["softmax", "quarter"].config.train.evals == max(1, round(full.evals / 4))
    unchanged = replace(runs["softmax", "quarter"].config.train, steps=8, evals=full.evals)
    assert unchanged == full


def test_arms_of_a_seed_share_everything_but_the_attention_and_its_price():
    full = [run.config for run in judged_runs(tiny_plan()) if run.budget == "full" and run.seed == 1]
    first, second = full
    assert first.seed == second.seed
    assert first.data == second.data
    assert first.train == second.train
    same = replace(second.model, mixer=first.model.mixer, ffn_width=first.model.ffn_width)
    assert same == first.model


def test_a_planted_arm_has_its_own_rate_or_its_own_attention_weights():
    worse = Arm(name="worse", mixer=Softmax(heads=4), learning_rate_factor=1 / 30)
    copy = Arm(name="copy", mixer=Softmax(heads=4), redraw_attention=1000)
    runs = {run.arm: run for run in judged_runs(tiny_plan(tiny_task(arms=(tiny_task().arms[0], worse, copy))))}
    assert runs["worse"].config.train.learning_rate == pytest.approx(5e-3 / 30)
    assert runs["copy"].config.labels["redraw_attention"] == "1000"
    assert runs["copy"].config.seed == runs["softmax"].config.seed
    assert "redraw_attention" not in runs["softmax"].config.labels


def test_swept_arms_also_run_at_the_baselines_rate():
    plan = tiny_plan(tiny_task(learning_rates=(5e-3, 1e-2, 2e-2), ruler=False, quarter=False))
    runs = judged_runs(plan, {"recall": {"softmax": 1e-2, "diff_v1": 2e-2}})
    assert [(run.arm, run.learning_rate) for run in runs if run.seed == 0] == [
        ("softmax", 1e-2),
        ("diff_v1", 2e-2),
        ("diff_v1", 1e-2),
    ]


def test_a_selection_keeps_the_baseline_and_refuses_unknown_arms():
    task = recipes.get("quick").tasks[0]
    assert [arm.name for arm in select(task, ["diff_v2"]).arms] == ["softmax", "diff_v2"]
    with pytest.raises(ValueError, match="no arm 'dif_v2'; its arms are softmax"):
        select(task, ["dif_v2"])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"baseline": "none"}, "no arm 'none'"),
        ({"arms": tiny_task().arms[:1] * 2}, "used once"),
        ({"learning_rates": (1e-3, 3e-3)}, "factor 2"),
        ({"seeds": 0}, "at least one seed"),
        ({"first_seed": 95, "seeds": 10}, "learning-rate sweep"),
        ({"arms": (Arm(name="a/b", mixer=Softmax(heads=4)),)}, "letters, digits"),
    ],
)
def test_an_unfair_or_impossible_task_is_refused(changed, says):
    with pytest.raises(ValueError, match=says):
        tiny_plan(tiny_task(**changed)).validate()


def fake_runs(folder, losses):
    """A trainer for sweeps: the dev loss is a function of arm and rate."""

    def work(runs):
        for run in runs:
            (folder / run.folder).mkdir(exist_ok=True)
            done = {"status": "finished", "loss": losses(run.arm, run.learning_rate)}
            (folder / run.folder / "done").write_text(json.dumps(done))

    return work


def test_the_grid_grows_for_all_arms_until_every_best_rate_is_inside(tmp_path):
    task = tiny_task(learning_rates=(1e-3, 2e-3))
    best_rates = {"softmax": 4e-3, "diff_v1": 1e-3}

    def losses(arm, rate):
        return abs(rate - best_rates[arm])

    said = []
    best, runs = sweep(tiny_plan(task), task, tmp_path, fake_runs(tmp_path, losses), said.append)
    assert best == best_rates
    grids = {arm: {run.learning_rate for run in runs if run.arm == arm} for arm in best_rates}
    assert grids["softmax"] == grids["diff_v1"] == {5e-4, 1e-3, 2e-3, 4e-3, 8e-3}
    assert not said


def test_a_best_rate_that_stays_at_the_edge_is_told(tmp_path):
    task, said = tiny_task(learning_rates=(1e-3,)), []
    best, _ = sweep(tiny_plan(task), task, tmp_path, fake_runs(tmp_path, lambda arm, rate: rate), said.append)
    assert best["softmax"] == min(run.learning_rate for run in sweep_runs(tiny_plan(task), task, [best["softmax"]]))
    assert "edge of the grid" in said[0]


def test_a_failed_run_counts_against_its_rate():
    losses = {("softmax", 1e-3, 100): 2.0, ("softmax", 1e-3, 101): 2.0, ("softmax", 2e-3, 100): 1.0}
    losses["softmax", 2e-3, 101] = float("inf")
    only = tiny_task(arms=tiny_task().arms[:1])
    assert choose(only, [1e-3, 2e-3], losses) == {"softmax": 1e-3}


def test_sweeps_use_seeds_that_are_never_judged():
    for name in recipes.names():
        plan = recipes.get(name)
        judged = {run.seed for run in judged_runs(plan)}
        for task in plan.tasks:
            assert judged.isdisjoint(run.seed for run in sweep_runs(plan, task, task.learning_rates))


def test_a_confirmation_has_fresh_seeds_and_the_screens_rates(tmp_path):
    plan = tiny_plan(tiny_task(learning_rates=(5e-3, 1e-2, 2e-2), seeds=3))
    write(plan, tmp_path, {"recall": {"softmax": 1e-2, "diff_v1": 2e-2}})
    confirm = confirmation(plan, tmp_path, ["diff_v1"])
    confirm.validate()
    assert confirm.name == "tiny-confirm"
    runs = judged_runs(confirm)
    assert {run.seed for run in runs} == set(range(3, 13))
    assert {(run.arm, run.learning_rate) for run in runs} == {("softmax", 1e-2), ("diff_v1", 2e-2)}
    assert "tiny" in manifest.learning_rate_policy(confirm.tasks[0], {})


def test_a_confirmation_leaves_out_tasks_that_have_none_of_its_arms(tmp_path):
    task = tiny_task(seeds=3)
    other = replace(task, name="other", arms=(task.arms[0], replace(task.arms[1], name="elsewhere")))
    plan = replace(tiny_plan(task, other), limits="three seeds see little")
    content = manifest.plan_json(
        plan,
        plan,
        command="",
        surroundings=dict.fromkeys(("recall", "other"), SURROUNDINGS["recall"]),
        chosen={"recall": {"softmax": 5e-3, "diff_v1": 5e-3}, "other": {"softmax": 5e-3, "elsewhere": 5e-3}},
        runs=[],
    )
    manifest.write_plan(tmp_path, content)
    confirm = confirmation(plan, tmp_path, ["elsewhere"])
    assert [task.name for task in confirm.tasks] == ["other"]
    assert confirm.limits == ""


@pytest.mark.parametrize("arms", [["a", "b", "c", "d", "e"], ["unknown"]])
def test_a_confirmation_of_too_many_or_unknown_arms_is_refused(tmp_path, arms):
    write(tiny_plan(), tmp_path, {"recall": {"softmax": 5e-3, "diff_v1": 5e-3}})
    with pytest.raises(ValueError, match=r"at most 4 arms|no arm 'unknown'"):
        confirmation(tiny_plan(), tmp_path, arms)


def test_there_is_nothing_to_confirm_without_a_screen(tmp_path):
    with pytest.raises(ValueError, match="holds no screen"):
        confirmation(tiny_plan(), tmp_path, ["diff_v1"])


def test_the_points_of_a_ladder_are_trained_at_their_arms_own_rates_alone():
    ends = [tiny_task(name=name, learning_rates=(1e-2, 2e-2)) for name in ("a", "c")]
    plan = tiny_plan(ends[0], tiny_task(name="b", rates_between=("a", "c")), ends[1])
    own = {"softmax": 1e-2, "diff_v1": 2e-2}
    runs = judged_runs(plan, dict.fromkeys(("a", "b", "c"), own))
    assert {run.config.train.learning_rate for run in runs if run.arm == "diff_v1"} == {2e-2}
    runs = judged_runs(tiny_plan(*ends), dict.fromkeys(("a", "c"), own))
    assert {run.config.train.learning_rate for run in runs if run.arm == "diff_v1"} == {1e-2, 2e-2}
