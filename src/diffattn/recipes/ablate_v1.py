"""`diffattn compare ablate_v1`: which part of V1 does it? The rows of the paper's Table 6, as a screen."""

from diffattn.lab.plan import Arm, Plan
from diffattn.recipes import screens
from diffattn.variants.diff_v1 import DiffV1
from diffattn.variants.softmax import Softmax


def ablate_v1() -> Plan:
    """Softmax with the head counts of both, with and without the norm; V1 without its norm, and with λ_init fixed."""
    return Plan(
        name="ablate_v1",
        description="Table 6 of V1's paper on text and recall; 3 seeds see 0.07 nats, its λ_init rows differ by 0.003.",
        question="Which part of differential attention does the work: the subtraction, the norm, or the wide heads?",
        limits=(
            "The paper's rows (Table 6, 1.4 B parameters, one run each): V1 0.025 nats below the Transformer, 0.060 "
            "below itself without the norm, 0.003 and 0.004 below itself with λ_init 0.8 and 0.5. Three seeds of this "
            "screen see 0.07 nats: perhaps the norm. λ_init would take about 1,400 seeds."
        ),
        tasks=(screens.text(_arms(screens.TEXT_HEADS)), screens.recall(_arms(screens.RECALL_HEADS))),
    )


def _arms(heads: int) -> tuple[Arm, ...]:
    half = heads // 2
    softmax, norm, v1 = screens.three_arms(heads)
    return (
        softmax,
        norm,
        Arm(name="softmax_wide", mixer=Softmax(heads=half), note="half as many heads, twice as wide"),
        Arm(name="softmax_wide_norm", mixer=Softmax(heads=half, norm=True), note="the same with per-head RMSNorm"),
        v1,
        Arm(name="diff_v1_plain", mixer=DiffV1(heads=half, norm="none"), note="without the per-head norm"),
        Arm(name="diff_v1_0.8", mixer=DiffV1(heads=half, lambda_init=0.8), note="λ_init 0.8 in all layers"),
        Arm(name="diff_v1_0.5", mixer=DiffV1(heads=half, lambda_init=0.5), note="λ_init 0.5 in all layers"),
    )
