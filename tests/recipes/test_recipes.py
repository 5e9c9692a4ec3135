"""Every recipe tells its cost, trains a few steps, and holds the numbers that it says it took from the paper."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffattn import recipes, variants
from diffattn.data import TextData
from diffattn.lab import forecast, runner, worker
from diffattn.lab.plan import Plan, resolve
from diffattn.lab.progress import read_done
from diffattn.lab.runs import base_runs, judged_runs
from diffattn.model.decoder import Decoder
from diffattn.recipes.added import with_variants
from diffattn.train.trainer import train
from support.plans import shrunk

SMALL = ("quick", "smoke", "recall", "ab_tiny")
PAPER = [name for name in recipes.names() if name.startswith("paper_")]


def runs_of_a_seed(plan: Plan):
    """One full run per arm and task, at the rate in the middle of its grid."""
    return [run for run in judged_runs(plan) if run.budget == "full" and run.seed == 0]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """A small corpus in a folder of its own, so that no test reads the machine's."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(60):
        lines = (f"def f{number}_{line}(x):\n    return x * {line} + {number}\n" for line in range(40))
        (folder / f"{number}.py").write_text("\n".join(lines))
    return folder


def test_an_unknown_recipe_is_answered_with_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'quick'"):
        recipes.get("quik")


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_is_valid_named_after_itself_and_described_in_a_line(name):
    plan = recipes.get(name)
    plan.validate()
    assert plan.name == name
    assert "\n" not in plan.description
    assert len(plan.description) < 120


@pytest.mark.parametrize("name", recipes.names())
def test_a_dry_run_tells_every_arm(name, monkeypatch):
    monkeypatch.setattr(forecast, "measure_speed", lambda run, threads: (5e10, "as given"))
    told = forecast.describe(recipes.get(name), workers=2, threads=1)
    for task in recipes.get(name).tasks:
        assert f"task {task.name}" in told
        assert all(f"  {arm.name} " in told for arm in task.arms)


def test_a_large_models_time_is_marked_as_a_guess():
    assert "guessed: 50% of the fastest matrix product" in forecast.describe(
        recipes.get("paper_13b"), workers=1, threads=1
    )


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_trains_three_steps_when_shrunk(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)  # a worker says there what repeats its run
    plan = recipes.get(name)
    # The tasks of a question differ in what shrinking replaces.
    small = replace(plan, tasks=tuple(shrunk(task) for task in (plan.tasks[:1] if plan.question else plan.tasks)))
    runs = runs_of_a_seed(small)
    for run in [*base_runs(small, runs), *runs]:
        job = {"folder": str(tmp_path / run.folder), "config": run.config.to_dict()}
        job |= {"judged": False, "maps": False, "plugins": [], "evals": [], "evals_limit": 1}
        assert worker.work(job) == "finished"
        assert read_done(tmp_path / run.folder)["step"] == run.config.train.steps <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_small_recipe_trains_three_steps_as_it_is(name, tmp_path, text, monkeypatch):
    monkeypatch.setenv("DIFFATTN_CACHE", str(tmp_path / "cache"))
    for run in runs_of_a_seed(recipes.get(name)):
        settings = replace(run.config.train, steps=3, evals=1, eval_tokens=256)
        data = TextData(source=str(text)) if isinstance(run.config.data, TextData) else run.config.data
        model = replace(run.config.model, vocab_size=257)
        config = replace(run.config, train=settings, data=data, model=model)
        assert train(config, tmp_path / run.folder, quiet=True).status == "finished"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_variant_trains_in_smoke(tmp_path):
    plan = recipes.get("smoke")
    there = {arm.mixer.name for arm in plan.tasks[0].arms}
    whole = with_variants(plan, [name for name in variants.names() if name not in {*there, "dex"}])
    # `dex` continues a trained model, so its arms stand in a plan that trains one first.
    from_base = with_variants(plan, ["dex"])
    from_base = replace(
        from_base,
        tasks=tuple(
            replace(task, base_steps=8, arms=tuple(arm for arm in task.arms if arm.mixer.name in ("softmax", "dex")))
            for task in from_base.tasks
        ),
    )
    trained = set()
    for number, each in enumerate((whole, from_base)):
        one_seed = replace(each, tasks=tuple(replace(task, seeds=1, ruler=False, quarter=False) for task in each.tasks))
        report = runner.compare(one_seed, tmp_path / str(number), quiet=True)
        assert report is not None
        for run in judged_runs(one_seed):
            assert read_done(tmp_path / str(number) / run.folder)["status"] == "finished", run.folder
            trained.add(run.config.model.mixer.name)
    assert trained == set(variants.names())


@pytest.mark.slow
def test_the_124m_model_trains_three_steps_of_one_sequence(tmp_path, text, monkeypatch):
    monkeypatch.setenv("DIFFATTN_CACHE", str(tmp_path / "cache"))
    run = next(run for run in runs_of_a_seed(recipes.get("ab_124m")) if run.arm == "diff_v1")
    settings = replace(
        run.config.train, steps=3, batch_size=1, accumulate=1, compile=False, evals=1, eval_tokens=1024, save_every=0
    )
    config = replace(run.config, train=settings, data=TextData(source=str(text)))
    assert train(config, tmp_path / "run", quiet=True).status == "finished"


@pytest.mark.parametrize("name", [name for name in recipes.names() if name not in SMALL])
def test_the_models_of_a_large_recipe_have_the_parameters_they_are_said_to_have(name):
    for arm in resolve(recipes.get(name).tasks[0]).values():
        with torch.device("meta"):
            model = Decoder(arm.model)
        assert sum(parameter.numel() for parameter in model.parameters()) == arm.model.cost().parameters


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_hyper_parameters(name):
    task = recipes.get(name).tasks[0]
    settings, model = task.train, task.model
    assert settings.steps == 40_000
    assert settings.sequences * model.context == 2**18
    assert settings.betas == (0.9, 0.98)
    assert settings.weight_decay == 0.05
    assert settings.schedule == "linear"
    assert round(settings.warmup * settings.steps) == 375
    assert settings.learning_rate == (7.5e-4 if name in ("paper_6p8b", "paper_13b") else 1.5e-3)
    assert model.vocab_size == 100_288
    v1 = task.arm("diff_v1").mixer.to_dict()["heads"]
    assert task.arm("softmax").mixer.to_dict()["heads"] == 2 * v1


def test_the_papers_hyper_parameters_are_inherited_by_no_small_recipe():
    paper = recipes.get("paper_1p4b").tasks[0].train
    for name in SMALL:
        for task in recipes.get(name).tasks:
            assert task.train.betas != paper.betas
            assert task.train.learning_rate != paper.learning_rate


@pytest.mark.parametrize("name", ["quick", "smoke"])
def test_the_default_arms_stand_in_every_task_of_the_demo(name):
    for task in recipes.get(name).tasks:
        assert [arm.name for arm in task.arms] == ["softmax", "softmax_norm", "diff_v1", "diff_v2"]
        assert task.seeds == 3
