"""`diffattn compare lambda_start`: does it matter where λ starts, and how it is learned?"""

from dataclasses import replace

from diffattn.lab.plan import Arm, Plan
from diffattn.recipes import screens
from diffattn.variants.diff_v1 import DiffV1


def lambda_start() -> Plan:
    """V1, the baseline, with λ_init by its formula, 0.2, 0.5 and 0.8; λ as one number; λ between 0 and 1."""
    return Plan(
        name="lambda_start",
        description="V1 with other λ: six ways, on text and recall; 3 seeds see 0.07 nats, the paper saw 0.003.",
        question="Does it matter where λ starts, and whether it is a product of exponentials, a number, or bounded?",
        limits=(
            "The paper (Table 6, 1.4 B parameters, one run each) saw 0.003 nats between its formula and 0.8, 0.004 "
            "between it and 0.5. Three seeds of this screen see 0.07 nats, and 0.003 would take about 1,400: it can "
            "show what goes wrong and where λ ends, not which start is best."
        ),
        tasks=(
            replace(screens.text(_arms(screens.TEXT_HEADS)), baseline="diff_v1"),
            replace(screens.recall(_arms(screens.RECALL_HEADS)), baseline="diff_v1"),
        ),
    )


def _arms(heads: int) -> tuple[Arm, ...]:
    half = heads // 2
    softmax, norm, v1 = screens.three_arms(heads)
    starts = (
        Arm(name=f"start_{start}", mixer=DiffV1(heads=half, lambda_init=start), note=f"λ_init {start} in all layers")
        for start in (0.2, 0.5, 0.8)
    )
    return (
        replace(v1, note="λ_init 0.8 - 0.6 exp(-0.3 layer)"),
        *starts,
        Arm(name="direct", mixer=DiffV1(heads=half, lam="scalar"), note="λ is one learned number"),
        Arm(name="bounded", mixer=DiffV1(heads=half, lam="sigmoid"), note="λ is a sigmoid, between 0 and 1"),
        softmax,
        norm,
    )
