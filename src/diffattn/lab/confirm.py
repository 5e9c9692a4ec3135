"""From a screen to a confirmation: a few arms again, on seeds that nobody has looked at."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from diffattn.lab.manifest import read_plan, refuse_another
from diffattn.lab.plan import Plan, Task, select

MOST_ARMS = 4
SEEDS = 10
"""Looks at 5 and at 10."""


def confirmation(plan: Plan, screen: Path, arms: Sequence[str]) -> Plan:
    """The plan that compares at most 4 arms of a screen with the baseline again, on fresh seeds, at the screen's rates.

    Each task compares those of the arms that it has; one that has none of them is left out.
    screen: folder of the screen. ValueError: too many arms, unknown ones, or a folder without this plan's screen.
    """
    if len(arms) > MOST_ARMS:
        raise ValueError(f"a confirmation takes at most {MOST_ARMS} arms besides the baseline, got {len(arms)}")
    before = read_plan(screen)
    if before is None:
        raise ValueError(f"{screen} holds no screen to confirm; run the same command without --confirm first")
    refuse_another(plan, screen)
    there = {task.name: [arm.name for arm in task.arms if arm.name in arms] for task in plan.tasks}
    for name in arms:
        if not any(name in named for named in there.values()):
            select(plan.tasks[0], [name])
    chosen = {task["name"]: task["chosen"] for task in before["tasks"]}
    return replace(
        plan,
        name=f"{plan.name}-confirm",
        description=f"A confirmation of {', '.join(arms)} from {plan.name} on fresh seeds.",
        # What the screen could not see, ten seeds may.
        limits="",
        tasks=tuple(
            _on_fresh_seeds(select(task, there[task.name]), plan.name, chosen[task.name])
            for task in plan.tasks
            if there[task.name]
        ),
    )


def _on_fresh_seeds(task: Task, screen: str, chosen: Mapping[str, float]) -> Task:
    missing = [arm.name for arm in task.arms if arm.name not in chosen]
    if missing:
        raise ValueError(
            f"{screen} has not chosen a learning rate for {missing[0]} on {task.name} yet; finish it first"
        )
    shared = chosen[task.baseline]
    # Rates of a factor-2 grid: the quotient is exact.
    arms = tuple(replace(arm, learning_rate_factor=chosen[arm.name] / shared) for arm in task.arms)
    return replace(
        task,
        arms=arms,
        train=replace(task.train, learning_rate=shared),
        # The base is trained as in the screen, whatever rate was chosen for the baseline.
        base_learning_rate=task.base_rate if task.base_steps else None,
        learning_rates=(),
        rates_between=(),
        rates_from=screen if task.learning_rates or task.rates_between else "",
        seeds=SEEDS,
        first_seed=task.first_seed + task.seeds,
    )
