"""`diffattn compare needle_small`, `many_shot_small`, `hallucination_small`, `unlearn`: claims that small models test.

A model of this size finds no needle in text. Here it is trained on the task itself, and judged on combinations of the
same symbols that training never had.
"""

from dataclasses import replace
from typing import Literal

from diffattn.data import SyntheticData
from diffattn.lab.plan import Plan, Task
from diffattn.recipes import quick
from diffattn.recipes.arms import standard_arms
from diffattn.train.config import TrainConfig

LIMITS = (
    "Models of two layers, trained on nothing but this task: they show how soon and how surely each attention learns "
    "it, not what a trained language model does. {}"
)


def needle_small() -> Plan:
    """1 to 6 facts, up to 2 asked for: their number decides how often a guess is right, so the loss is compared."""
    data = SyntheticData(task="needle_small", keys=32, values=32, pairs=6, queries=2)
    return Plan(
        name="needle_small",
        description="Facts in noise, some names alike, after the paper's multi-needle cells; 4 arms, 3 seeds.",
        question="Does subtracting a map find more needles among distractors and names that look alike?",
        limits=LIMITS.format("Losses that fall in steps vary much between seeds: see each one's dot."),
        tasks=(_task(data, context=64, steps=800, evals=32, metric="loss"),),
    )


def many_shot_small() -> Plan:
    """16 inputs, 4 labels, up to 31 shots; guessing the commonest label is right in a third."""
    data = SyntheticData(task="many_shot_small", keys=64, values=4, pairs=16)
    return Plan(
        name="many_shot_small",
        description="Labels by example, drawn anew in every sequence, by the number of shots; 4 arms, 3 seeds.",
        question="Does subtracting a map learn sooner to read labels from many examples, and with how many shots?",
        limits=LIMITS.format("Demonstrations come in random order; class-arranged orders are not tried."),
        tasks=(_task(data, context=64, steps=240, evals=48, metric="tokens_to_50"),),
    )


def hallucination_small() -> Plan:
    """12 facts and as many questions, a quarter of them about absent keys, where "unknown" is the right answer."""
    data = SyntheticData(task="hallucination_small", keys=32, values=32, pairs=12)
    return Plan(
        name="hallucination_small",
        description='Questions with and without an answer in the context ("unknown"); 4 arms, 3 seeds.',
        question="Does subtracting a map misread the context less often, and does it know when nothing is there?",
        limits=LIMITS.format("Training rewards abstaining, which that of a language model does not."),
        tasks=(_task(data, context=48, steps=300, evals=60, metric="tokens_to_50"),),
    )


def unlearn() -> Plan:
    """8 facts, each stated twice, half of them with another value the second time; one statement alone gives 75 %."""
    data = SyntheticData(task="unlearn", keys=32, values=32, pairs=8)
    return Plan(
        name="unlearn",
        description="Facts that are contradicted later: the last statement counts; 4 arms, 3 seeds.",
        question="Does subtracting a map let go of a statement that was contradicted?",
        limits=LIMITS.format("Which of two statements came last is told by position alone."),
        tasks=(_task(data, context=48, steps=400, evals=20, metric="loss"),),
    )


def _task(
    data: SyntheticData, *, context: int, steps: int, evals: int, metric: Literal["loss", "tokens_to_50"]
) -> Task:
    return Task(
        name=data.task,
        data=data,
        model=replace(quick.small_model(), context=context),
        # Where tokens to 50 % decide, an evaluation every 5 steps: most of the rise takes 20 to 30.
        train=TrainConfig(
            steps=steps, batch_size=32, learning_rate=1e-2, precision="float32", evals=evals, eval_tokens=8192
        ),
        arms=standard_arms(heads=4),
        ruler=False,
        quarter=False,
        metric=metric,
    )
