"""`diffattn compare mixtures`: would heads that may mix their maps freely find the difference by themselves?"""

from diffattn.lab.plan import Arm, Plan
from diffattn.recipes import screens
from diffattn.variants.map_mix import MapMix
from diffattn.variants.map_mix_mlp import MapMixMlp


def mixtures() -> Plan:
    """A learned matrix over the heads' maps from three starts, with rows that sum to 1, and a network in its place."""
    return Plan(
        name="mixtures",
        description="Learned mixtures of all maps, from three starts, beside softmax and V1; text and recall, 3 seeds.",
        question="If every head may take any linear combination of all maps, does it become pairs with +1 and -λ?",
        tasks=(screens.text(_arms(screens.TEXT_HEADS)), screens.recall(_arms(screens.RECALL_HEADS))),
    )


def _arms(heads: int) -> tuple[Arm, ...]:
    return (
        *screens.three_arms(heads),
        Arm(name="mix_identity", mixer=MapMix(heads=heads), note="starts as softmax"),
        Arm(name="mix_uniform", mixer=MapMix(heads=heads, start="uniform"), note="starts as the mean of all maps"),
        Arm(name="mix_random", mixer=MapMix(heads=heads, start="random"), note="starts with random signs"),
        Arm(name="mix_rows", mixer=MapMix(heads=heads, rows_sum_to_one=True), note="each row of M sums to 1"),
        Arm(name="mix_mlp", mixer=MapMixMlp(heads=heads), note="a network over the heads at each pair of tokens"),
    )
