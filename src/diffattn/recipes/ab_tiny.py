"""`diffattn compare ab_tiny`: a comparison that can carry a verdict, overnight on two cores."""

from dataclasses import replace

from diffattn.lab.plan import Arm, Plan, Task
from diffattn.recipes import quick
from diffattn.recipes.arms import standard_arms, v2_baseline, v2_three_ways
from diffattn.variants.diff_v2 import DiffV2

HEADS = 6


def ab_tiny() -> Plan:
    """Thirteen times the bytes of `quick`, swept rates, 10 seeds; V2 also against softmax with as many query heads."""
    return Plan(
        name="ab_tiny",
        description="Bytes, 0.33 M parameters, 3.3 M tokens, swept rates, 10 seeds: overnight on two cores.",
        tasks=(_text(), _queries()),
    )


def _text() -> Task:
    task = quick.text()
    softmax, norm, v1, _ = standard_arms(HEADS)
    larger = round(1.1 * task.model.ffn_width)
    worth = Arm(
        name="softmax_ffn110", mixer=softmax.mixer, ffn_width=larger, note="what 10 % more feed-forward is worth"
    )
    return replace(
        task,
        train=replace(task.train, steps=1600, batch_size=8, eval_tokens=65536),
        arms=(softmax, norm, v1, *v2_three_ways(HEADS), worth),
        seeds=10,
        learning_rates=(2.5e-3, 5e-3, 1e-2),
        recorded_sd_source="paired differences of this model after 717k bytes, 3 seeds",
    )


def _queries() -> Task:
    """The framing of V2's authors: the baseline has the same query heads over the same keys and values."""
    arms = (
        Arm(name="softmax", mixer=v2_baseline(HEADS, head_dim=16), note="V2's query heads"),
        Arm(name="diff_v2", mixer=DiffV2(heads=HEADS)),
    )
    return replace(_text(), name="queries", arms=arms)
