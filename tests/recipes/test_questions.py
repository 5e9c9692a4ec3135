"""The recipes that put a question: screens on text and on recall, of equal arms, which say what they can see."""

import re
from dataclasses import replace

import pytest

from diffattn import recipes, stats
from diffattn.data import SyntheticData, TextData
from diffattn.lab import forecast, runner
from diffattn.lab.confirm import confirmation
from diffattn.lab.plan import resolve
from diffattn.lab.runs import judged_runs
from support.plans import shrunk

NAMES = (
    "ablate_v1",
    "lambda_start",
    "normalisers",
    "subtractions",
    "positions",
    "mixtures",
    "head_width",
    "confounds",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_question_is_one_line_and_screened_on_text_and_on_recall(name):
    plan = recipes.get(name)
    plan.validate()
    assert "?" in plan.question
    assert "\n" not in plan.question
    assert {type(task.data) for task in plan.tasks} == {TextData, SyntheticData}
    for task in plan.tasks:
        assert task.seeds == 3
        assert {"softmax", "diff_v1"} <= {arm.name for arm in task.arms} or task.name.endswith("queries")


@pytest.mark.parametrize("name", NAMES)
def test_text_models_have_a_third_of_a_million_parameters_and_short_windows(name):
    for task in recipes.get(name).tasks:
        if isinstance(task.data, TextData):
            assert task.model.context == 128
            assert 0.29e6 < resolve(task)[task.baseline].model.cost().other_parameters < 0.4e6
            assert task.train.steps * task.train.sequences * task.model.context == 204_800


@pytest.mark.parametrize("name", NAMES)
def test_arms_have_equal_parameters_or_say_that_they_have_not(name):
    for task in recipes.get(name).tasks:
        for arm in resolve(task).values():
            if arm.arm.match == "native":
                assert "not paid for" in arm.arm.note
            else:
                assert abs(arm.mismatch_percent) < 0.5, (task.name, arm.arm.name)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_recipe_says_it_can_see_is_what_its_forecast_says(name):
    plan = recipes.get(name)
    seen = {round(d, 2) for task in plan.tasks if (d := forecast.visible_difference(task, 3)) is not None}
    contrasts = [forecast.visible_difference(task, 3, runs=4) for task in plan.tasks if task.contrasts]
    seen |= {round(d, 2) for d in contrasts if d is not None}
    told = re.findall(r"sees? (\d\.\d+) nats", f"{plan.description} {plan.limits}")
    assert set(map(float, told)) <= seen
    assert told or not plan.limits


@pytest.mark.parametrize("name", ["ablate_v1", "lambda_start"])
def test_the_seeds_that_the_papers_smallest_row_would_take_are_told(name):
    task = recipes.get(name).tasks[0]
    seeds = stats.seeds_needed(0.003, task.recorded_sd or 0.0, forecast.look_alpha(10), task.comparisons)
    assert f"{round(seeds, -2):,}" in recipes.get(name).limits
    assert "0.003" in recipes.get(name).description


def test_a_dry_run_tells_question_and_limits(monkeypatch):
    monkeypatch.setattr(forecast, "measure_speed", lambda run, threads: (5e10, "as given"))
    plan = recipes.get("lambda_start")
    told = forecast.describe(plan, workers=2, threads=1)
    assert plan.question in told
    assert plan.limits in told


def test_every_arm_of_the_subtractions_that_can_has_the_same_norm():
    arms = {arm.name: arm.mixer.to_dict() for arm in recipes.get("subtractions").tasks[0].arms}
    plain = {name for name, mixer in arms.items() if mixer["norm"] not in (True, "weight")}
    assert plain == {"softmax"}


def test_v2_is_shown_three_ways():
    plan = recipes.get("subtractions")
    text, queries = plan.tasks[:2]
    cut, native = resolve(text)["diff_v2"], resolve(text)["diff_v2_native"]
    assert cut.model.ffn_width < native.model.ffn_width == text.model.ffn_width
    baseline, v2 = queries.arm("softmax").mixer.to_dict(), queries.arm("diff_v2").mixer.to_dict()
    assert baseline["heads"] == 2 * v2["heads"]
    assert baseline["kv_heads"] == v2["heads"]


def test_positions_are_all_that_the_arms_of_a_contrast_differ_in_besides_the_attention():
    task = recipes.get("positions").tasks[0]
    models = {name: arm.model for name, arm in resolve(task).items()}
    for contrast in task.contrasts:
        (v1, softmax), (other_v1, other) = contrast.first, contrast.second
        kind = models[other].positions
        assert kind != models[softmax].positions == "rope"
        assert replace(models[other], positions="rope") == models[softmax]
        assert replace(models[other_v1], positions="rope") == models[v1]


def test_each_task_of_the_confounds_changes_one_thing_and_the_same_for_all_its_arms():
    text, *changed = [task for task in recipes.get("confounds").tasks if task.name.startswith("text")]
    for task in changed:
        differs = {
            "warm-up": task.train.warmup != text.train.warmup,
            "vocabulary": task.data != text.data,
            "batch": task.train.sequences != text.train.sequences,
            "shape": task.model != text.model,
        }
        assert sum(differs.values()) == 1, (task.name, differs)
    assert changed[0].train.warmup == pytest.approx(5 * text.train.warmup)
    assert recipes.get("confounds").across == ("diff_v1", "softmax_norm")


@pytest.mark.slow
def test_a_question_runs_from_training_to_its_report_and_can_be_confirmed(tmp_path):
    whole = recipes.get("positions")
    task = replace(shrunk(whole.tasks[0]), quarter=False, ruler=False, metric="loss")
    plan = replace(whole, tasks=(task,), across=("diff_v1",))
    report = runner.compare(plan, tmp_path / "positions", workers=1, quiet=True)
    assert report is not None
    text = report.with_suffix(".md").read_text().replace("\\", "")
    for words in (
        plan.question,
        plan.limits,
        "V1's lead over softmax is ",
        "positions alibi against rope",
        "Across the tasks",
    ):
        assert words in text
        assert words.replace("'", "&#39;") in report.read_text()
    four = confirmation(plan, tmp_path / "positions", ["diff_v1", "softmax_alibi", "diff_v1_alibi"])
    assert [contrast.name for contrast in four.tasks[0].contrasts] == ["rope_against_alibi"]
    assert {run.seed for run in judged_runs(four)} == set(range(3, 13))
