"""A plan's folder -> the dictionary that report.json holds and that page and text draw from.

report.json, version 1 (null: not measured, or not yet)
    plan           name, description, question, limits, hash, command, runs {planned, ended, failed}
    tasks          task name ->
        the plan's own numbers: data, metric, unit, baseline, margin, seeds, tokens, context, bigram_loss, ...
        model          the baseline in words;  hardware: the machine in words;  shared: what seconds mean
        ended          whether every run has;  progress: "2 of 3 seeds complete"
        split          "test", or "dev" while a finished run lacks its test evaluation
        findings       list of {arm, verdict, mean, low, high, n, worth_percent_of_tokens, sentence, numbers}
        contrasts      the same of each contrast, its name as arm and its difference of differences as mean
        equal_time_seconds    the least, over arms, of its slowest seed's training time
        arms           arm name ->
            sizes and costs as planned: ffn_width, other_parameters, flops_algebra, cache_bytes, ...
            learning_rate, tokens_per_second, seconds_per_token, peak_memory_bytes
            loss, bits_per_byte      {mean, half_width (95 %, over seeds), n}
            failed_seeds      not finite, or too far above the baseline: the arm then has no means
            seeds      seed -> {status, final_loss, bits_per_byte, accuracy, tokens_to_50, tokens_to_90, seconds,
                       loss_at_equal_time, recall_hits, other_tokens, by_position [{first, last, loss}],
                       kinds [{name, unit, place, count, loss, guess, answers}] of questions, where they are told apart,
                       curve [{step, tokens, flops, seconds, loss, bits_per_byte, accuracy}], lambda [{tokens, layers}],
                       outliers [{tokens, logits, hidden}] along training,
                       inside: evals/inside.json, numbers of single heads replaced by the heads' mean,
                       evals: task -> {metric, measure, settings, value, log_loss, parts} or {failed: why}}
            quarter, ruler      seed -> final loss
        sweep          list of {arm, learning_rate, seed, loss (dev; null: the run failed)}
        evals          task beside the loss -> {settings, items, failed [{arm, seed, reason}],
                       quantities [{key, name, arms: arm -> {seeds, differences: seed -> number,
                       interval {mean, low, high, n} of the differences over seeds, unadjusted}}]}
        maps           arm -> {seed, tokens, heads}, as evals/maps.json
        not_equal      arm -> what differs from the baseline, in words
    across         list of {arm, sentence, rows [{task, verdict, mean, low, high, n, unit}]}: one arm over the tasks
    failed         list of {folder, task, arm, seed, budget, learning_rate, sweep, step, tokens, layer,
                   loss (null: not finite)}
    environments   list of {runs: how many, and the fields of environment.json that they share}
    commands       list of commands that repeat the whole and each run
"""

import math
import shlex
from typing import Any

from diffattn.files import finite
from diffattn.lab.report.across import across
from diffattn.lab.report.beside import compared
from diffattn.lab.report.folder import Folder, Run, Task
from diffattn.lab.report.seeds import seed_numbers
from diffattn.lab.report.verdicts import ENDED, failures, final_loss, findings, main_runs, side_by_side, split_of
from diffattn.lab.report.words import differences, hardware, inequalities, model_words, shared

Json = dict[str, Any]
LEVEL = 0.95
"""Of the intervals of single arms, which describe and decide nothing."""


def summarise(folder: Folder) -> Json:
    """Every number of the report as plain JSON values; infinite and undefined ones become null."""
    runs = [run for task in folder.tasks for run in task.runs]
    tasks = {task.plan["name"]: _task(task) for task in folder.tasks}
    report = {
        "format": "diffattn report",
        "version": 1,
        "plan": {
            **{key: folder.plan.get(key) for key in ("name", "description", "question", "limits", "hash", "command")},
            "runs": {
                "planned": len(runs),
                "ended": sum(run.status in ENDED for run in runs),
                "failed": sum(len(failures(task)) for task in folder.tasks),
            },
        },
        "tasks": tasks,
        "across": across(folder.plan.get("across") or (), tasks),
        "failed": [_failure(task, run) for task in folder.tasks for run in failures(task)],
        "environments": _environments(runs),
        "commands": [folder.plan.get("command")]
        + sorted({_repeat(run) for run in runs if run.environment.get("command")}),
    }
    return finite(report)


