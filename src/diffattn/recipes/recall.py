"""`diffattn compare recall`: how many tokens until half of the answers are right, 10 seeds."""

from dataclasses import replace

from diffattn.lab.plan import Arm, Plan
from diffattn.recipes import quick
from diffattn.recipes.arms import standard_arms
from diffattn.variants.diff_v1 import DiffV1
from diffattn.variants.softmax import Softmax


def recall() -> Plan:
    """Is it the subtraction or the per-head norm? Both with and without each, at both head widths."""
    task = quick.recall()
    wide = (
        Arm(name="softmax_wide", mixer=Softmax(heads=2), note="half as many heads, twice as wide"),
        Arm(name="softmax_wide_norm", mixer=Softmax(heads=2, norm=True), note="the same with per-head RMSNorm"),
        Arm(name="diff_v1_plain", mixer=DiffV1(heads=2, norm="none"), note="without the per-head norm"),
    )
    task = replace(
        task,
        # Nearly four times the steps of the screen: fewer runs end before they have learned it.
        train=replace(task.train, steps=600, evals=60),
        arms=standard_arms(heads=4) + wide,
        seeds=10,
        learning_rates=(5e-3, 1e-2, 2e-2),
    )
    return Plan(
        name="recall",
        description="Associative recall: tokens until half of the answers are right; 7 arms, 10 seeds, under 1 h.",
        tasks=(task,),
    )
