"""`diffattn compare quick`: what two CPU cores can honestly show in under ten minutes."""

from diffattn.data import SyntheticData, TextData
from diffattn.lab.plan import Plan, Task
from diffattn.model.config import ModelConfig
from diffattn.recipes.arms import standard_arms
from diffattn.train.config import TrainConfig


def quick() -> Plan:
    """A byte-level text screen, and recall and needle, where attention decides."""
    return Plan(
        name="quick",
        description="A byte-level text screen, recall and needle; 4 arms, 3 seeds, under 10 minutes on two cores.",
        tasks=(text(), recall(), needle()),
    )


def text() -> Task:
    """A language model of 0.33 M parameters on bytes; 250 short steps, so that the whole recipe fits ten minutes."""
    return Task(
        name="text",
        data=TextData(),
        model=ModelConfig(width=96, layers=3, context=256, ffn_width=256),
        train=TrainConfig(steps=250, batch_size=4, learning_rate=5e-3, precision="float32", evals=6, eval_tokens=16384),
        arms=standard_arms(heads=6),
        recorded_sd=0.03,
        recorded_sd_source="paired differences of this model after 717k bytes, 3 seeds",
    )


def recall() -> Task:
    """Values by key, 1 to 16 pairs; with 64 keys nothing is learned in so few steps."""
    return Task(
        name="recall",
        data=SyntheticData(task="recall", pairs=16, keys=32, values=32),
        model=small_model(),
        # An evaluation every 5 steps: the models go from a tenth to nine tenths of the answers within 20 to 30.
        train=TrainConfig(
            steps=160, batch_size=32, learning_rate=1e-2, precision="float32", evals=32, eval_tokens=4096
        ),
        arms=standard_arms(heads=4),
        ruler=False,
        quarter=False,
        metric="tokens_to_50",
    )


def needle() -> Task:
    """1 to 4 facts in Markov noise, 4 questions; guessing among the facts is right in 58 %, so the loss is compared."""
    return Task(
        name="needle",
        data=SyntheticData(task="needle", pairs=4, keys=64, values=64, queries=4),
        model=small_model(),
        train=TrainConfig(
            steps=240, batch_size=32, learning_rate=1e-2, precision="float32", evals=12, eval_tokens=8192
        ),
        arms=standard_arms(heads=4),
        ruler=False,
        quarter=False,
    )


def small_model() -> ModelConfig:
    """Two layers with a token shift, without which they wait on plateaus for hundreds of steps."""
    return ModelConfig(vocab_size=128, width=64, layers=2, context=64, ffn_width=171, token_shift=True)