def _task(task: Task) -> Json:
    plan, split = task.plan, split_of(task)
    equal_time = _equal_time(task)
    arms = {arm["name"]: _arm(task, arm, split, equal_time) for arm in plan["arms"]}
    baseline = arms[plan["baseline"]]
    not_equal = {name: words for name, arm in arms.items() if (words := differences(arm, baseline))}
    found, contrasts = findings(task, split, inequalities(arms, plan["baseline"]))
    some = next((run for run in task.runs if run.config), None)
    ended = {run.seed for run in task.runs if not run.sweep and run.budget == "full"} - {
        run.seed for run in task.runs if not run.sweep and run.status in ("planned", "unfinished")
    }
    return {
        **{key: value for key, value in plan.items() if key not in ("arms", "runs", "name")},
        "ended": all(run.status in ENDED for run in task.runs),
        "split": split,
        "model": model_words(plan, some.config["model"] if some else {}),
        "hardware": hardware([run.environment for run in task.runs if run.environment]),
        "shared": shared(side_by_side(task)),
        "progress": f"{len(ended)} of {len(plan['seeds'])} seeds complete",
        "findings": found,
        "contrasts": contrasts,
        "equal_time_seconds": equal_time,
        "arms": arms,
        "sweep": [
            {"arm": r.arm, "learning_rate": r.learning_rate, "seed": r.seed, "loss": final_loss(r, "dev")}
            for r in task.runs
            if r.sweep and r.status in ENDED
        ],
        "evals": compared(plan.get("evals") or (), arms, plan["baseline"]),
        "maps": {name: maps for name in arms if (maps := _maps(task, name))},
        "not_equal": not_equal,
    }


def _arm(task: Task, planned: Json, split: str, equal_time: float | None) -> Json:
    name = planned["name"]
    runs = main_runs(task, name)
    seeds = {str(run.seed): seed_numbers(run, split, equal_time) for run in runs}
    finished = [seed for seed in seeds.values() if seed["status"] == "finished"]
    failed = [run.seed for run in runs if run in failures(task)]
    # A mean over the seeds that survived would flatter the arm.
    judged = [] if failed else finished
    speeds = sorted(seed["tokens_per_second"] for seed in finished if seed["tokens_per_second"])
    speed = speeds[len(speeds) // 2] if speeds else None
    return {
        **{key: value for key, value in planned.items() if key != "name"},
        "learning_rate": runs[0].learning_rate if runs else task.plan["chosen"].get(name),
        "tokens_per_second": speed,
        "seconds_per_token": 1 / speed if speed else None,
        "peak_memory_bytes": max((s["peak_memory_bytes"] for s in finished if s["peak_memory_bytes"]), default=None),
        "loss": _mean([seed["final_loss"] for seed in judged]),
        "bits_per_byte": _mean([seed["bits_per_byte"] for seed in judged if seed["bits_per_byte"] is not None]),
        "seeds": seeds,
        "failed_seeds": failed,
        "quarter": {str(run.seed): final_loss(run, split) for run in main_runs(task, name, "quarter")},
        "ruler": {str(run.seed): final_loss(run, split) for run in main_runs(task, name, "ruler")},
    }


def _mean(values: list[float]) -> Json:
    """Mean and Student's t interval over seeds; with one seed there is no interval."""
    from scipy.stats import t

    count = len(values)
    if count == 0:
        return {"mean": None, "half_width": None, "n": 0}
    mean = math.fsum(values) / count
    if count == 1:
        return {"mean": mean, "half_width": None, "n": 1}
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
    return {"mean": mean, "half_width": float(t.ppf(0.5 + LEVEL / 2, count - 1)) * sd / math.sqrt(count), "n": count}


def _equal_time(task: Task) -> float | None:
    """Seconds of training that every arm has used: the least, over arms, of its slowest seed's time."""
    times = []
    for arm in task.plan["arms"]:
        curves = [run.evals for run in main_runs(task, arm["name"]) if run.status == "finished" and run.evals]
        if curves:
            times.append(max(curve[-1]["machine"]["seconds"] for curve in curves))
    return min(times) if len(times) > 1 else None


def _maps(task: Task, arm: str) -> Json | None:
    """The attention maps of the arm's first finished seed."""
    run = next((run for run in main_runs(task, arm) if run.maps), None)
    return {"seed": run.seed, **run.maps} if run and run.maps else None


def _failure(task: Task, run: Run) -> Json:
    where: Json = {
        "folder": run.folder,
        "task": task.plan["name"],
        "arm": run.arm,
        "seed": run.seed,
        "budget": run.budget,
    }
    what = {key: run.done.get(key) for key in ("step", "tokens", "layer")}
    loss = final_loss(run, split_of(task))
    return {**where, "learning_rate": run.learning_rate, "sweep": run.sweep, **what, "loss": loss}


def _environments(runs: list[Run]) -> list[Json]:
    """Distinct machines and versions with the number of runs on each; the measured speed is given as a range."""
    found: list[Json] = []
    for run in runs:
        same = {key: v for key, v in run.environment.items() if key not in ("command", "peak_gflops")}
        if not same:
            continue
        peak = run.environment.get("peak_gflops")
        entry = next((e for e in found if all(e.get(key) == v for key, v in same.items())), None)
        if entry is None:
            entry = {**same, "runs": 0, "peak_gflops": [peak, peak]}
            found.append(entry)
        entry["runs"] += 1
        if peak is not None:
            low, high = entry["peak_gflops"]
            entry["peak_gflops"] = [min(low, peak), max(high, peak)]
    return found


def _repeat(run: Run) -> str:
    """The command that repeats a run, with a folder of its own: all would go to the same one otherwise."""
    command = run.environment["command"]
    return command if "--out" in command else f"{command} --out {shlex.quote(f'again/{run.folder}')}"
