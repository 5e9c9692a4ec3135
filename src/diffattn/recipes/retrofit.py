"""`diffattn compare retrofit`: a trained softmax model continued as another attention."""

from dataclasses import replace

from diffattn.lab.plan import Arm, Plan
from diffattn.recipes import screens
from diffattn.variants.dex import Dex
from diffattn.variants.diff_v2 import DiffV2
from diffattn.variants.softmax import Softmax
from diffattn.variants.softmax1 import Softmax1

HEADS = screens.TEXT_HEADS


def retrofit() -> Plan:
    """Softmax trained on 410k bytes, then 205k bytes more as itself or as something else.

    dex stands beside two controls: o - λ o W_D folds into the output projection, so training that alone can learn what
    dex learns; and training everything is what the same tokens would otherwise buy.
    """
    arms = (
        Arm(name="softmax", mixer=Softmax(heads=HEADS), note="trained further as it is"),
        Arm(
            name="softmax_wo",
            mixer=Softmax(heads=HEADS),
            trains=("layers.*.mixer.o.weight",),
            note="trained further in its output projections only",
        ),
        Arm(name="softmax1", mixer=Softmax1(heads=HEADS), note="may attend to nothing from now on"),
        Arm(name="diff_v2", mixer=DiffV2(heads=HEADS), note="its heads and groups, second queries drawn"),
        Arm(name="dex", mixer=Dex(heads=HEADS), note="trained further in W_D and λ only"),
    )
    task = replace(screens.text(arms), base_steps=400, recorded_sd=None, recorded_sd_source="")
    return Plan(
        name="retrofit",
        description="A softmax checkpoint continued as softmax, softmax1, V2 and dex; text, 3 seeds.",
        question="Can a trained softmax model become a differential one, and is it better than training it further?",
        limits="A small model after a short training: it cannot speak for large pretrained ones. Parameters are not "
        "matched: V2 has more, dex and softmax_wo train fewer.",
        tasks=(task,),
    )
