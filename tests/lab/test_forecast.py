"""What a dry run says of speed, data and arms."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from diffattn.cli import main
from diffattn.data import TextData
from diffattn.lab import budget, forecast
from diffattn.lab.plan import resolve
from diffattn.train.config import RunConfig
from support.plans import tiny_plan, tiny_task


def tiny_run() -> RunConfig:
    task = tiny_task()
    return RunConfig(model=task.arms[0].model_from(task.model), data=task.data, train=task.train)


def test_time_that_other_programs_take_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes an eighth of a second of its own, while the clock on the wall runs ten times as fast."""
    own = {"seconds": 0.0}

    def step() -> None:
        own["seconds"] += 0.125

    clocks = SimpleNamespace(thread_time=lambda: own["seconds"], perf_counter=lambda: 10 * own["seconds"])
    monkeypatch.setattr(budget, "time", clocks)
    monkeypatch.setattr(budget, "_step", lambda run: step)
    run = tiny_run()
    speed, how = budget.measure_speed(run, 1)
    flops = run.model.cost().flops_executed * run.train.batch_size * run.model.context
    assert speed == flops / 0.125
    assert how == "measured: the median of 5 steps of the baseline"


def test_one_slow_step_does_not_decide_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.1, 0.1, 3.0, 0.1, 0.1, 0.1])
    own = {"seconds": 0.0}

    def step() -> None:
        own["seconds"] += next(seconds)

    monkeypatch.setattr(budget, "time", SimpleNamespace(thread_time=lambda: own["seconds"], perf_counter=lambda: 0.0))
    monkeypatch.setattr(budget, "_step", lambda run: step)
    run = tiny_run()
    flops = run.model.cost().flops_executed * run.train.batch_size * run.model.context
    assert budget.measure_speed(run, 1)[0] == pytest.approx(flops / 0.1)


def told(monkeypatch: pytest.MonkeyPatch, data: TextData) -> str:
    monkeypatch.setattr(forecast, "measure_speed", lambda run, threads: (5e10, "measured"))
    return forecast.describe(tiny_plan(replace(tiny_task(), data=data)), workers=2, threads=1)


def test_the_forecast_says_that_it_holds_for_a_machine_with_nothing_else_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "on this machine with nothing else running" in told(monkeypatch, TextData())


def test_a_dry_run_shows_the_fields_of_the_data_that_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = told(monkeypatch, TextData())
    assert "task recall: kind text, source stdlib, tokenizer bytes; primary" in plain
    trained = told(monkeypatch, TextData(source="a.jsonl", tokenizer="bpe", vocab_size=512, text_field="body"))
    assert "source a.jsonl, tokenizer bpe, vocab_size 512, text_field body;" in trained


def test_the_vocabulary_that_will_be_trained_counts_in_the_flops(monkeypatch: pytest.MonkeyPatch) -> None:
    data, task = TextData(tokenizer="bpe", vocab_size=600), tiny_task()
    model = replace(resolve(task)["softmax"].model, vocab_size=600)
    assert f"{model.cost().flops_executed / 1e6:.2f}" in told(monkeypatch, data)


def test_tasks_and_arms_that_were_not_chosen_are_not_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecast, "measure_speed", lambda run, threads: (5e10, "measured"))
    chosen = ["--tasks", "text", "--arms", "diff_v1"]
    assert main(["compare", "smoke", "--dry-run", *chosen, "--train.steps", "8"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "differs from the recipe: only the tasks text",
        "differs from the recipe: only the arms diff_v1",
        "differs from the recipe: tasks.text.train.steps was 16, is 8",
    ]
