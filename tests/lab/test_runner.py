"""A comparison runs what is missing, survives being killed and interrupted, and evaluates what the report reads."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffattn import recipes
from diffattn.evals import perplexity
from diffattn.hub.convert import load
from diffattn.lab import progress, runner, worker
from diffattn.lab.plan import Arm, Plan
from diffattn.lab.pool import Pool
from diffattn.lab.runs import judged_runs
from diffattn.variants.softmax import Softmax
from support.plans import tiny_plan, tiny_task


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """The report has its own tests; here it is counted how often one is written."""
    written = []

    def write_report(folder):
        written.append(folder)
        return folder / "report.html"

    monkeypatch.setattr("diffattn.lab.report.write_report", write_report)
    return written


def rows(folder: Path) -> list[dict]:
    """The rows of a run's metrics without what depends on the machine's speed."""
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "machine"} for row in read]


def wait_for_step(folder: Path, step: int, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while progress.step(folder) < step:
        assert time.monotonic() < end, f"{folder} did not reach step {step}"
        time.sleep(0.02)


def long_plan() -> Plan:
    """One arm that trains long enough to be interrupted, with checkpoints on the way."""
    train = replace(tiny_task().train, steps=1500, save_every=10, log_every=10)
    return tiny_plan(tiny_task(arms=tiny_task().arms[:1], seeds=1, ruler=False, quarter=False, train=train))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A tiny plan, run as it is by two workers."""
    out = tmp_path_factory.mktemp("plan") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffattn.lab.report.write_report", lambda folder: folder / "report.html")
        report = runner.compare(tiny_plan(), out, workers=2, quiet=True, command="diffattn compare tiny")
    return out, report


def test_every_planned_run_is_trained_and_judged_ones_are_evaluated(compared):
    out, report = compared
    assert report == out / "report.html"
    plan = json.loads((out / "plan.json").read_text())
    assert plan["command"] == "diffattn compare tiny"
    runs = plan["tasks"][0]["runs"]
    assert len(runs) == 2 * (2 + 1 + 2)
    for run in runs:
        folder = out / run["folder"]
        assert json.loads((folder / "done").read_text())["status"] == "finished"
        assert json.loads((folder / "evals" / "test.json").read_text())["count"] > 0
        maps = run["budget"] == "full" and run["seed"] == 0
        assert (folder / "evals" / "maps.json").exists() == (folder / "evals" / "inside.json").exists() == maps
    assert not list(out.glob("worker-*.log"))


def test_a_complete_plan_trains_nothing_again_and_writes_the_report(compared, no_report):
    out, _ = compared
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name in ("done", "test.json")}
    runner.compare(tiny_plan(), out, workers=2, quiet=True)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert no_report == [out]


def test_what_was_deleted_is_made_again_and_is_the_same(compared, no_report):
    out, _ = compared
    folder = out / "diff_v1-lr0.005-s1"
    metrics, test = rows(folder), (folder / "evals" / "test.json").read_text()
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    runner.compare(tiny_plan(), out, workers=1, quiet=True)
    assert rows(folder) == metrics
    assert (folder / "evals" / "test.json").read_text() == test
    assert no_report == [out, out]


def test_another_plan_is_refused_before_anything_is_trained(compared):
    out, _ = compared
    with pytest.raises(ValueError, match=r"tasks\.recall\.seeds was 2, is 3"):
        runner.compare(tiny_plan(tiny_task(seeds=3)), out, quiet=True)


def test_two_comparisons_do_not_run_in_one_folder(compared):
    out, _ = compared
    with (
        runner._alone_in(out),
        pytest.raises(ValueError, match="another comparison is running"),
    ):
        runner.compare(tiny_plan(), out, quiet=True)


@pytest.mark.parametrize("ask", [{"dry_run": True}, {"hours": 1.0}])
def test_a_forecast_writes_nothing(tmp_path, capsys, ask):
    assert runner.compare(tiny_plan(), tmp_path / "runs" / "tiny", **ask) is None
    told = capsys.readouterr().out
    assert "in all: 10 runs" in told
    assert "measured:" in told
    assert not (tmp_path / "runs").exists()


