"""Rotary positions, their scalings and xPos's decay, ALiBi's slopes."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from diffattn.ops import attention
from diffattn.ops.positions import (
    alibi_slopes,
    apply_rotary,
    llama3_tables,
    rotary_tables,
    xpos_reach,
    xpos_tables,
    yarn_tables,
)
from support.implementations import RUNNING, home


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


def test_linear_scaling_reads_stretched_positions_as_the_unscaled_ones() -> None:
    p = torch.arange(9)
    scaled = rotary_tables(5 * p, 8, dtype=torch.float64, factor=5.0)
    assert_close(scaled, rotary_tables(p, 8, dtype=torch.float64), rtol=0, atol=1e-13)


def yarn_angle_and_temperature(position: float, pair: int, rotary_dim: int, s: float, length: float) -> tuple:
    """arXiv 2309.00071 as written there: wavelengths, the ramp between 1 and 32 turns, then h = (1 - g) t/s + g t."""
    theta = 1 / 10000 ** (2 * pair / rotary_dim)
    wavelength = 2 * math.pi / theta
    r = length / wavelength
    if r < 1:
        g = 0.0
    elif r > 32:
        g = 1.0
    else:
        g = (r - 1) / (32 - 1)
    return position * ((1 - g) * theta / s + g * theta), 0.1 * math.log(s) + 1


@pytest.mark.parametrize(("factor", "length"), [(4.0, 2048), (16.0, 256), (1.0, 2048), (1.5, 100)])
def test_yarn_is_the_papers_formula(factor: float, length: int) -> None:
    positions, rotary_dim = [0, 1, 77, 9000], 32
    cos, sin = yarn_tables(torch.tensor(positions), rotary_dim, factor, length, dtype=torch.float64)
    for row, position in enumerate(positions):
        for pair in range(rotary_dim // 2):
            angle, temperature = yarn_angle_and_temperature(position, pair, rotary_dim, factor, length)
            # Angles of up to 9000 carry an error of 1e-12.
            assert float(cos[row, pair]) == pytest.approx(math.cos(angle) * temperature, abs=1e-11)
            assert float(sin[row, pair]) == pytest.approx(math.sin(angle) * temperature, abs=1e-11)


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    at, dim, factor = torch.tensor([1.0]), 64, 8.0
    (_, yarn), (_, plain) = yarn_tables(at, dim, factor, 2048), rotary_tables(at, dim)
    yarn = yarn / (0.1 * math.log(factor) + 1)
    assert_close(yarn[:, 0], plain[:, 0])
    assert_close(yarn[:, -1], plain[:, -1] / factor)


def test_yarn_lengthens() -> None:
    with pytest.raises(ValueError, match=r"factor: got 0\.5, needs at least 1"):
        yarn_tables(torch.arange(3), 8, 0.5, 2048)


def test_llama3_keeps_what_turns_four_times_and_stretches_what_turns_once() -> None:
    """The ramp in wavelengths, as it is published: low_freq_factor 1, high_freq_factor 4."""
    factor, length, rotary_dim = 8.0, 8192, 64
    _, sin = llama3_tables(torch.tensor([1]), rotary_dim, factor, length, base=500000.0, dtype=torch.float64)
    kinds = set()
    for pair in range(rotary_dim // 2):
        theta = 500000.0 ** (-2 * pair / rotary_dim)
        wavelength = 2 * math.pi / theta
        if wavelength < length / 4:
            kind, expected = "kept", theta
        elif wavelength > length:
            kind, expected = "stretched", theta / factor
        else:
            smooth = (length / wavelength - 1) / (4 - 1)
            kind, expected = "between", (1 - smooth) * theta / factor + smooth * theta
        kinds.add(kind)
        assert float(sin[0, pair]) == pytest.approx(math.sin(expected), rel=1e-9)
    assert len(kinds) == 3


def xpos_logit(q: list[float], k: list[float], n: int, m: int, rotary_dim: int) -> float:
    """Pairs as complex numbers: the real part of q conj(k) e^(i theta (n - m)), times zeta^((n - m) / 512)."""
    total = sum(a * b for a, b in zip(q[rotary_dim:], k[rotary_dim:], strict=True))
    for i in range(rotary_dim // 2):
        zeta = (2 * i / rotary_dim + 0.4) / 1.4
        product = complex(*q[2 * i : 2 * i + 2]) * complex(*k[2 * i : 2 * i + 2]).conjugate()
        turn = complex(math.cos(a := (n - m) * 10000 ** (-2 * i / rotary_dim)), math.sin(a))
        total += (product * turn).real * zeta ** ((n - m) / 512)
    return total


@pytest.mark.parametrize("rotary_dim", [2, 6, 8])
@pytest.mark.parametrize("center", [0, 12.5, 1000])
def test_xpos_logits_are_rotarys_times_a_decay_with_the_distance(rotary_dim: int, center: float) -> None:
    q, k = torch.randn(2, 8, dtype=torch.float64)
    positions = torch.tensor([0, 1, 40, 700, 1700])
    of_queries, of_keys = xpos_tables(positions, rotary_dim, center, dtype=torch.float64)
    queries = apply_rotary(q.expand(1, 1, 5, 8), *of_queries)[0, 0]
    keys = apply_rotary(k.expand(1, 1, 5, 8), *of_keys)[0, 0]
    found = queries @ keys.T
    for row, n in enumerate(positions.tolist()):
        for column, m in enumerate(positions.tolist()):
            expected = xpos_logit(q.tolist(), k.tolist(), n, m, rotary_dim)
            assert float(found[row, column]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tables_with_a_modulus_have_right_gradients(dtype: torch.dtype) -> None:
    """The kernels turn back with the same tables; that is the transpose of a scaled rotation, not its inverse."""
    x = torch.randn(2, 3, 5, 8).to(dtype).requires_grad_()
    cotangent = torch.randn(2, 3, 5, 8).to(dtype)
    cos, sin = xpos_tables(100 * torch.arange(5), 6, 200, dtype=torch.promote_types(dtype, torch.float32))[0]
    assert ((cos**2 + sin**2 - 1).abs() > 0.01).any()
    (apply_rotary(x, cos, sin) * cotangent).sum().backward()
    c, s = cos.double().repeat_interleave(2, -1), sin.double().repeat_interleave(2, -1)
    turn = torch.diag_embed(torch.cat((c, torch.ones(5, 2)), -1))
    for i in range(3):
        turn[:, 2 * i, 2 * i + 1], turn[:, 2 * i + 1, 2 * i] = -s[:, 2 * i], s[:, 2 * i]
    exact = torch.einsum("tij,bhti->bhtj", turn, cotangent.double())
    assert x.grad is not None
    assert_close(x.grad, exact.to(dtype))


def test_tables_with_a_modulus_can_be_differentiated_twice() -> None:
    x = torch.randn(1, 2, 3, 6, dtype=torch.float64, requires_grad=True)
    cos, sin = xpos_tables(100 * torch.arange(3), 4, 0, dtype=torch.float64)[1]
    assert torch.autograd.gradcheck(lambda x: apply_rotary(x, cos, sin), x)
    assert torch.autograd.gradgradcheck(lambda x: apply_rotary(x, cos, sin).sin(), x)


def test_xpos_ends_where_products_would_overflow() -> None:
    reach = xpos_reach(torch.float32)
    ends = torch.tensor([-reach, reach])
    (cos, sin), (key_cos, key_sin) = xpos_tables(ends, 4, 0)
    largest = (cos.hypot(sin)[:, None] * key_cos.hypot(key_sin)).max()
    assert largest > 1e30 and (largest * 2**20).isfinite()
    with pytest.raises(ValueError, match=f"one {reach + 1} away from the center 0; xPos overflows in torch.float32"):
        xpos_tables(ends + 1, 4, 0)
    with pytest.raises(ValueError, match="away from the center 50"):
        xpos_tables(ends[:1], 4, 50)
    assert all(table.isfinite().all() for pair in xpos_tables(ends + 1, 4, 0, dtype=torch.float64) for table in pair)
    # Elsewhere than on a CPU, reading the positions would wait for the device.
    assert xpos_tables(torch.zeros(3, device="meta"), 4, 1e6)[0][0].is_meta


@pytest.mark.parametrize("impl", RUNNING)
def test_later_keys_with_huge_factors_do_no_harm(impl: str) -> None:
    """Hidden logits come close to float32's end at xPos's reach; results and gradients are the exact ones."""
    draw, reach, width = torch.Generator().manual_seed(0), xpos_reach(torch.float32), 16
    inputs = [torch.randn(1, 2, 8, width, generator=draw) for _ in range(4)]
    positions = torch.linspace(-reach, reach, 8).round()
    found = {}
    for way, dtype in (("reference", torch.float64), (impl, torch.float32)):
        q, k, v, cotangent = (x.to(dtype, copy=True).requires_grad_() for x in inputs)
        of_queries, of_keys = xpos_tables(positions, width, 0, dtype=dtype)
        turned = apply_rotary(q, *of_queries), apply_rotary(k, *of_keys)
        out = attention(*turned, v, is_causal=True, impl=way)
        (out * cotangent).sum().backward()
        found[dtype] = [x.float() for x in (out, q.grad, k.grad, v.grad) if x is not None]
    for exact, ours in zip(found[torch.float64], found[torch.float32], strict=True):
        assert_close(ours, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("heads", "powers"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_fall_geometrically(heads: int, powers: list[float]) -> None:
    assert_close(alibi_slopes(heads, dtype=torch.float64), 0.5 ** torch.tensor(powers, dtype=torch.float64))


@pytest.mark.parametrize("heads", [5, 20, 33, 64])
def test_further_heads_take_every_other_slope_of_twice_as_many(heads: int) -> None:
    whole = next(2**n for n in range(10) if 2 ** (n + 1) > heads)
    slopes = alibi_slopes(heads, dtype=torch.float64)
    assert_close(slopes[:whole], alibi_slopes(whole, dtype=torch.float64))
    assert_close(slopes[whole:], alibi_slopes(2 * whole, dtype=torch.float64)[::2][: heads - whole])
    assert len(set(slopes.tolist())) == heads


def test_slopes_need_heads() -> None:
    with pytest.raises(ValueError, match="heads: got 0"):
        alibi_slopes(0)


@pytest.mark.parametrize("impl", RUNNING)
@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_is_minus_slope_times_distance(impl: str, heads: int) -> None:
    at = home(impl)
    q, k, v = (torch.randn(2, n, 7, at.width, dtype=at.dtype) for n in (heads, 2, 2))
    slopes = alibi_slopes(heads, dtype=at.dtype)
    out = attention(q, k, v, is_causal=True, alibi=slopes, impl=impl)
    for h in range(heads):
        for t in range(7):
            s = q[:, h, t, None] @ k[:, h // (heads // 2), : t + 1].mT / at.width**0.5
            s = s[:, 0] - float(slopes[h]) * (t - torch.arange(t + 1))
            read = s.softmax(-1)[:, None] @ v[:, h // (heads // 2), : t + 1]
            assert_close(out[:, h, t], read[:, 0], **at.close)
