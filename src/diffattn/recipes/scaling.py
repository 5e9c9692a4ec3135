"""`diffattn scaling`: ladders of sizes and token budgets, each point a training of its own with a full schedule."""

from collections.abc import Sequence
from dataclasses import replace

from diffattn.data import TextData
from diffattn.lab.plan import Arm, Plan, Task
from diffattn.model.config import ModelConfig
from diffattn.recipes import paper
from diffattn.train.config import TrainConfig
from diffattn.variants.diff_v1 import DiffV1
from diffattn.variants.softmax import Softmax

QUESTION = "Which share of parameters, tokens, FLOPs and seconds does V1 need for the loss of softmax?"
CONTEXT, BATCH = 256, 8
# Width, layers and heads of the baseline. Heads of 16 or 24 channels: the fused kernels serve both arms at every size.
SIZES = {"49k": (32, 4, 2), "110k": (48, 4, 2), "197k": (64, 4, 4), "332k": (96, 3, 6)}
TOKENS_PER_PARAMETER = (10, 20)


def scale_cpu() -> Plan:
    """Softmax and V1 on bytes at four sizes and two budgets, rates tuned at both ends of the ladder, 3 seeds."""
    points = [_point(size, *SIZES[size], ratio) for size in SIZES for ratio in TOKENS_PER_PARAMETER]
    return Plan(
        name="scale_cpu",
        description="0.05 to 0.33 M parameters x 10 and 20 tokens each, softmax and V1, 3 seeds; 2 h on two cores.",
        question=QUESTION,
        limits="Bytes of one corpus, a factor of 7 in size: what such small models show need not hold for large ones.",
        tasks=_tuned_at_the_ends(points),
    )


def scale_smoke() -> Plan:
    """The shape of `scale_cpu`, shrunken."""
    points = [
        Task(
            name=f"w{width}_{steps}",
            data=TextData(limit_bytes=1_000_000),
            model=ModelConfig(width=width, layers=1, context=32, ffn_width=round(width * 8 / 3)),
            train=TrainConfig(steps=steps, batch_size=4, precision="float32", evals=1, eval_tokens=1024, log_every=4),
            arms=_arms(4),
            seeds=2,
            ruler=False,
            quarter=False,
        )
        # At smaller widths one channel of the feed-forward is too many parameters to match arms by.
        for width in (32, 40, 48)
        for steps in (4, 8)
    ]
    return Plan(
        name="scale_smoke",
        description="Every part of a ladder in under a minute; its numbers mean nothing.",
        tasks=tuple(points),
    )


def scale_paper() -> Plan:
    """The five sizes of arXiv 2410.05258, section 3.2, at their 40,000 steps and at half of them.

    With one budget, as there, nothing could be said of tokens; the paper has other runs for those.
    """
    sizes = (paper.paper_830m, paper.paper_1p4b, paper.paper_2p8b, paper.paper_6p8b, paper.paper_13b)
    points = []
    for size in sizes:
        plan = size()
        for steps in (paper.STEPS // 2, paper.STEPS):
            task = plan.tasks[0]
            train = replace(task.train, steps=steps, warmup=paper.WARMUP_STEPS / steps)
            points.append(replace(task, name=f"{plan.name.removeprefix('paper_')}_{steps // 1000}k", train=train))
    return Plan(
        name="scale_paper",
        description="The paper's five sizes at 5.2 B and 10.5 B tokens, its hyper-parameters: a cluster.",
        question=QUESTION,
        tasks=tuple(points),
    )


def _point(name: str, width: int, layers: int, heads: int, ratio: int) -> Task:
    model = ModelConfig(width=width, layers=layers, context=CONTEXT, ffn_width=round(width * 8 / 3))
    arms = _arms(heads)
    parameters = arms[0].model_from(model).cost().other_parameters
    return Task(
        name=f"{name}_x{ratio}",
        data=TextData(),
        model=model,
        train=TrainConfig(
            steps=round(ratio * parameters / (BATCH * CONTEXT)),
            batch_size=BATCH,
            learning_rate=5e-3,
            precision="float32",
            evals=4,
            eval_tokens=65536,
        ),
        arms=arms,
        ruler=False,
        quarter=False,
        sweep_seeds=1,
        recorded_sd=0.03,
        recorded_sd_source="paired differences at 0.33 M parameters after 717k bytes, 3 seeds",
    )


def _arms(heads: int) -> tuple[Arm, ...]:
    return Arm(name="softmax", mixer=Softmax(heads=heads)), Arm(name="diff_v1", mixer=DiffV1(heads=heads // 2))


def _tuned_at_the_ends(points: Sequence[Task]) -> tuple[Task, ...]:
    """Grids at the smallest and at the largest point; the others take rates between what is chosen there."""
    first, *middle, last = points
    ends = (first.name, last.name)
    return (
        replace(first, learning_rates=(5e-3, 1e-2, 2e-2)),
        *(replace(point, rates_between=ends) for point in middle),
        replace(last, learning_rates=(2.5e-3, 5e-3, 1e-2)),
    )
