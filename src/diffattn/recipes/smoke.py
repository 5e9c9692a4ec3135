"""`diffattn compare smoke`: every part of a comparison in under a minute; its numbers mean nothing."""

from diffattn.data import SyntheticData, TextData
from diffattn.lab.plan import Plan, Task
from diffattn.model.config import ModelConfig
from diffattn.recipes.arms import standard_arms
from diffattn.train.config import TrainConfig


def smoke() -> Plan:
    """The shape of `quick`, shrunken."""
    text = Task(
        name="text",
        data=TextData(limit_bytes=1_000_000),
        model=ModelConfig(width=32, layers=2, context=64, ffn_width=88),
        train=TrainConfig(steps=16, batch_size=8, precision="float32", evals=2, eval_tokens=2048, log_every=4),
        arms=standard_arms(heads=4),
    )
    recall = Task(
        name="recall",
        data=SyntheticData(task="recall", pairs=4, keys=8, values=8, heldout_sequences=64),
        model=ModelConfig(vocab_size=32, width=32, layers=2, context=32, ffn_width=88, token_shift=True),
        train=TrainConfig(steps=16, batch_size=8, precision="float32", evals=4, eval_tokens=1024, log_every=4),
        arms=standard_arms(heads=4),
        ruler=False,
        quarter=False,
        metric="tokens_to_50",
    )
    return Plan(
        name="smoke",
        description="Every part of a comparison in under a minute; its numbers mean nothing.",
        tasks=(text, recall),
    )
