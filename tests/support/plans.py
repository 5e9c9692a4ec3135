"""Plans small enough to be run in a test."""

from dataclasses import replace

from diffattn.data import SyntheticData
from diffattn.lab.plan import Arm, Plan, Task
from diffattn.model.config import ModelConfig
from diffattn.train.config import TrainConfig
from diffattn.variants.base import MixerConfig
from diffattn.variants.diff_v1 import DiffV1
from diffattn.variants.softmax import Softmax


def tiny_task(**changes: object) -> Task:
    """Recall with a one-layer model of some thousand parameters, two arms, two seeds."""
    task = Task(
        name="recall",
        data=SyntheticData(task="recall", keys=8, values=8, pairs=4, heldout_sequences=32),
        model=ModelConfig(vocab_size=32, width=32, layers=1, context=32, ffn_width=88, token_shift=True),
        train=TrainConfig(steps=8, batch_size=4, evals=2, eval_tokens=512, log_every=2, precision="float32"),
        arms=(Arm(name="softmax", mixer=Softmax(heads=4)), Arm(name="diff_v1", mixer=DiffV1(heads=2))),
        seeds=2,
    )
    return replace(task, **changes)  # pyright: ignore[reportArgumentType]


def tiny_plan(*tasks: Task) -> Plan:
    """A plan of one tiny task, or of the given ones."""
    return Plan(name="tiny", description="For tests.", tasks=tasks or (tiny_task(),))


def shrunk(task: Task) -> Task:
    """A task's own recipe at a size that a test can train: 3 steps, few layers of few narrow heads, synthetic tokens.

    Kept: arms, heads and their ratios, matching, schedule, optimiser, precision policy. Changed: widths, layers,
    vocabulary, batch, data, no compilation.
    """
    heads = task.arm(task.baseline).mixer.to_dict()["heads"]
    width = 4 * heads
    times = task.model.context // task.base_context if task.base_context else 1
    model = replace(task.model, width=width, layers=2, context=32 * times, ffn_width=3 * width, vocab_size=32)
    train = replace(
        task.train,
        steps=3,
        batch_size=2,
        accumulate=min(task.train.accumulate, 2),
        compile=False,
        evals=1,
        eval_tokens=64,
    )
    arms = tuple(
        replace(arm, mixer=_narrow(arm.mixer, width, heads), ffn_width=arm.ffn_width and 4 * width) for arm in task.arms
    )
    data = SyntheticData(task="recall", keys=8, values=8, pairs=4, heldout_sequences=8)
    base = {"base_steps": min(task.base_steps, 2), "base_context": 32 if task.base_context else 0}
    return replace(task, data=data, model=model, train=train, arms=arms, **base)


def _narrow(mixer: MixerConfig, width: int, heads: int) -> MixerConfig:
    fields = mixer.to_dict()
    if fields.get("head_dim"):
        fields["head_dim"] = width // heads
    return MixerConfig.from_dict(fields)
