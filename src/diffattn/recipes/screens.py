"""The two settings in which the question recipes are screened: text at 0.33 M parameters, and recall."""

from dataclasses import replace

from diffattn.data import TextData
from diffattn.lab.plan import Arm, Task
from diffattn.model.config import ModelConfig
from diffattn.recipes import quick
from diffattn.recipes.arms import standard_arms
from diffattn.train.config import TrainConfig

TEXT_HEADS = 6
"""Heads of the baseline on text, 16 wide; a layer of two maps has half as many."""
RECALL_HEADS = 4
"""The same on recall."""


def text(arms: tuple[Arm, ...]) -> Task:
    """A language model on bytes: 205k of them in windows of 128, a third of a minute for a run."""
    return Task(
        name="text",
        data=TextData(),
        model=ModelConfig(width=96, layers=3, context=128, ffn_width=256),
        train=TrainConfig(steps=200, batch_size=8, learning_rate=5e-3, precision="float32", evals=4, eval_tokens=16384),
        arms=arms,
        recorded_sd=0.03,
        recorded_sd_source="paired differences of such a model after 717k bytes at context 256, 3 seeds",
    )


def recall(arms: tuple[Arm, ...]) -> Task:
    """Values by key as in `quick`: tokens until half of the answers are right."""
    return replace(quick.recall(), arms=arms)


def three_arms(heads: int) -> tuple[Arm, ...]:
    """Softmax, the same with V1's per-head norm, and V1: what tells a subtraction from its norm."""
    return standard_arms(heads)[:3]
