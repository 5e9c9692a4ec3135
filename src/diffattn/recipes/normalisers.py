"""`diffattn compare normalisers`: is it only what softmax does to a row? One map, other normalisations."""

from diffattn.lab.plan import Arm, Plan
from diffattn.recipes import screens
from diffattn.variants.affine import Affine
from diffattn.variants.expm1 import Expm1
from diffattn.variants.linear import Linear
from diffattn.variants.qk_norm import QkNorm
from diffattn.variants.sigmoid import Sigmoid
from diffattn.variants.sink import Sink
from diffattn.variants.softmax import Softmax
from diffattn.variants.softmax1 import Softmax1


def normalisers() -> Plan:
    """Temperature, off by one, sink, sigmoid, exp - 1, none at all, cosine, and a map stretched to -1 .. 1."""
    return Plan(
        name="normalisers",
        description="One map normalised nine ways, beside V1 and the per-head norm; text and recall, 3 seeds.",
        question="Would another normalisation of a single map do what the difference of two maps does?",
        tasks=(screens.text(_arms(screens.TEXT_HEADS)), screens.recall(_arms(screens.RECALL_HEADS))),
    )


def _arms(heads: int) -> tuple[Arm, ...]:
    softmax, norm, v1 = screens.three_arms(heads)
    return (
        softmax,
        Arm(
            name="temperature",
            mixer=Softmax(heads=heads, temperature=True),
            note="a learned factor per head",
        ),
        Arm(name="softmax1", mixer=Softmax1(heads=heads), note="off by one: a head may attend to nothing"),
        Arm(name="sink", mixer=Sink(heads=heads), note="a learned sink logit per head"),
        Arm(name="sigmoid", mixer=Sigmoid(heads=heads), note="each weight by itself"),
        Arm(name="expm1", mixer=Expm1(heads=heads), note="exact zeros where a logit is not positive"),
        Arm(name="linear", mixer=Linear(heads=heads), note="no normalisation, no exponential"),
        Arm(name="qk_norm", mixer=QkNorm(heads=heads), note="cosine of query and key, learned scale"),
        Arm(name="affine", mixer=Affine(heads=heads), note="2 A - 1: is it only the range?"),
        norm,
        v1,
    )
