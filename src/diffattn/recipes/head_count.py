"""`diffattn compare head_count`: does the answer depend on the width of a head? D = 8, 16, 32."""

from dataclasses import replace

from diffattn.lab.plan import Plan, Task
from diffattn.model.config import ModelConfig
from diffattn.recipes import quick
from diffattn.recipes.arms import standard_arms

WIDTH = 128


def head_count() -> Plan:
    """One task per head width, each with the baseline of that width: many narrow heads, or few wide ones."""
    return Plan(
        name="head_count",
        description="Heads of 8, 16 and 32 at one width: softmax, with norm, and V1; 5 seeds, some hours on two cores.",
        tasks=tuple(_task(head_dim) for head_dim in (8, 16, 32)),
    )


def _task(head_dim: int) -> Task:
    task = quick.text()
    return replace(
        task,
        name=f"d{head_dim}",
        model=ModelConfig(width=WIDTH, layers=3, context=256, ffn_width=341),
        train=replace(task.train, steps=700, batch_size=8),
        arms=standard_arms(heads=WIDTH // head_dim)[:3],
        seeds=5,
        learning_rates=(2.5e-3, 5e-3, 1e-2),
        quarter=False,
        recorded_sd_source="paired differences of a model of width 96 after 717k bytes, 3 seeds",
    )
