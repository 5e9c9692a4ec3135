"""Tasks beside the loss: a part of the plan, asked once of each run of the full budget, in files for the report."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diffattn.data import TextData
from diffattn.evals.results import complete_results, has_result
from diffattn.hub.convert import save
from diffattn.lab import forecast
from diffattn.lab.plan import Plan, Task
from diffattn.lab.report import shapes
from diffattn.lab.runs import base_runs, judged_runs, sweep_runs
from diffattn.model.config import ModelConfig
from diffattn.model.decoder import build
from diffattn.variants.diff_v1 import DiffV1
from support.plans import tiny_plan, tiny_task

READ = ("needle", "many_shot", "long_context", "quantise")
"""Tasks whose parts the report draws."""


def text_task(**changes: object) -> Task:
    return tiny_task(**{"name": "text", "data": TextData(), "evals": ("needle", "long_context"), **changes})


def run_with_model(path: Path, context: int) -> Path:
    model = ModelConfig(vocab_size=257, width=16, layers=1, context=context, ffn_width=32, mixer=DiffV1(heads=2))
    save(build(model, seed=0), path / "model")
    return path


def test_a_plan_with_tasks_survives_json_and_one_without_keeps_its_hash() -> None:
    plan = tiny_plan(text_task())
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert plan.hash() != tiny_plan(text_task(evals=())).hash() != tiny_plan(text_task(evals_limit=5)).hash()
    assert not [key for key in tiny_task().to_dict() if key.startswith("evals")]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"data": tiny_task().data}, "synthetic"),
        ({"evals": ("needel",)}, "did you mean 'needle'"),
        ({"evals": ("needle", "needle")}, "named once"),
        ({"evals_limit": 0}, "evals_limit"),
    ],
)
def test_tasks_that_cannot_be_asked_are_refused_with_the_plan(changed: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        text_task(**changed).validate()


def test_every_run_of_the_full_budget_is_asked_and_no_other() -> None:
    task = replace(text_task(), learning_rates=(1e-3, 2e-3))
    plan = tiny_plan(task)
    runs = [*judged_runs(plan), *sweep_runs(plan, task, task.learning_rates), *base_runs(plan, judged_runs(plan))]
    assert {run.evals for run in runs if run.budget == "full" and not run.sweep} == {("needle", "long_context")}
    assert {run.evals for run in runs if run.budget != "full" or run.sweep} == {()}


def test_the_forecast_names_the_tasks_and_says_that_their_time_is_not_in_it() -> None:
    told = "\n".join(forecast._task(tiny_plan(text_task()), text_task()))
    assert "needle, long_context" in told and "at most 32 items" in told and "not forecast" in told


def test_results_are_files_that_the_report_reads_and_are_not_made_twice(tmp_path: Path) -> None:
    run = run_with_model(tmp_path, 256)
    (run / "evals").mkdir()
    theirs, by_hand = '{"asked": {"limit": 2, "seed": 3}}', '{"task": "needle", "settings": {"limit": 1}}'
    (run / "evals" / "shift.json").write_text(theirs)
    (run / "evals" / "needle.json").write_text(by_hand)
    complete_results(run, (*READ, "shift"), limit=2, seed=3)
    for name in READ:
        found = json.loads((run / "evals" / f"{name}.json").read_text(), parse_constant=pytest.fail)
        assert shapes.fault(found, shapes.result(name)) is None
        assert found["task"] == name and found["measure"]["n"] > 0 and "failed" not in found
        assert has_result(run, name, limit=2, seed=3) and not has_result(run, name, limit=3, seed=3)
    assert (run / "evals" / "shift.json").read_text() == theirs


def test_what_a_task_cannot_do_stands_in_its_file(tmp_path: Path) -> None:
    run = run_with_model(tmp_path, 16)
    complete_results(run, ("needle",), limit=2, seed=0)
    found = json.loads((run / "evals" / "needle.json").read_text())
    assert found["task"] == "needle" and "16" in found["failed"]
