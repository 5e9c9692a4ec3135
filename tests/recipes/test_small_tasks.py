"""The recipes of the tasks for small models: equal arms, one task each, judged by kind of question."""

import json
import sys
from dataclasses import replace

import pytest

from diffattn import recipes
from diffattn.data import SyntheticData, open_data
from diffattn.lab import worker
from diffattn.lab.plan import resolve
from diffattn.lab.runs import judged_runs

NAMES = ("needle_small", "many_shot_small", "hallucination_small", "unlearn")


@pytest.mark.parametrize("name", NAMES)
def test_a_screen_of_the_standard_arms_on_the_task_of_its_name(name):
    plan = recipes.get(name)
    (task,) = plan.tasks
    assert isinstance(task.data, SyntheticData)
    assert task.name == task.data.task == name
    assert [arm.name for arm in task.arms] == ["softmax", "softmax_norm", "diff_v1", "diff_v2"]
    assert task.seeds == 3
    assert plan.question.endswith("?") and plan.limits.endswith(".")
    assert all(abs(arm.mismatch_percent) < 0.5 for arm in resolve(task).values())


@pytest.mark.parametrize("name", NAMES)
def test_a_guess_scores_at_most_four_in_ten_by_what_the_data_say_of_themselves(name):
    (task,) = recipes.get(name).tasks
    said = open_data(task.data, context=task.model.context, batch_size=1, seed=0).describe()
    assert 0 < float(said.rsplit(": ", 1)[1]) <= 0.4


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_judged_by_kind_of_question(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)  # a worker says there what repeats its run
    plan = recipes.get(name)
    (task,) = plan.tasks
    vocabulary = open_data(task.data, context=task.model.context, batch_size=1, seed=0).vocab_size
    model = replace(task.model, width=16, layers=1, ffn_width=24, vocab_size=vocabulary)
    train = replace(task.train, steps=2, batch_size=4, evals=1, eval_tokens=512)
    arms = (task.arm("softmax"),)
    small = replace(plan, tasks=(replace(task, model=model, train=train, arms=arms, seeds=1),))
    (run,) = judged_runs(small)
    job = {"folder": str(tmp_path), "config": run.config.to_dict(), "judged": True, "maps": False, "plugins": []}
    job |= {"evals": [], "evals_limit": 1}
    assert worker.work(job) == "finished"
    test = json.loads((tmp_path / "evals" / "test.json").read_text())
    assert sum(sum(kind["answers"].values()) for kind in test["kinds"]) == test["count"]