def test_a_mistake_in_a_run_ends_the_comparison_with_its_message(tmp_path):
    task = tiny_task(train=replace(tiny_task().train, init_from=str(tmp_path / "nothing")))
    with pytest.raises(ValueError, match="nothing"):
        runner.compare(tiny_plan(task), tmp_path / "out", workers=1, quiet=True)


def test_a_run_whose_loss_is_not_finite_on_test_has_failed_and_ends_nothing(compared, monkeypatch, tmp_path):
    run = next(run for run in judged_runs(tiny_plan()) if run.maps)
    folder = tmp_path / run.folder
    shutil.copytree(compared[0] / run.folder, folder)
    for found in (folder / "evals").iterdir():
        found.unlink()
    heldout = perplexity.evaluate

    def broken(*given):
        return replace(heldout(*given), loss=float("nan"))

    monkeypatch.setattr(perplexity, "evaluate", broken)
    monkeypatch.setattr(sys, "argv", sys.argv)
    config = json.loads((folder / "config.json").read_text())
    job = {"folder": str(folder), "config": config, "judged": True, "maps": True, "evals": (), "evals_limit": 1}
    assert worker.work(job | {"plugins": []}) == "non-finite"
    assert not list((folder / "evals").iterdir())
    done = json.loads((folder / "done").read_text())
    assert (done["status"], done["loss"], done["layer"]) == ("non-finite", None, "the evaluation on test")
    assert done["step"] == run.config.train.steps
    assert runner.Comparison(tiny_plan(), tmp_path, "", True)._complete(run)


@pytest.mark.slow
def test_a_run_whose_process_is_killed_is_taken_up_where_it_was(tmp_path):
    (run,) = judged_runs(long_plan())
    whole, killed = (Pool(tmp_path / name, workers=1, threads=1) for name in ("whole", "killed"))
    pids = []

    def kill():
        wait_for_step(killed.folder / run.folder, 30)
        pids.append(killed._processes[0].pid)
        killed._processes[0].kill()

    murder = threading.Thread(target=kill)
    answers = []
    for pool in (whole, killed):
        pool.folder.mkdir()
        if pool is killed:
            murder.start()
        answers += [answer.status for answer in pool.work([run]) if answer]
    assert pids != [killed._processes[0].pid]
    murder.join()
    whole.close()
    killed.close()
    assert answers == ["finished", "finished"]
    assert rows(killed.folder / run.folder) == rows(whole.folder / run.folder)


@pytest.mark.slow
def test_ctrl_c_saves_what_is_trained_and_the_same_command_goes_on(tmp_path):
    out = tmp_path / "long"
    code = (
        # A shell that starts the tests in the background makes all below it deaf to interruptions.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from pathlib import Path; from diffattn.lab import runner; from support.plans import *;"
        "from test_runner import long_plan;"
        f"runner.compare(long_plan(), Path({str(out)!r}), workers=1)"
    )
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests / "lab")])}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    (run,) = judged_runs(long_plan())
    wait_for_step(out / run.folder, 30)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert "the same command goes on" in said
    saved = [int(path.name.removeprefix("step-")) for path in (out / run.folder / "checkpoints").iterdir()]
    assert max(saved) >= 30
    assert not (out / run.folder / "done").exists()
    runner.compare(long_plan(), out, workers=1, quiet=True)
    assert json.loads((out / run.folder / "done").read_text())["step"] == 1500
    steps = [row["step"] for row in rows(out / run.folder) if row["kind"] == "train"]
    assert steps == sorted(set(steps))


