"""`diffattn compare confounds`: does the sign of a difference survive the recipe?"""

from dataclasses import replace

from diffattn.data import TextData
from diffattn.lab.plan import Plan, Task
from diffattn.model.config import ModelConfig
from diffattn.recipes import screens
from diffattn.train.config import TrainConfig


def confounds() -> Plan:
    """One task per changed recipe; within each all arms share it, so that a task is a fair comparison by itself."""
    return Plan(
        name="confounds",
        description="Softmax, with norm, and V1 under six training recipes on text and four on recall; 3 seeds.",
        question="Does V1's difference to softmax keep its sign under another warm-up, vocabulary, batch, or shape?",
        limits=(
            "Three seeds see 0.07 nats on text, and the lead at this size is smaller: most signs on text are "
            "noise, and a sign that changes between recipes says that, not that the recipe turned it."
        ),
        tasks=(*_texts(), *_recalls()),
        across=("diff_v1", "softmax_norm"),
    )


def _texts() -> tuple[Task, ...]:
    task = screens.text(screens.three_arms(screens.TEXT_HEADS))
    return tuple(
        replace(changed, quarter=False)
        for changed in (
            task,
            _warmed(task),
            replace(task, name="text_vocabulary", data=TextData(tokenizer="bpe", vocab_size=512), recorded_sd=None),
            _larger_batch(task),
            _shaped(task, "text_deep", width=64, layers=6, heads=4, ffn_width=171),
            _shaped(task, "text_wide", width=128, layers=2, heads=8, ffn_width=256),
        )
    )


def _recalls() -> tuple[Task, ...]:
    task = screens.recall(screens.three_arms(screens.RECALL_HEADS))
    return (
        task,
        _warmed(task),
        _larger_batch(task),
        _shaped(task, "recall_deep", width=48, layers=4, heads=4, ffn_width=128),
    )


def _warmed(task: Task) -> Task:
    """Five times the warm-up."""
    return replace(task, name=f"{task.name}_warmup", train=replace(task.train, warmup=5 * task.train.warmup))


def _larger_batch(task: Task) -> Task:
    """Twice the sequences in half of the steps: the same tokens."""
    train: TrainConfig = replace(task.train, batch_size=2 * task.train.batch_size, steps=task.train.steps // 2)
    return replace(task, name=f"{task.name}_batch", train=train)


def _shaped(task: Task, name: str, *, width: int, layers: int, heads: int, ffn_width: int) -> Task:
    """As many parameters in another shape."""
    model: ModelConfig = replace(task.model, width=width, layers=layers, ffn_width=ffn_width)
    return replace(task, name=name, model=model, arms=screens.three_arms(heads))
