"""Any variant as a further arm of any recipe: `diffattn compare RECIPE --add NAME`."""

from collections.abc import Sequence
from dataclasses import replace

from diffattn.lab.arms import mixer_like
from diffattn.lab.plan import Arm, Plan, Task


def with_variants(plan: Plan, names: Sequence[str]) -> Plan:
    """Add an arm of each variant to every task, matched as all arms are; ValueError: unknown, or there already."""
    return replace(plan, tasks=tuple(_extended(task, names) for task in plan.tasks))


def _extended(task: Task, names: Sequence[str]) -> Task:
    there = [arm.name for arm in task.arms]
    for name in names:
        if name in there:
            raise ValueError(f"--add {name}: task {task.name!r} has an arm of this name; it has {', '.join(there)}")
    added = tuple(Arm(name=name, mixer=mixer_like(name, task.arm(task.baseline).mixer), note="added") for name in names)
    return replace(task, arms=(*task.arms, *added))
