"""The arms that most comparisons share, from the number of the baseline's heads."""

from diffattn.lab.plan import Arm
from diffattn.variants.diff_v1 import DiffV1
from diffattn.variants.diff_v2 import DiffV2
from diffattn.variants.softmax import Softmax


def standard_arms(heads: int) -> tuple[Arm, ...]:
    """Softmax with `heads` heads, the same with V1's per-head norm, V1, and V2 with half as many key/value groups.

    All four have the same projection matrices in number of parameters: V1 has half as many heads twice as wide, V2 as
    many heads with two queries each. The per-head norm alone does much of what V1 does, so that arm is never left out.
    """
    return (
        Arm(name="softmax", mixer=Softmax(heads=heads)),
        Arm(name="softmax_norm", mixer=Softmax(heads=heads, norm=True), note="per-head RMSNorm, as in V1"),
        Arm(name="diff_v1", mixer=DiffV1(heads=heads // 2)),
        Arm(name="diff_v2", mixer=DiffV2(heads=heads, kv_heads=heads // 2), note="half of the key/value groups"),
    )


def v2_three_ways(heads: int) -> tuple[Arm, ...]:
    """V2 with the baseline's keys and values: paid for by the feed-forward, and as it comes.

    The third way, against softmax with as many query heads, is a task of its own, since its baseline is another
    (`v2_baseline`).
    """
    return (
        Arm(name="diff_v2", mixer=DiffV2(heads=heads), note="more queries, paid for by the feed-forward"),
        Arm(name="diff_v2_native", mixer=DiffV2(heads=heads), match="native", note="more queries, not paid for"),
    )


def v2_baseline(heads: int, head_dim: int) -> Softmax:
    """Softmax with the query heads of V2 over the same keys and values: what V2's authors compare it with."""
    return Softmax(heads=2 * heads, kv_heads=heads, head_dim=head_dim)
