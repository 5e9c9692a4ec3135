"""`ab_124m` and `ab_350m`: the sizes of GPT-2 small and medium, 20 tokens per parameter, for large GPUs."""

from diffattn.data import TextData
from diffattn.lab.plan import Plan, Task
from diffattn.model.sizes import SIZES
from diffattn.recipes.arms import standard_arms, v2_three_ways
from diffattn.train.config import TrainConfig

CORPUS = "hf:HuggingFaceFW/fineweb-edu:sample-10BT"


def ab_124m() -> Plan:
    """2.6 billion tokens a run; the rates around those usual at this size, swept for every arm alike."""
    return _plan("ab_124m", heads=12, steps=5000, rates=(3e-4, 6e-4, 1.2e-3, 2.4e-3))


def ab_350m() -> Plan:
    """7.3 billion tokens a run."""
    return _plan("ab_350m", heads=16, steps=14000, rates=(1.5e-4, 3e-4, 6e-4, 1.2e-3))


def _plan(name: str, heads: int, steps: int, rates: tuple[float, ...]) -> Plan:
    softmax, norm, v1, _ = standard_arms(heads)
    task = Task(
        name="text",
        data=TextData(source=CORPUS, tokenizer="bpe", vocab_size=SIZES[name].vocab_size, limit_bytes=40_000_000_000),
        model=SIZES[name],
        train=TrainConfig(
            steps=steps,
            batch_size=32,
            accumulate=16,
            learning_rate=rates[1],
            warmup=0.02,
            evals=10,
            eval_tokens=4_194_304,
            save_every=500,
            compile=True,
        ),
        arms=(softmax, norm, v1, *v2_three_ways(heads)),
        seeds=5,
        sweep_seeds=1,
        learning_rates=rates,
    )
    tokens = steps * task.train.sequences * task.model.context / 1e9
    return Plan(
        name=name,
        description=f"GPT-2-like size on FineWeb-Edu, {tokens:.1f} B tokens a run, 5 arms, 5 seeds, swept rates: GPUs.",
        tasks=(task,),
    )
