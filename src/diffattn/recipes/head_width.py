"""`diffattn compare head_width`: does the answer depend on the width of a head? D = 8, 16, 32."""

from dataclasses import replace

from diffattn.lab.plan import Plan, Task
from diffattn.recipes import screens

WIDTHS = (8, 16, 32)


def head_width() -> Plan:
    """One task per head width, each with the baseline of that width: many narrow heads, or few wide ones."""
    return Plan(
        name="head_width",
        description="Heads of 8, 16 and 32 at one model width: softmax, with norm, V1; text and recall, 3 seeds.",
        question="Does V1 need wide heads, or does it pay for halving their number where heads are few?",
        tasks=(*(_text(head_dim) for head_dim in WIDTHS), *(_recall(head_dim) for head_dim in WIDTHS)),
        across=("diff_v1", "softmax_norm"),
    )


def _text(head_dim: int) -> Task:
    # Width 96 has no even number of heads of 32.
    task = screens.text(screens.three_arms(128 // head_dim))
    return replace(task, name=f"text_d{head_dim}", model=replace(task.model, width=128, layers=2), quarter=False)


def _recall(head_dim: int) -> Task:
    task = screens.recall(())
    arms = screens.three_arms(task.model.width // head_dim)
    return replace(task, name=f"recall_d{head_dim}", arms=arms)
