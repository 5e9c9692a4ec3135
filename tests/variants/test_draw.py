"""Arms of different shape start from common values."""

import torch
from torch.testing import assert_close

import support.mixers as small
from diffattn.variants.base import Draw


def test_a_smaller_draw_begins_the_larger() -> None:
    draw = Draw(3)
    assert torch.equal(draw.normal("q", (5, 7), 0.5), draw.normal("q", (11, 7), 0.5)[:5])


def test_roles_parts_and_seeds_are_apart() -> None:
    base = Draw(0).at("layers.0").normal("q", (64,), 1.0)
    others = (
        Draw(0).at("layers.0").normal("k", (64,), 1.0),
        Draw(0).at("layers.1").normal("q", (64,), 1.0),
        Draw(1).at("layers.0").normal("q", (64,), 1.0),
    )
    for other in others:
        assert not torch.isclose(other, base).any()


def test_values_are_standard_normal_and_do_not_drift() -> None:
    values = Draw(0).normal("q", (100_000,), 2.0)
    # Five standard errors of a mean and of a standard deviation.
    assert abs(values.mean()) < 5 * 2 / 100_000**0.5
    assert abs(values.std() - 2) < 5 * 2 / 200_000**0.5
    # Numbers that a checkpoint's seed stands for must not change with a version.
    assert_close(
        Draw(0).at("layers.0").normal("q", (3,), 1.0),
        torch.tensor([-0.45460552, -0.17974032, -0.30950597]),
        rtol=0,
        atol=1e-6,
    )


def test_v1_starts_as_the_baseline_with_twice_the_heads() -> None:
    v1 = small.mixer_of("diff_v1", heads=4, kv_heads=2)
    baseline = small.mixer_of("softmax", heads=8, kv_heads=4)
    for part in ("q", "k", "v", "o"):
        assert torch.equal(getattr(v1, part).weight, getattr(baseline, part).weight), part


def test_the_first_queries_of_v2_are_the_baselines_heads() -> None:
    v2 = small.mixer_of("diff_v2", heads=4, kv_heads=2)
    baseline = small.mixer_of("softmax", heads=4, kv_heads=2)
    pairs = v2.q.weight.unflatten(0, (4, 2, 8))
    assert torch.equal(pairs[:, 0].flatten(0, 1), baseline.q.weight)
    assert not torch.isclose(pairs[:, 1], pairs[:, 0]).any()
    for part in ("k", "v", "o"):
        assert torch.equal(getattr(v2, part).weight, getattr(baseline, part).weight), part


def test_heads_in_common_start_equal_when_heads_are_added() -> None:
    few = small.mixer_of("softmax", heads=2, kv_heads=1, head_dim=8)
    many = small.mixer_of("softmax", heads=4, kv_heads=2, head_dim=8)
    assert torch.equal(many.q.weight[:16], few.q.weight)
    assert torch.equal(many.k.weight[:8], few.k.weight)
    # Columns of o belong to heads; their scale follows the fan-in.
    assert_close(many.o.weight[:, :16] * 32**0.5, few.o.weight * 16**0.5, rtol=1e-6, atol=0)
