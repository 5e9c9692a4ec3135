"""The five sizes of the paper's scaling study with its hyper-parameters (arXiv 2410.05258, section 3.2, appendix E).

Width, layers and heads stand in `model/sizes.py`. Taken from the paper: 40,000 steps of 0.25 M tokens at length 2048,
AdamW (0.9, 0.98), learning rate 1.5e-3 (up to 2.8B) or 7.5e-4, 375 steps of warm-up, linear decay, weight decay 0.05,
no dropout, vocabulary 100,288. Not told there, and chosen here: the decay ends at 0, gradients are clipped at 1, three
seeds. Its corpus is not public; FineWeb-Edu stands in its place. These numbers suit these sizes and are inherited by no
other recipe.
"""

from diffattn.data import TextData
from diffattn.lab.plan import Arm, Plan, Task
from diffattn.model.sizes import SIZES
from diffattn.train.config import TrainConfig
from diffattn.variants.diff_v1 import DiffV1
from diffattn.variants.softmax import Softmax

STEPS = 40_000
SEQUENCES = 128  # of 2048 tokens: 0.25 M
WARMUP_STEPS = 375


def paper_830m() -> Plan:
    """Width 1536, 24 layers, 8 heads of 96."""
    return _plan("paper_830m", "830M", heads=8, learning_rate=1.5e-3)


def paper_1p4b() -> Plan:
    """Width 2048, 24 layers, 8 heads of 128; also the size of the ablations, Table 6."""
    return _plan("paper_1p4b", "1.4B", heads=8, learning_rate=1.5e-3)


def paper_2p8b() -> Plan:
    """Width 2560, 32 layers, 10 heads of 128."""
    return _plan("paper_2p8b", "2.8B", heads=10, learning_rate=1.5e-3)


def paper_6p8b() -> Plan:
    """Width 4096, 32 layers, 16 heads of 128."""
    return _plan("paper_6p8b", "6.8B", heads=16, learning_rate=7.5e-4)


def paper_13b() -> Plan:
    """Width 5120, 40 layers, 20 heads of 128."""
    return _plan("paper_13b", "13.1B", heads=20, learning_rate=7.5e-4)


def _plan(name: str, label: str, heads: int, learning_rate: float) -> Plan:
    task = Task(
        name="text",
        data=TextData(
            source="hf:HuggingFaceFW/fineweb-edu:sample-100BT", tokenizer="bpe", vocab_size=SIZES[name].vocab_size
        ),
        model=SIZES[name],
        train=TrainConfig(
            steps=STEPS,
            batch_size=4,
            accumulate=SEQUENCES // 4,
            learning_rate=learning_rate,
            warmup=WARMUP_STEPS / STEPS,
            schedule="linear",
            final_lr_ratio=0.0,
            betas=(0.9, 0.98),
            weight_decay=0.05,
            evals=10,
            eval_tokens=4_194_304,
            save_every=500,
            compile=True,
            checkpoint_activations=True,
        ),
        arms=(
            Arm(name="softmax", mixer=Softmax(heads=2 * heads)),
            Arm(name="diff_v1", mixer=DiffV1(heads=heads)),
        ),
        ruler=False,
        quarter=False,
    )
    return Plan(
        name=name,
        description=f"The paper's {label} (scaling study), 10.5 B tokens a run, its hyper-parameters: a cluster.",
        tasks=(task,),
    )
