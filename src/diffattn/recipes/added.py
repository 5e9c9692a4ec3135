"""Any variant as a further arm of any recipe: `diffattn compare RECIPE --add NAME`."""

from collections.abc import Sequence
from dataclasses import replace

from diffattn.lab.plan import Arm, Plan, Task
from diffattn.variants import get
from diffattn.variants.base import MixerConfig
from diffattn.variants.parts import HeadsConfig


def with_variants(plan: Plan, names: Sequence[str]) -> Plan:
    """Add an arm of each variant to every task, matched as all arms are; ValueError: unknown, or there already."""
    return replace(plan, tasks=tuple(_extended(task, names) for task in plan.tasks))


def _extended(task: Task, names: Sequence[str]) -> Task:
    there = [arm.name for arm in task.arms]
    for name in names:
        if name in there:
            raise ValueError(f"--add {name}: task {task.name!r} has an arm of this name; it has {', '.join(there)}")
    added = tuple(Arm(name=name, mixer=_mixer(name, task.arm(task.baseline).mixer), note="added") for name in names)
    return replace(task, arms=(*task.arms, *added))


def _mixer(name: str, baseline: MixerConfig) -> MixerConfig:
    """A variant with the baseline's width of a query head; half as many heads where values are twice as wide."""
    kind = get(name)
    if not (issubclass(kind, HeadsConfig) and isinstance(baseline, HeadsConfig)):
        return kind()
    fewer = kind.values_per_key
    if baseline.heads % fewer or baseline.groups % fewer:
        raise ValueError(
            f"--add {name}: it needs a baseline whose heads come in {fewer}s, this one has {baseline.heads} in "
            f"{baseline.groups} groups"
        )
    kv_heads = None if baseline.kv_heads is None else baseline.kv_heads // fewer
    return kind(heads=baseline.heads // fewer, kv_heads=kv_heads, head_dim=baseline.head_dim)
