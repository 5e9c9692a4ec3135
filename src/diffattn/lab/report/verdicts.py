"""The losses of a task's runs, and what the laboratory's rules say about them."""

import math
from dataclasses import asdict, replace
from typing import Any

from diffattn.lab.contrasts import judge_contrasts
from diffattn.lab.losses import Losses, failed_runs
from diffattn.lab.report.folder import Run, Task
from diffattn.lab.rules import Contrast, Rules
from diffattn.lab.sentence import describe_setting
from diffattn.lab.verdict import judge

ENDED = ("finished", "non-finite")
LAST_LOOK = Rules(baseline="").looks[-1][0]


def split_of(task: Task) -> str:
    """The held-out documents that judge: test, or dev as long as a finished run lacks its test evaluation."""
    finished = [run for run in task.runs if run.status == "finished" and not run.sweep]
    return "test" if finished and all("test" in run.heldout for run in finished) else "dev"


def main_runs(task: Task, arm: str, budget: str = "full") -> list[Run]:
    """The runs that are judged: one per seed, at the learning rate chosen for the arm."""
    runs = [run for run in task.runs if run.arm == arm and run.budget == budget and not run.sweep]
    rates = [run.learning_rate for run in runs]
    chosen = task.plan["chosen"].get(arm)
    rate = chosen if chosen in rates else next(iter(rates), None)
    return [run for run in runs if run.learning_rate == rate]


def final_loss(run: Run, split: str) -> float | None:
    """Held-out nats per token of a finished run; None for any other."""
    if run.status != "finished":
        return None
    return run.heldout[split]["loss"] if split in run.heldout else run.done["loss"]


def failures(task: Task) -> list[Run]:
    """Runs whose loss was not finite, and judged ones that ended too far above the baseline."""
    broken = [run for run in task.runs if run.status == "non-finite"]
    if task.plan["metric"] != "loss":
        return broken
    split, baseline = split_of(task), task.plan["baseline"]
    arms = [arm["name"] for arm in task.plan["arms"]]
    full = {arm: losses for arm in arms if (losses := _values(task, arm, "full", split))}
    if baseline not in full:
        return broken
    failed = failed_runs(full, baseline, task.plan["lower_is_better"])
    diverged = [run for arm in full for run in main_runs(task, arm) if run.seed in failed[arm] and run not in broken]
    return broken + diverged


def tokens_to(run: Run, share: float) -> float | None:
    """Training tokens at the first evaluation with this share of right answers; None: not seen."""
    return next((row["tokens"] for row in run.evals if row["accuracy"] is not None and row["accuracy"] >= share), None)


def findings(task: Task, split: str, not_equal: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What may be said about arms, and about contrasts, as JSON; nothing while no arm has the baseline's seeds.

    The arms of a screen are given as it ranks them, the best first.
    """
    plan = task.plan
    arms = [arm["name"] for arm in plan["arms"]]
    contrasts = [Contrast.from_dict(given) for given in plan.get("contrasts", ())]
    full = {arm: _values(task, arm, "full", split) for arm in arms}
    full = {arm: seeds for arm, seeds in full.items() if seeds}
    if len(full) < 2 or plan["baseline"] not in full:
        return [], []
    losses = Losses(
        full=full,
        quarter={arm: seeds for arm in arms if (seeds := _values(task, arm, "quarter", split))},
        ruler=_values(task, plan["baseline"], "ruler", split),
    )
    rules = Rules(
        baseline=plan["baseline"],
        comparisons=len(arms) - 1 + len(contrasts),
        margin=plan["margin"],
        metric=plan["metric"],
        unit=plan["unit"],
        lower_is_better=plan["lower_is_better"],
        token_budget=plan["tokens"],
        setting=_setting(plan, not_equal),
    )
    found = judge(losses, _confirming(rules, task, next(arm for arm in arms if arm != plan["baseline"])))
    if all(finding.verdict in ("SCREEN", "UNSTABLE") for finding in found):
        found.sort(key=lambda finding: (finding.mean is None, -rules.sign * (finding.mean or 0.0)))
    interactions = []
    for contrast in contrasts:
        interactions += judge_contrasts(losses, _confirming(rules, task, *contrast.arms), [contrast])
    return [asdict(finding) for finding in found], [asdict(finding) for finding in interactions]


def _values(task: Task, arm: str, budget: str, split: str) -> dict[int, float]:
    """Seed -> the primary metric; nan for a run that failed, inf for an event that did not come."""
    values: dict[int, float] = {}
    for run in main_runs(task, arm, budget):
        if run.status == "non-finite":
            values[run.seed] = math.nan
        elif run.status == "finished" and task.plan["metric"] == "tokens_to_50":
            reached = tokens_to(run, 0.5)
            values[run.seed] = math.inf if reached is None else reached
        elif (loss := final_loss(run, split)) is not None:
            values[run.seed] = loss
    return values


def _confirming(rules: Rules, task: Task, *arms: str) -> Rules:
    """The rules with the fresh runs, and their minutes here, that would bring arms and baseline to the last look."""
    seeds, budgets = LAST_LOOK, ("full", "quarter", "ruler")
    kinds = [main_runs(task, arm, budget) for arm in sorted({*arms, rules.baseline}) for budget in budgets]
    times = [[run.done["seconds"] for run in runs if run.status == "finished"] for runs in kinds if runs]
    one_seed = sum(sum(t) / len(t) for t in times) if all(times) else None
    minutes = None if one_seed is None else math.ceil(seeds * one_seed / side_by_side(task) / 60)
    return replace(rules, confirm_runs=seeds * len(times), confirm_minutes=minutes)


def side_by_side(task: Task) -> int:
    """Runs that share the machine when each has its threads."""
    some = next((run.environment for run in task.runs if run.environment.get("cores")), {"cores": 1})
    return max(1, some["cores"] // (some.get("threads") or some["cores"]))


def _setting(plan: dict[str, Any], not_equal: str) -> str:
    baseline = next(arm for arm in plan["arms"] if arm["name"] == plan["baseline"])
    return describe_setting(
        parameters=baseline["other_parameters"],
        tokens=plan["tokens"],
        corpus=plan["data"],
        learning_rate_policy=plan["learning_rate_policy"],
        not_equal=not_equal,
    )
