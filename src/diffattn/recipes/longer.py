"""`diffattn compare longer`: every arm's own model goes on at four times its context."""

from dataclasses import replace

from diffattn.lab.plan import Plan
from diffattn.recipes import screens
from diffattn.recipes.arms import standard_arms

CONTEXT = 128
TIMES = 4
"""How many times as long the context is in the runs that are judged."""


def longer() -> Plan:
    """Four arms, each trained on 410k bytes in windows of 128, then on 102k more in windows of 512 under YaRN."""
    task = screens.text(standard_arms(screens.TEXT_HEADS))
    task = replace(
        task,
        base_steps=400,
        base_of="arm",
        base_context=CONTEXT,
        model=replace(task.model, context=TIMES * CONTEXT, rope_scaling="yarn", rope_factor=float(TIMES)),
        # As many tokens a step as the bases have.
        train=replace(task.train, steps=100, batch_size=task.train.batch_size // TIMES),
        evals=("long_context",),
        recorded_sd=None,
        recorded_sd_source="",
    )
    return Plan(
        name="longer",
        description="Four arms continued from context 128 to 512 under YaRN, each its own model; text, 3 seeds.",
        question="After training goes on at four times the context: whose loss is lower there, and who gains more?",
        limits="A small model on Python code in bytes: most of what it can use stands within 128 of them, which leaves "
        "little for a longer context to lower.",
        tasks=(task,),
    )
