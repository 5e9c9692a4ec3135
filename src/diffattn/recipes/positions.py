"""`diffattn compare positions`: is it only the noise of rotary positions that cancels?"""

from dataclasses import replace

from diffattn.lab.plan import Arm, Contrast, Plan
from diffattn.recipes import screens

OTHERS = ("alibi", "none")


def positions() -> Plan:
    """Softmax and V1, each with rotary positions, with ALiBi's bias and without any; the interaction is judged."""
    return Plan(
        name="positions",
        description="Softmax and V1 with rope, ALiBi or no positions, and the interaction; text and recall, 3 seeds.",
        question="Is it only RoPE's noise that cancels? Then V1 should lose its lead with ALiBi or no positions.",
        limits=(
            "An interaction varies with four runs: three seeds see 0.10 nats on text, while V1's whole lead was 0.025 "
            "in its paper (Table 6). It can show a lead on recall that is lost in full, not a part of one on text."
        ),
        tasks=(
            replace(screens.text(_arms(screens.TEXT_HEADS)), contrasts=_contrasts()),
            replace(screens.recall(_arms(screens.RECALL_HEADS)), contrasts=_contrasts()),
        ),
    )


def _arms(heads: int) -> tuple[Arm, ...]:
    softmax, _, v1 = screens.three_arms(heads)
    others = (
        replace(arm, name=f"{arm.name}_{kind}", model={"positions": kind}, note=f"positions: {kind}")
        for kind in OTHERS
        for arm in (softmax, v1)
    )
    return (softmax, v1, *others)


def _contrasts() -> tuple[Contrast, ...]:
    return tuple(
        Contrast(
            name=f"rope_against_{kind}",
            first=("diff_v1", "softmax"),
            second=(f"diff_v1_{kind}", f"softmax_{kind}"),
            lead="V1's lead over softmax",
            under=("under rope", {"alibi": "under ALiBi", "none": "without positions"}[kind]),
        )
        for kind in OTHERS
    )
