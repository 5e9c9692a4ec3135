"""`diffattn compare subtractions`: must it be this difference? Everything that people put in its place."""

from dataclasses import replace

from diffattn.lab.plan import Arm, Plan, Task
from diffattn.recipes import screens
from diffattn.recipes.arms import v2_baseline
from diffattn.variants.diff_factored import DiffFactored
from diffattn.variants.diff_fixed import DiffFixed
from diffattn.variants.diff_heaviside import DiffHeaviside
from diffattn.variants.diff_hierarchical import DiffHierarchical
from diffattn.variants.diff_relu import DiffRelu
from diffattn.variants.diff_temperature import DiffTemperature
from diffattn.variants.diff_uniform import DiffUniform
from diffattn.variants.diff_v2 import DiffV2
from diffattn.variants.dint import Dint
from diffattn.variants.gated_logsigmoid import GatedLogsigmoid
from diffattn.variants.grouped_diff import GroupedDiff
from diffattn.variants.output_gate import OutputGate
from diffattn.variants.shared_diff import SharedDiff


def subtractions() -> Plan:
    """All with the same per-head norm, so that it is not what is compared; V2 also against its authors' baseline."""
    return Plan(
        name="subtractions",
        description="Sixteen differences, sums and gates with one norm, V2 in three ways; text and recall, 3 seeds.",
        question="Must it be this difference? Would a constant, a sum, a gate, a rectifier or one more query do?",
        limits=(
            "With so many arms a screen finds who is far off and ranks the rest; three seeds see 0.07 nats on text. "
            "Choose at most four for `--confirm`."
        ),
        tasks=(
            screens.text(_arms(screens.TEXT_HEADS)),
            _queries(screens.text(()), screens.TEXT_HEADS),
            screens.recall(_arms(screens.RECALL_HEADS)),
            _queries(screens.recall(()), screens.RECALL_HEADS),
        ),
    )


def _arms(heads: int) -> tuple[Arm, ...]:
    half = heads // 2
    gate = OutputGate(heads=heads, norm=True)
    v2 = DiffV2(heads=heads, norm=True)
    return (
        *screens.three_arms(heads),
        Arm(name="fixed", mixer=DiffFixed(heads=half, c=0.5), note="A1 - 0.5 A2"),
        Arm(name="added", mixer=DiffFixed(heads=half, c=-0.5), note="A1 + 0.5 A2"),
        Arm(name="uniform", mixer=DiffUniform(heads=half), note="A1 - λ / (keys visible)"),
        Arm(name="temperature", mixer=DiffTemperature(heads=half), note="softmax(S) - softmax(τ S)"),
        Arm(name="relu", mixer=DiffRelu(heads=half), note="max(0, A1 - λ A2)"),
        Arm(name="heaviside", mixer=DiffHeaviside(heads=half), note="A1 - λ step(A1 - λ A2)"),
        Arm(name="gated", mixer=GatedLogsigmoid(heads=half), note="softmax(a S1 - logsigmoid(b S2))"),
        Arm(name="factored", mixer=DiffFactored(heads=half), note="V1 in two reads: only rounding differs"),
        Arm(
            name="hierarchical",
            mixer=DiffHierarchical(heads=half),
            note="second queries know the first read",
        ),
        Arm(name="output_gate", mixer=gate, note="no difference: a gate per head and token"),
        Arm(name="diff_v2", mixer=v2, note="more queries, paid for by the feed-forward"),
        Arm(name="diff_v2_native", mixer=v2, match="native", note="more queries, not paid for"),
        Arm(name="dint", mixer=Dint(heads=half), note="rows sum to 1"),
        Arm(name="shared", mixer=SharedDiff(heads=half), note="maps differ by rank 4"),
        Arm(name="grouped", mixer=GroupedDiff(heads=half, share=half), note="one noise head for all signal heads"),
    )


def _queries(task: Task, heads: int) -> Task:
    """The framing of V2's authors: the baseline has the same query heads over the same keys and values."""
    softmax = v2_baseline(heads, head_dim=16)
    arms = (
        Arm(name="softmax", mixer=softmax, note="V2's query heads"),
        Arm(name="softmax_norm", mixer=replace(softmax, norm=True), note="the same with per-head RMSNorm"),
        Arm(name="diff_v2", mixer=DiffV2(heads=heads, norm=True), note="with the norm of the other arms"),
        Arm(name="diff_v2_plain", mixer=DiffV2(heads=heads), note="as published, without norm"),
    )
    return replace(task, name=f"{task.name}_queries", arms=arms)