@pytest.mark.slow
def test_a_planted_copy_differs_from_the_baseline_in_its_attention_alone(tmp_path):
    copy = Arm(name="copy", mixer=Softmax(heads=4), redraw_attention=1000)
    # A rate so small that the trained weights are those of the start.
    train = replace(tiny_task().train, steps=1, learning_rate=1e-12, weight_decay=0.0, evals=1)
    arms = (tiny_task().arms[0], copy)
    task = tiny_task(arms=arms, train=train, seeds=1, ruler=False, quarter=False)
    runner.compare(tiny_plan(task), tmp_path / "aa", workers=1, quiet=True)
    baseline, planted = (
        dict(load(tmp_path / "aa" / f"{name}-lr1e-12-s0" / "model").named_parameters()) for name in ("softmax", "copy")
    )
    changed = {name for name in baseline if not torch.allclose(baseline[name], planted[name], atol=1e-9)}
    assert changed == {name for name in baseline if ".mixer." in name}


@pytest.mark.slow
def test_a_swept_screen_is_confirmed_at_its_rates_on_fresh_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr("diffattn.lab.confirm.SEEDS", 1)
    train = replace(tiny_task().train, steps=4, evals=1)
    task = tiny_task(learning_rates=(5e-3, 1e-2), sweep_seeds=1, seeds=1, ruler=False, quarter=False, train=train)
    runner.compare(tiny_plan(task), tmp_path / "tiny", quiet=True)
    screen = json.loads((tmp_path / "tiny" / "plan.json").read_text())["tasks"][0]
    swept = [run for run in screen["runs"] if run["sweep"]]
    assert {run["seed"] for run in swept} == {100}
    rates = sorted({run["learning_rate"] for run in swept})
    assert {5e-3, 1e-2} <= set(rates)
    for arm, chosen in screen["chosen"].items():
        dev = {}
        for run in swept:
            if run["arm"] == arm:
                done = json.loads((tmp_path / "tiny" / run["folder"] / "done").read_text())
                dev[run["learning_rate"]] = done["loss"]
                assert not (tmp_path / "tiny" / run["folder"] / "evals" / "test.json").exists()
        assert chosen == min(dev, key=lambda rate: (dev[rate], rate))
    report = runner.compare(tiny_plan(task), tmp_path / "tiny", confirm=["diff_v1"], quiet=True)
    assert report == tmp_path / "tiny-confirm" / "report.html"
    confirmed = json.loads((tmp_path / "tiny-confirm" / "plan.json").read_text())["tasks"][0]
    assert confirmed["chosen"] == screen["chosen"]
    assert confirmed["seeds"] == [1]
    assert "chosen on dev by tiny" in confirmed["learning_rate_policy"]


def test_small_models_train_side_by_side_and_large_ones_take_all_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)), raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runner.layout(recipes.get("quick")) == (4, 1, 0)
    assert runner.layout(recipes.get("quick"), workers=2) == (2, 1, 0)
    assert runner.layout(recipes.get("ab_124m")) == (1, 4, 0)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_bars_on_a_terminal_and_a_line_per_run_in_a_pipe(tmp_path, monkeypatch, capsys, terminal):
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    runs = judged_runs(tiny_plan())[:2]
    for run in runs:
        (tmp_path / run.folder).mkdir()
    (tmp_path / runs[0].folder / "metrics.jsonl").write_text('{"kind": "train", "step": 4}\n{"kind": "tr')
    with progress.Progress(tmp_path, runs, "run") as shown:
        shown.draw({0: runs[0], 1: runs[1]})
        assert shown.left([(runs[0].folder, 0.5)]) > 0
        (tmp_path / runs[0].folder / "done").write_text('{"loss": 1.25, "seconds": 3.0, "status": "finished"}')
        shown.finish(runs[0], "finished")
    said = capsys.readouterr().err
    assert "run 1/2" in said
    assert "finished, 1.250 nats on dev, 3 s" in said
    assert ("\x1b[" in said) == terminal


def test_times_are_told_as_a_person_would():
    assert [progress.duration(seconds) for seconds in (40, 720, 12600, 9 * 86400, 4e9)] == [
        "40 s",
        "12 min",
        "3.5 h",
        "9.0 days",
        "127 years",
    ]
