"""Rotary positions."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops.positions import apply_rotary, rotary_tables


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Each pair of channels turned in the plane, one number at a time; x [T, D], angles [T, R / 2]."""
    out = x.clone()
    for t in range(x.shape[0]):
        for i in range(angles.shape[1]):
            c, s = torch.cos(angles[t, i]), torch.sin(angles[t, i])
            out[t, 2 * i] = c * x[t, 2 * i] - s * x[t, 2 * i + 1]
            out[t, 2 * i + 1] = s * x[t, 2 * i] + c * x[t, 2 * i + 1]
    return out


def test_frequencies_are_powers_of_the_base() -> None:
    cos, sin = rotary_tables(torch.tensor([0, 1, 5]), 8, base=500.0, dtype=torch.float64)
    angles = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)[:, None] * 500.0 ** -torch.tensor([0, 0.25, 0.5, 0.75])
    assert_close((cos, sin), (angles.cos(), angles.sin()), check_dtype=False)


def test_the_last_frequency_of_128_channels_is_the_standard_one() -> None:
    """1.155e-4; a public port spaces frequencies linearly and ends elsewhere."""
    _, sin = rotary_tables(torch.tensor([1]), 128, dtype=torch.float64)
    assert float(sin[0, -1].asin()) == pytest.approx(1.1548e-4, rel=1e-4)


def test_angles_are_right_at_position_one_million() -> None:
    """Angles in float32 are off by 1e-2 there."""
    cos, _ = rotary_tables(torch.tensor([10**6]), 16)
    exact, _ = rotary_tables(torch.tensor([10**6]), 16, dtype=torch.float64)
    assert_close(cos.double(), exact, rtol=0, atol=1e-7)


@pytest.mark.parametrize("rotary_dim", [2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_pairs_of_the_first_channels_turn_and_the_others_stay(rotary_dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64).to(dtype)
    angles = torch.randn(5, rotary_dim // 2, dtype=torch.float64)
    table_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    out = apply_rotary(x, angles.cos().to(table_dtype), angles.sin().to(table_dtype))
    wanted = torch.stack([torch.stack([turned(head, angles) for head in row]) for row in x.double()])
    assert out.dtype == dtype
    assert_close(out, wanted.to(dtype))
    assert torch.equal(out[..., rotary_dim:], x[..., rotary_dim:])


def test_each_batch_row_may_have_positions_of_its_own() -> None:
    x = torch.randn(2, 3, 5, 8)
    positions = torch.stack((torch.arange(5), torch.arange(5) + 7))
    cos, sin = rotary_tables(positions, 8)
    assert cos.shape == (2, 5, 4)
    both = apply_rotary(x, cos, sin)
    for b in range(2):
        assert_close(both[b : b + 1], apply_rotary(x[b : b + 1], cos[b], sin[b]))


def test_logits_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def logit(at: int, to: int) -> Tensor:
        def turn(x: Tensor, position: int) -> Tensor:
            return apply_rotary(x, *rotary_tables(torch.tensor([position]), 8, dtype=torch.float64))

        return (turn(q, at) * turn(k, to)).sum()

    assert_close(logit(9, 4), logit(105, 100))


@pytest.mark.parametrize("view", ["transposed", "odd width", "odd offset", "every other channel"])
def test_any_memory_layout_gives_the_same(view: str) -> None:
    big = torch.randn(2, 5, 3, 17)
    x = {
        "transposed": big[..., :8].contiguous().transpose(1, 2),
        "odd width": big[..., :8].transpose(1, 2),
        "odd offset": big[..., 1:9].transpose(1, 2),
        "every other channel": big[..., 0:16:2].transpose(1, 2),
    }[view]
    cos, sin = rotary_tables(torch.arange(5), 6)
    assert_close(apply_rotary(x, cos, sin), apply_rotary(x.contiguous().clone(), cos, sin))


def test_gradients_once_and_twice() -> None:
    x = torch.randn(1, 2, 3, 6, dtype=torch.float64, requires_grad=True)
    cos, sin = rotary_tables(torch.arange(3), 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: apply_rotary(x, cos, sin), x)
    assert torch.autograd.gradgradcheck(lambda x: apply_rotary(x, cos, sin).sin(), x)


def test_the_compiled_form_is_the_same() -> None:
    x, (cos, sin) = torch.randn(2, 3, 5, 8), rotary_tables(torch.arange(5), 6)
    compiled = torch.compile(apply_rotary, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x, cos, sin), apply_rotary(x, cos, sin))


@pytest.mark.parametrize("rotary_dim", [0, 3, -2])
def test_channels_turn_in_pairs(rotary_dim: int) -> None:
    with pytest.raises(ValueError, match=f"rotary_dim: got {rotary_dim}, needs a positive even number"):
        rotary_tables(torch.arange(3), rotary_dim)


@pytest.mark.parametrize("shape", [(4, 3), (5, 5), (3, 5, 3), (5,), (1, 1, 5, 3)])
def test_tables_that_do_not_fit(shape: tuple[int, ...]) -> None:
    table = torch.ones(shape)
    with pytest.raises(ValueError, match=r"cos, sin: got .* for x \[2, 3, 5, 8\], need"):
        apply_rotary(torch.randn(2, 3, 5, 8), table, table)


def test_cos_and_sin_of_different_shapes() -> None:
    with pytest.raises(ValueError, match="cos, sin: got"):
        apply_rotary(torch.randn(2, 3, 5, 8), torch.ones(5, 3), torch.ones(5, 2))
